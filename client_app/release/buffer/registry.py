"""All samplers by name; each is one short file.

Shapes: `N` images, `C` channels, `H, W` pixels.
"""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from client_app.release.buffer.class_gaussians import class_gaussians
from client_app.release.buffer.gan_sampler import GANSampler
from client_app.release.buffer.job import Job
from client_app.release.buffer.mean_embedding import MeanEmbeddingSampler


class Sampler(Protocol):
    """A sampler, which has learnt from a hospital's images and renders synthetic images."""

    figures: dict[str, float]  # its measured figures, under declared names
    classes: Tensor  # classes that it can render, int64 [.]

    def render(self, labels: Tensor, seed: int) -> Tensor:
        """Images uint8 [N, C, H, W] of classes int64 [N], in the size of the hospital's own.

        On features they are features, float32 [N, d, 1, 1] of length 1.
        """


SAMPLERS: dict[str, Callable[[Job], Sampler]] = {
    "stylegan2-ada": GANSampler,
    "dp-mean-embedding": MeanEmbeddingSampler,
    "class-gaussians": class_gaussians,
}
