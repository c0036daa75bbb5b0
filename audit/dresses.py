"""The dresses: changes of held-out images before they are compared with training images.

These changes make images more or less like others. Mirrors, turns by 90 degrees, brightness,
contrast and inversion are not among them: the search (audit/search.py) ignores these.

N images, C channels, H x W pixels; values from 0 to 255.
"""

from collections.abc import Callable
from math import cos, radians, sin

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from audit.search import blur


def dress(images: Tensor) -> Tensor:
    """Images uint8 [N, C, H, W] in the dresses by turns; the first dress changes nothing."""
    rng = torch.Generator().manual_seed(0)
    dressed = images.float()
    for start, dress in enumerate(DRESSES):
        rows = slice(start, None, len(DRESSES))
        if len(dressed[rows]):
            dressed[rows] = dress(images[rows].float(), rng)
    return dressed.round().clamp(0, 255).to(torch.uint8)


def _leave(images: Tensor, rng: torch.Generator) -> Tensor:
    return images


def _add_noise(images: Tensor, rng: torch.Generator) -> Tensor:
    return images + 20 * torch.randn(images.shape, generator=rng).to(images.device)


def _blur(images: Tensor, rng: torch.Generator) -> Tensor:
    return blur(images, 0.6 if images.shape[2] <= 16 else 1.0)


def _lighten(images: Tensor, rng: torch.Generator) -> Tensor:
    return 255 * (images / 255) ** 0.6


def _mix(images: Tensor, rng: torch.Generator) -> Tensor:
    return (images + images.roll(1, 0)) / 2


def _mover(shift: float, zoom: float, angle: float) -> Callable[[Tensor, torch.Generator], Tensor]:
    def move(images: Tensor, rng: torch.Generator) -> Tensor:
        c, s = cos(radians(angle)) / zoom, sin(radians(angle)) / zoom
        pose = images.new_tensor([[c, -s, shift], [s, c, shift]]).expand(len(images), 2, 3)
        grid = affine_grid(pose, list(images.shape), align_corners=False)
        return grid_sample(images, grid, padding_mode="border", align_corners=False)

    return move


DRESSES: tuple[Callable[[Tensor, torch.Generator], Tensor], ...] = (
    _leave,
    _add_noise,
    _mover(0.2, 1.0, 0.0),
    _blur,
    _mover(0.0, 1.2, 0.0),
    _mix,
    _lighten,
    _mover(0.0, 1.0, 10.0),
)
