"""All samplers and audits by name; each is one short file.

Shapes: `N` images, `C` channels, `H, W` pixels.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from torch import Tensor

from audit.report import Report
from client_app.release.buffer.copies import copies
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


class Audit(Protocol):
    """What decides whether synthetic images may leave a hospital."""

    def refuses(self, images: Tensor, labels: Tensor) -> Tensor:
        """Which images uint8 [N, C, H, W] of classes int64 [N] are to be discarded, bool [N]."""

    def check(self, images: Tensor, labels: Tensor) -> Report:
        """Whether images uint8 [N, C, H, W] with labels int64 [N] may leave as a whole."""

    def draw(self, path: Path, images: Tensor) -> None:
        """Draw the training images that images uint8 [N, C, H, W] are most like."""


SAMPLERS: dict[str, Callable[[Job], Sampler]] = {
    "stylegan2-ada": GANSampler,
    "dp-mean-embedding": MeanEmbeddingSampler,
}
AUDITS: dict[str, Callable[[Job], Audit]] = {"copies": copies}
