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


def _move(images: Tensor, shift: float, zoom: float, angle: float) -> Tensor:
    c, s = cos(radians(angle)) / zoom, sin(radians(angle)) / zoom
    pose = images.new_tensor([[c, -s, shift], [s, c, shift]]).expand(len(images), 2, 3)
    grid = affine_grid(pose, list(images.shape), align_corners=False)
    return grid_sample(images, grid, padding_mode="border", align_corners=False)


DRESSES: tuple[Callable[[Tensor, torch.Generator], Tensor], ...] = (
    lambda x, rng: x,
    lambda x, rng: x + 20 * torch.randn(x.shape, generator=rng).to(x.device),
    lambda x, rng: _move(x, 0.2, 1.0, 0.0),
    lambda x, rng: blur(x, 0.6 if x.shape[2] <= 16 else 1.0),
    lambda x, rng: _move(x, 0.0, 1.2, 0.0),
    lambda x, rng: (x + x.roll(1, 0)) / 2,  # mixed with another image
    lambda x, rng: 255 * (x / 255) ** 0.6,  # lighter
    lambda x, rng: _move(x, 0.0, 1.0, 10.0),
)
