"""Sums of features by class: whole numbers that add up exactly, whatever the order of hospitals.

A hospital has features z of its images, with ‖z‖ at most 1. For each class c it has the weights of
its images n_c = Σ w, and the sums s_c = Σ w z and G_c = Σ w z zᵀ. The sums of several hospitals are
added. Their totals determine a classifier (closed_form.py).

**Sums are whole numbers, modulo 2^64.** z is truncated to multiples of 2^-12, towards zero, so that
no norm grows. All sums are multiples of 2^-24. So addition is exact: no order of hospitals changes
a bit, subtraction removes a hospital exactly, and a mask of uniform random numbers hides all sums.
The totals of 2^30 images fit, or of 4,000 hospitals that weigh alike.

Shapes: `n` images, `d` features, `K` classes, `t = d (d + 1) / 2` entries of a triangle.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GRID = 2**12  # steps of a feature from 0 to 1
ALIKE = 2**24  # the total weight of a hospital, if hospitals weigh alike
ROWS = 4096  # images whose products are in memory at once
SHARES = {"counts": 0.2, "firsts": 0.8, "seconds": 0.56}  # of an image's norm, for noise


@dataclass(frozen=True, eq=False)
class Sums:
    """The sums of some images, in units of 2^-24, modulo 2^64."""

    counts: Tensor  # weights of the images of each class, int64 [K]
    firsts: Tensor  # sums of z, int64 [K, d]
    seconds: Tensor  # upper triangles of the sums of z zᵀ, row by row, int64 [K, t]

    def __add__(self, other: "Sums") -> "Sums":
        return self._map(torch.add, other)

    def __sub__(self, other: "Sums") -> "Sums":
        return self._map(torch.sub, other)

    def __mul__(self, times: int) -> "Sums":
        return self._map(lambda own: own * times)

    def _map(self, change: Callable[..., Tensor], *others: "Sums") -> "Sums":
        return Sums(*map(change, *(vars(each).values() for each in (self, *others))))

    def select(self, classes: Tensor) -> "Sums":
        """The sums of some classes, bool [K]; those of other classes are 0."""
        return self._map(lambda own: own * classes.view(-1, *[1] * (own.dim() - 1)))

    def arrays(self) -> dict[str, NDArray[np.int64]]:
        """The sums as arrays, by name."""
        return {name: tensor.numpy() for name, tensor in vars(self).items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.int64]]) -> "Sums":
        """The sums in arrays that `arrays` has returned."""
        return cls(**{name: torch.from_numpy(array) for name, array in arrays.items()})


@dataclass(frozen=True, eq=False)
class Images:
    """The training images of a hospital."""

    features: Tensor  # z, float [n, d]
    labels: Tensor  # classes, int64 [n]
    patients: NDArray[np.int64]  # patient of each image, from 0, int64 [n]
    classes: int  # number of classes, K
    weights: Tensor | None = None  # weights of the images, from 0 to 1, float [n]; None = 1
    factor: int = 1  # a whole number that multiplies all weights of the hospital
    earlier: Sums | None = None  # of the hospital's images of earlier tasks, without the factor

    def sums(self, chosen: Tensor | None = None) -> Sums:
        """The sums of the chosen images, bool [n], and of all earlier ones; None = all images."""
        rows = torch.ones_like(self.labels, dtype=torch.bool) if chosen is None else chosen
        weights = None if self.weights is None else self.weights[rows]
        found = compute_sums(self.features[rows], self.labels[rows], self.classes, weights)
        return (found + self.earlier if self.earlier else found) * self.factor


def compute_sums(
    features: Tensor, labels: Tensor, classes: int, weights: Tensor | None = None
) -> Sums:
    """The sums of some images of K `classes`, from features z [n, d] and labels int64 [n].

    Longer vectors are scaled to norm 1. Weights are from 0 to 1, float [n]; None = 1.
    """
    weights = torch.ones(len(labels)) if weights is None else weights
    parts = zip(*(each.split(ROWS) for each in (features, labels, weights)), strict=True)
    return reduce(add, (_compute_sums(z, y, classes, w) for z, y, w in parts))


def _compute_sums(features: Tensor, labels: Tensor, classes: int, weights: Tensor) -> Sums:
    z, weights = _shorten(features), weights.double()
    steps = (z * weights.sqrt()[:, None] * GRID).trunc()
    parts = (z * weights[:, None] * GRID).trunc() * GRID
    upper = torch.triu_indices(z.shape[1], z.shape[1])
    own = [labels == c for c in range(classes)]
    # Doubles hold these whole numbers exactly, so the order of additions does not matter.
    return Sums(
        torch.stack([(weights[rows] * GRID**2).trunc().sum() for rows in own]).long(),
        torch.stack([parts[rows].sum(dim=0) for rows in own]).long(),
        torch.stack([(steps[rows].T @ steps[rows])[upper[0], upper[1]].long() for rows in own]),
    )


def project(features: Tensor, dimensions: int, rng: np.random.Generator) -> Tensor:
    """Features [n, d] in a random subspace, double [n, d']: R z / √d' with random signs R.

    Lengths are kept on average. Longer vectors are scaled to norm 1. `dimensions` is d'; with 0 or
    d nothing changes. `rng` decides on the signs, and is the same at all hospitals.
    """
    if dimensions in (0, features.shape[1]):
        return _shorten(features)
    signs = random_signs(dimensions, features.shape[1], rng)
    # In a product of BLAS the last bits of an image depend on the number of images.
    projected = np.einsum("nd,kd->nk", _shorten(features).numpy(), signs.numpy())
    return _shorten(torch.from_numpy(projected))


def random_signs(dimensions: int, width: int, rng: np.random.Generator) -> Tensor:
    """The matrix R / √d' of `project`, double [d', d]."""
    signs = 2.0 * rng.integers(2, size=(dimensions, width)) - 1
    return torch.from_numpy(signs / dimensions**0.5)


def _shorten(vectors: Tensor) -> Tensor:
    """Vectors [n, d] as doubles; those longer than 1 are scaled to 1."""
    vectors = vectors.double().cpu()
    lengths: Tensor = vectors.norm(dim=1, keepdim=True)
    return vectors / lengths.clamp_min(1)


def unfold(triangle: Tensor) -> Tensor:
    """The symmetric matrix [..., d, d] of an upper triangle [..., t]."""
    width = int((2 * triangle.shape[-1]) ** 0.5)
    rows, columns = torch.triu_indices(width, width)
    matrix = triangle.new_zeros(*triangle.shape[:-1], width, width)
    matrix[..., rows, columns] = triangle
    matrix[..., columns, rows] = triangle
    return matrix


def random_mask(like: Sums) -> Sums:
    """Uniform random numbers modulo 2^64 from the system's entropy, in the shapes of `like`."""

    def draw(tensor: Tensor) -> Tensor:
        drawn = bytearray(os.urandom(tensor.numel() * 8))
        return torch.frombuffer(drawn, dtype=torch.int64).view(tensor.shape)

    return like._map(draw)


def random_noise(
    like: Sums, multiplier: float, normal: Callable[[int], NDArray[np.float64]]
) -> Sums:
    """Gaussian noise for sums in which a patient's weights sum to 1 at most.

    The counts, first and second sums of such a patient have norms of at most 1; that of the second
    sums is the Frobenius norm, in which an entry off the diagonal counts twice. They are scaled by
    `SHARES`, whose squares sum to less than 1, so that a patient's part has a norm of at most 1.
    Each scaled number gets noise of the standard deviation `multiplier`; off the diagonal it is
    smaller by √2. Noise is rounded to whole units: no bit of a floating-point sum reveals an image
    (Mironov, CCS 2012).

    `normal` gives so many standard normal numbers. With the smallest ε and δ of a run the
    multiplier is below 10^4, so the noise is far below 2^63.
    """
    drawn = {
        name: normal(tensor.numel()).reshape(tensor.shape) * multiplier / SHARES[name] * GRID**2
        for name, tensor in vars(like).items()
    }
    width = like.firsts.shape[1]
    rows, columns = np.triu_indices(width)
    drawn["seconds"][:, rows != columns] /= 2**0.5
    return Sums.from_arrays(
        {name: np.rint(array).astype(np.int64) for name, array in drawn.items()}
    )
