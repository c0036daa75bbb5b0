"""The form and size of images, the same for all data sets."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate, pad

from client_app.errors import DataError
from strategies.protocol.settings import Settings

# Longer sides per shorter side of an image that is scaled before it is cropped.
MAX_RATIO = 64


@dataclass(frozen=True)
class Form:
    """A form of images."""

    size: int = 0  # height and width in pixels; 0 = unchanged, at any `fit`
    # "squash" resizes each side on its own. "pad" keeps the proportions, shrinks larger images, and
    # fills the border with black. "crop" keeps the proportions and the middle of the longer side
    fit: Literal["squash", "pad", "crop"] = "squash"
    channels: int = 0  # 3 = grey images get three equal channels; 0 = unchanged

    @classmethod
    def from_settings(cls, settings: Settings) -> "Form":
        """The form in the settings."""
        return cls(settings.image_size, settings.image_fit, settings.image_channels)

    def apply(self, images: Tensor) -> Tensor:
        """Bring uint8 [n, C, H, W] to this form; images that have it stay as they are.

        No image is refused: a server chooses the form, and would choose the patients with it.
        """
        if self.size and images.shape[-2:] != (self.size, self.size):
            images = _FITS[self.fit](images, self.size)
        if images.shape[1] < self.channels:
            images = images.repeat(1, self.channels, 1, 1)
        return images


def _crop(images: Tensor, size: int) -> Tensor:
    images = _middle(images, MAX_RATIO * min(images.shape[-2:]))  # scaling a strip takes memory
    return _middle(_scale(images, size / min(images.shape[-2:]), least=size), size)


def _middle(images: Tensor, most: int) -> Tensor:
    """The middle of each side that is longer than `most` pixels."""
    top, left = (max(0, side - most) // 2 for side in images.shape[-2:])
    return images[..., top : top + most, left : left + most]


def _pad(images: Tensor, size: int) -> Tensor:
    scale = size / max(images.shape[-2:])
    images = _scale(images, scale, least=1) if scale < 1 else images
    rows, columns = (size - side for side in images.shape[-2:])
    left, top = columns // 2, rows // 2
    return pad(images, (left, columns - left, top, rows - top))


def _scale(images: Tensor, scale: float, least: int) -> Tensor:
    height, width = (max(least, round(scale * side)) for side in images.shape[-2:])
    return resize(images, (height, width))


def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Bring uint8 [n, C, *, *] to a height and width."""
    return interpolate(images, size=size, mode="bilinear", antialias=True)


_FITS = {"squash": lambda images, size: resize(images, (size, size)), "pad": _pad, "crop": _crop}


def stack(source: str, images: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Stack all images of `source`, each [C, H, W]: [N, C, H, W].

    Raises:
        DataError: The images differ in size.
    """
    height, width = common_size(f"of '{source}'", (image.shape[1:] for image in images))
    channels = max(len(image) for image in images)  # grey among colour: three equal channels
    return np.stack([np.broadcast_to(image, (channels, height, width)) for image in images])


def common_size(source: str, sizes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The (height, width) that all images have; (0, 0) if there are none.

    The error names the owner of the images (`source`): "of 'npz:...'".

    Raises:
        DataError: The sizes differ.
    """
    found = set(sizes)
    if len(found) > 1:  # the server may read this: no size of an image
        raise DataError(
            f"The images {source} differ in size: give the setting 'image-size' a value above 0."
        )
    return found.pop() if found else (0, 0)
