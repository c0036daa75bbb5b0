"""One way to bring images to one form and size, for all data sets."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate, pad

from client_app.errors import DataError


@dataclass(frozen=True)
class Form:
    """What images are brought to.

    Attributes:
        size: Their height and width in pixels; 0 = as they are, whatever `fit` is.
        fit: How they get there: "squash" resizes each side on its own; "pad" keeps the proportions,
            shrinks only what is larger, and puts black around it.
        channels: 3 = grey images get three equal channels; 0 = as they are.
    """

    size: int = 0
    fit: Literal["squash", "pad"] = "squash"
    channels: Literal[0, 3] = 0


def formed(images: Tensor, form: Form) -> Tensor:
    """Bring uint8 [n, C, H, W] to a form; images that have it stay as they are."""
    if form.size:
        images = (_padded if form.fit == "pad" else _squashed)(images, form.size)
    if images.shape[1] < form.channels:
        images = images.repeat(1, form.channels, 1, 1)
    return images


def _squashed(images: Tensor, size: int) -> Tensor:
    return interpolate(images, size=(size, size), mode="bilinear", antialias=True)


def _padded(images: Tensor, size: int) -> Tensor:
    height, width = images.shape[-2:]
    scale = size / max(height, width)
    if scale < 1:
        sides = (max(1, round(scale * height)), max(1, round(scale * width)))
        images = interpolate(images, size=sides, mode="bilinear", antialias=True)
    rows, columns = (size - side for side in images.shape[-2:])
    left, top = columns // 2, rows // 2
    return pad(images, (left, columns - left, top, rows - top))


def pixels(picture: PIL.Image.Image, form: Form) -> NDArray[np.uint8]:
    """One picture as [C, H, W], brought to `form` from one channel if it is grey, or else RGB.

    Raises:
        ValueError: It has more than 8 bits per channel.
    """
    # Pillow would cut 16-bit and float pixels off at 255, and say nothing.
    if picture.mode.startswith(("I", "F")):
        raise ValueError("more than 8 bits")
    rows = np.array(picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB"))
    image = torch.from_numpy(np.atleast_3d(rows)).permute(2, 0, 1)  # [C, H, W]
    array: NDArray[np.uint8] = formed(image[None], form)[0].numpy()
    return array


def stacked(source: str, images: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Stack the `pixels` of all images of `source`: [N, C, H, W].

    Raises:
        DataError: They differ in size.
    """
    sizes = sorted({image.shape[1:] for image in images})
    if len(sizes) > 1:
        raise DataError(
            f"The images of '{source}' have {len(sizes)} sizes, from {sizes[0]} to {sizes[-1]}: "
            "give the setting 'image-size' a value above 0."
        )
    channels = max(len(image) for image in images)  # grey among colour: three equal channels
    return np.stack([np.broadcast_to(image, (channels, *sizes[0])) for image in images])
