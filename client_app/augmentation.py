"""Random changes of training images, on whole batches: the setting `train.augment`.

Each takes images [N, C, H, W] of any dtype on any device and a generator on the CPU, so that the
same seed changes them alike everywhere, and returns images of the same shape. A new one needs a
function here, a line in `AUGMENTATIONS` and its name in `TrainSettings.augment`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from strategies.settings import SettingsError


def _none(images: Tensor, generator: torch.Generator) -> Tensor:
    return images


def _flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror left and right, each image with probability 0.5."""
    flipped = torch.rand(len(images), generator=generator) < 0.5  # [N]
    result = images.clone()
    result[flipped] = images[flipped].flip(-1)
    return result


def _flip_rotate(images: Tensor, generator: torch.Generator) -> Tensor:
    """Turn each image by 0, 90, 180 or 270 degrees and mirror half of them: 8 equal chances.

    Raises:
        SettingsError: The images are not square.
    """
    _, channels, height, width = images.shape
    if height != width:
        raise SettingsError(
            "The setting 'train.augment' is 'flip-rotate', which needs square images, not "
            f"{channels}x{height}x{width}; it must be 'none' or 'flip'."
        )
    symmetries = torch.randint(8, (len(images),), generator=generator)  # [N]
    result = torch.empty_like(images)
    for symmetry in range(8):
        chosen = symmetries == symmetry
        turned = images[chosen].rot90(symmetry % 4, (-2, -1))
        result[chosen] = turned if symmetry < 4 else turned.flip(-1)
    return result


AUGMENTATIONS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "none": _none,
    "flip": _flip,
    "flip-rotate": _flip_rotate,
}
