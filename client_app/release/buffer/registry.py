"""All samplers by name; each is one short file.

Shapes: `N` images, `C` channels, `H, W` pixels.
"""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from client_app.release.buffer.gan_sampler import GANSampler
from client_app.release.buffer.job import Job
from client_app.release.buffer.mean_embedding import MeanEmbeddingSampler


class Sampler(Protocol):
    """What has learnt from a hospital's images and renders others.

    Attributes:
        figures: What was measured of it, under declared names.
        classes: Which it can render, int64 [.].
    """

    figures: dict[str, float]
    classes: Tensor

    def render(self, labels: Tensor, seed: int) -> Tensor:
        """Images uint8 [N, C, H, W] of classes int64 [N], in the size of the hospital's own."""


SAMPLERS: dict[str, Callable[[Job], Sampler]] = {
    "stylegan2-ada": GANSampler,
    "dp-mean-embedding": MeanEmbeddingSampler,
}
