"""Synthetic features from a normal distribution of each class, with the same variances for all.

FedPFT (Beitollahi et al. 2024, arXiv:2402.01862) fits Gaussian mixtures to the features of each
class. Here a class has one component, and the classes share the variances v of features about the
mean of their class:

    z ~ N(µ_c, diag(v)),    then z / ‖z‖

With a covariance of rank 128, 512 drawn features were no more useful at five skin centres (tried
once, by hand).

Shapes: `N` images, `n` synthetic ones, `d` features, `K` classes.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize


class ClassGaussians:
    """The distributions of features [N, d, 1, 1] of classes int64 [N], N > 0.

    Args:
        spread: Features and classes that give the variances; None = the same.
        streams: The random numbers of each class, whatever the seed; None = the seed gives them.

    Attributes:
        figures: None: nothing is trained.
        classes: Classes of the features, int64 [K].
    """

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        spread: tuple[Tensor, Tensor] | None = None,
        streams: Mapping[int, np.random.Generator] | None = None,
    ) -> None:
        self.figures: dict[str, float] = {}
        self.classes = labels.unique()
        self.means, self.deviations = _fit(features, labels)
        if spread:
            self.deviations = _fit(*spread)[1]
        self.streams = streams

    def render(self, labels: Tensor, seed: int) -> Tensor:
        """Features float32 [n, d, 1, 1] of length 1, of classes int64 [n]."""
        kinds, width = labels.cpu(), len(self.deviations)
        if self.streams is None:
            normal = np.random.default_rng(seed).standard_normal((len(kinds), width))
        else:
            normal = np.empty((len(kinds), width))
            for label in kinds.unique().tolist():
                own = kinds.numpy() == label
                normal[own] = self.streams[label].standard_normal((int(own.sum()), width))
        drawn = self.means[kinds] + torch.from_numpy(normal) * self.deviations
        return normalize(drawn).float()[:, :, None, None].to(labels.device)


def _fit(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Means [K, d] of the classes, and standard deviations [d] about them; float64."""
    vectors, kinds = features.flatten(1).cpu().double(), labels.cpu()
    means = torch.zeros(int(kinds.max()) + 1, vectors.shape[1], dtype=torch.float64)
    for label in kinds.unique():
        means[label] = vectors[kinds == label].mean(dim=0)
    return means, (vectors - means[kinds]).square().mean(dim=0).sqrt()
