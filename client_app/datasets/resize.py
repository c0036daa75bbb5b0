"""One way to resize images, for all data sets."""

from torch import Tensor
from torch.nn.functional import interpolate


def resized(images: Tensor, image_size: int) -> Tensor:
    """Resize uint8 [n, C, H, W] to [n, C, image_size, image_size]; 0 leaves them as they are."""
    if image_size == 0:
        return images
    return interpolate(images, size=(image_size, image_size), mode="bilinear", antialias=True)
