"""The two ranges of a pixel: bytes, for images in files, and [-1, 1], for networks."""

import torch
from torch import Tensor


def from_bytes(images: Tensor) -> Tensor:
    """Convert uint8 images to [-1, 1], float32."""
    return images.float().div_(127.5).sub_(1.0)


def to_bytes(images: Tensor) -> Tensor:
    """Convert images in about [-1, 1] to uint8; values outside are clipped."""
    return (images * 127.5 + 127.5).round().clamp(0, 255).to(torch.uint8)
