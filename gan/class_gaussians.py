"""Synthetic features from a normal distribution of each class, with the same variances for all.

FedPFT (Beitollahi et al. 2024, arXiv:2402.01862) fits Gaussian mixtures to the features of each
class. Here a class has one component, and the classes share the variances v of features about the
mean of their class:

    z ~ N(µ_c, diag(v)),    then z / ‖z‖

With a covariance of rank 128, 512 drawn features were no more useful at five skin centres (tried
once, by hand).

Shapes: `N` images, `n` synthetic ones, `d` features, `K` classes.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize


class ClassGaussians:
    """The distributions of features [N, d, 1, 1] of classes int64 [N], N > 0.

    Attributes:
        figures: None: nothing is trained.
        classes: Classes of the features, int64 [K].
    """

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        self.figures: dict[str, float] = {}
        self.classes = labels.unique()
        vectors, kinds = features.flatten(1).cpu().double(), labels.cpu()
        self.means = torch.zeros(int(kinds.max()) + 1, vectors.shape[1], dtype=torch.float64)
        for label in kinds.unique():
            self.means[label] = vectors[kinds == label].mean(dim=0)
        self.deviations = (vectors - self.means[kinds]).square().mean(dim=0).sqrt()  # [d]

    def render(self, labels: Tensor, seed: int) -> Tensor:
        """Features float32 [n, d, 1, 1] of length 1, of classes int64 [n]."""
        normal = np.random.default_rng(seed).standard_normal((len(labels), len(self.deviations)))
        drawn = self.means[labels.cpu()] + torch.from_numpy(normal) * self.deviations
        return normalize(drawn).float()[:, :, None, None].to(labels.device)
