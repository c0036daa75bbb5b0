"""The two ranges of a pixel: bytes, as images are kept, and [-1, 1], as networks have them."""

import torch
from torch import Tensor


def from_bytes(images: Tensor) -> Tensor:
    """Bring uint8 images to [-1, 1], as float32."""
    return images.float().div_(127.5).sub_(1.0)


def to_bytes(images: Tensor) -> Tensor:
    """Bring images in about [-1, 1] to uint8; what is outside is clipped."""
    return (images * 127.5 + 127.5).round().clamp(0, 255).to(torch.uint8)
