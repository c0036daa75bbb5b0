"""From features to noised sums: the part of `dp-mean-embedding` that sees features (train.freeze).

Features z have length 1. Each image becomes t: the part of z in a fixed random subspace of `SIZE`
dimensions, scaled to length 1. The statistic has, for each class, the number of images and the sum
of t. Gaussian noise is added once. `NoisedClasses` sees the statistic alone.

**The contribution of a patient has a norm of at most 1.** An image with weight w adds w to its
class's number and w t to its class's sum. They are scaled by a and b with a² + b² ≤ 1 (`SHARES`):

    w √(a² + b² ‖t‖²) ≤ w

The weights of a patient's images sum to 1 at most, and so do the norms, by the triangle inequality.
So adding or removing a patient moves the statistic by at most 1. The rest is as for images
(gan/noised_moments.py): whole numbers, rounded noise, and what the guarantee does not cover.

The subspace is fixed: it depends on no data and on no seed of a run. Each direction has the same
noise. With fewer directions the mean of a class is larger in each of them.

Shapes: `N` images, `n` synthetic ones, `d` features, `K` classes, `D` = min(d, `SIZE`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from gan.noised_moments import GRID, WEIGHT, Normal, add_noise, certain_classes, weights_of

SHARES = {"count": 0.2, "sum": 0.97}  # a, b
SIZE = 128
LEAST = 0.1  # share of E ‖t‖² within classes, at least: noise may hide all of it


@dataclass(frozen=True, eq=False)
class NoisedSums:
    """A noised statistic: all that later steps know of the features."""

    counts: NDArray[np.float64]  # images (or patients) of each class, [K]
    sums: NDArray[np.float64]  # sums of t, [K, D]
    width: int  # d
    noise: float  # standard deviation of the noise for a sensitivity of 1

    @classmethod
    def from_arrays(cls, kept: Mapping[str, NDArray[Any]]) -> "NoisedSums":
        """Read a statistic from its fields as arrays."""
        return cls(kept["counts"], kept["sums"], int(kept["width"]), float(kept["noise"]))


class NoisedClasses:
    """A normal distribution of each class of a statistic, with the same variance for all.

    All t have length 1, so the variance follows from the means: it is the rest of E ‖t‖² = 1 beside
    the squared length of the means, from which the part of their noise is subtracted.

    Attributes:
        classes: Classes that certainly have `fewest` images, int64 [.]; there may be none.
    """

    def __init__(self, noised: NoisedSums, fewest: int) -> None:
        known = certain_classes(noised.counts, fewest, noised.noise / SHARES["count"])
        self.classes, self.subspace = torch.from_numpy(known), subspace(noised.width)
        self.means = noised.sums / noised.counts.clip(1)[:, None]
        if not len(known):
            return
        counts, size = noised.counts[known], len(self.subspace)
        errors = size * (noised.noise / SHARES["sum"] / counts) ** 2
        lengths = (np.square(self.means[known]).sum(1) - errors) @ counts / counts.sum()
        self.deviation = math.sqrt(max(LEAST, 1 - lengths) / size)

    def render(self, labels: Tensor, seed: int) -> Tensor:
        """Features float32 [n, d, 1, 1] of length 1, of classes int64 [n]."""
        normal = np.random.default_rng(seed).standard_normal((len(labels), len(self.subspace)))
        drawn = (self.means[labels.cpu().numpy()] + normal * self.deviation) @ self.subspace
        return normalize(torch.from_numpy(drawn)).float()[:, :, None, None].to(labels.device)


def subspace(width: int) -> NDArray[np.float64]:
    """Orthonormal directions [D, d] of features."""
    drawn = np.random.default_rng(0).standard_normal((width, min(width, SIZE)))
    return np.asarray(np.linalg.qr(drawn)[0].T)


def project(features: Tensor) -> Tensor:
    """The part of features [N, d, 1, 1] in the subspace, scaled to length 1: [N, d, 1, 1]."""
    directions = torch.from_numpy(subspace(features.shape[1])).to(features)  # [D, d]
    return normalize(features.flatten(1) @ directions.T @ directions)[:, :, None, None]


def release_features(
    features: Tensor,
    labels: Tensor,
    classes: int,
    noise: float,
    normal: Normal,
    patients: NDArray[Any],
) -> NoisedSums:
    """As `gan.noised_moments.release`, from features float32 [N, d, 1, 1]."""
    weights, kinds = weights_of(patients), labels.cpu().numpy()
    z = features.flatten(1).cpu().double().numpy()
    # In a product of BLAS the last bits of an image depend on the number of images.
    t = np.einsum("nd,kd->nk", z, subspace(features.shape[1]))  # [N, D]
    t /= np.linalg.norm(t, axis=1, keepdims=True).clip(1e-12)
    steps = np.trunc(t * (1 - 2**-30) * GRID)  # whole numbers
    counts, sums = np.zeros(classes), np.zeros((classes, steps.shape[1]))
    np.add.at(counts, kinds, weights)
    np.add.at(sums, kinds, steps * weights[:, None])

    counts = add_noise(counts, noise / SHARES["count"], WEIGHT, normal)
    sums = add_noise(sums, noise / SHARES["sum"], GRID * WEIGHT, normal)
    return NoisedSums(counts, sums, features.shape[1], noise)
