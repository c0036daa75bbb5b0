"""One way to bring images to one form and size, for all data sets."""

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from client_app.errors import DataError


def resized(images: Tensor, image_size: int) -> Tensor:
    """Resize uint8 [n, C, H, W] to [n, C, image_size, image_size]; 0 leaves them as they are."""
    if image_size == 0:
        return images
    return interpolate(images, size=(image_size, image_size), mode="bilinear", antialias=True)


def pixels(picture: PIL.Image.Image, image_size: int) -> NDArray[np.uint8]:
    """One resized picture as [C, H, W]: grey with one channel, everything else as RGB.

    Raises:
        ValueError: It has more than 8 bits per channel.
    """
    # Pillow would cut 16-bit and float pixels off at 255, and say nothing.
    if picture.mode.startswith(("I", "F")):
        raise ValueError("more than 8 bits")
    rows = np.array(picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB"))
    image = torch.from_numpy(np.atleast_3d(rows)).permute(2, 0, 1)  # [C, H, W]
    array: NDArray[np.uint8] = resized(image[None], image_size)[0].numpy()
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
