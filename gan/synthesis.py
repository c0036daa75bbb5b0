"""Images from a trained generator, as tensors and as a picture of many.

Shapes: `n` images, `C` channels, `R` pixels a side, `D` size of a latent.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torchvision.utils import save_image

from gan.networks import Generator, to_bytes

PART = 512  # images of a part


def balanced_labels(count: int, present: Tensor) -> Tensor:
    """The classes that occur in `present` int64 [.], in turn: int64 [count]."""
    classes: Tensor = torch.unique(present)
    return classes.repeat(count // len(classes) + 1)[:count]


def render_parts(
    render_some: Callable[[Tensor, int], Tensor], labels: Tensor, seed: int
) -> Iterator[Tensor]:
    """Images of classes int64 [n] in parts, so that memory holds a part of them; each has a seed.

    `render_some` renders images of classes with a seed.
    """
    for number, part in enumerate(labels.split(PART)):
        yield render_some(part, seed + number)


@torch.no_grad()
def render(generator: Generator, labels: Tensor, seed: int, batch: int = 64) -> Tensor:
    """Render images uint8 [n, C, R, R] of classes int64 [n], the same ones at every call.

    They are on the labels' device. `seed` is that of latents and noise. `batch` images are made at
    once; another number gives other noise.
    """
    device = next(generator.parameters()).device
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        z = torch.randn(len(labels), generator.latent)
        made = [
            to_bytes(generator(c.to(device), part.to(device))).to(labels.device)
            for c, part in zip(labels.split(batch), z.split(batch), strict=True)
        ]
    return torch.cat(made)


def save_grid(path: Path, images: Tensor, columns: int, height: int = 32) -> None:
    """Write images uint8 [n, C, H, W] as one PNG file, `columns` in a row.

    Small images are enlarged by a whole factor, to at most `height` pixels. Each has a black border
    of two pixels.
    """
    factor = max(1, height // images.shape[2])
    large = images.cpu().repeat_interleave(factor, 2).repeat_interleave(factor, 3)
    save_image(large / 255, path, nrow=columns)
