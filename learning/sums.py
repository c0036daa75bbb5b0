"""Sums of features by class, and the closed-form classifier that they determine.

A hospital has features z of its images, with ‖z‖ at most 1. For each class c it has the weights of
its images n_c = Σ w, and the sums s_c = Σ w z and G_c = Σ w z zᵀ. The sums of several hospitals are
added. The classifier of the totals is the class-balanced ridge regression on all images:

    W = (A + λ tr(A)/d I)⁻¹ [b_1 … b_K],    A = Σ_c G_c / n_c,    b_c = s_c / n_c

and the score of class c is w_c · z: Fed3R (Fanì et al., ICML 2024, arXiv:2406.01116), analytic
federated learning (He et al., arXiv:2405.16240) and FedCGS (Guan et al., AAAI 2025,
arXiv:2503.06962). With its own sums counted 1 + κ times, a hospital gets a classifier for home.

**With noise** 1 / n_c would multiply the noise of a rare class in A. The classifier of the totals
is then the linear discriminant analysis of Gaussian classes with one covariance S and equal priors
(Fisher, 1936), whose only figures of a class are its mean m_c and its count:

    w_c = (S + λ tr(S)/d I)⁻¹ m_c    bias_c = -w_c · m_c / 2    S = Σ_c G_c / n - Σ_c n_c/n m_c m_cᵀ

n = Σ_c n_c, and negative eigenvalues of S become 0. A count below four standard deviations of its
noise counts as so many. The noise in a mean has a known length, so the means are moved towards the
mean m of all images (James and Stein, 1961), where σ_c² is the variance of a number of s_c / n_c:

    m_c = m + max(0, 1 - d σ_c² / ‖s_c / n_c - m‖²) (s_c / n_c - m)

**Sums are whole numbers, modulo 2^64.** z is truncated to multiples of 2^-12, towards zero, so that
no norm grows. All sums are multiples of 2^-24. So addition is exact: no order of hospitals changes
a bit, subtraction removes a hospital exactly, and a mask of uniform random numbers hides all sums.
The totals of 2^30 images fit.

Shapes: `n` images, `d` features, `K` classes, `t = d (d + 1) / 2` entries of a triangle.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GRID = 2**12  # steps of a feature from 0 to 1
ALIKE = 2**20  # the total weight of a hospital, if hospitals weigh alike
SHARES = {"counts": 0.2, "firsts": 0.8, "seconds": 0.56}  # of an image's norm, for noise
SHARPNESS = 10.0  # scores of the ridge are near 0 and 1; this makes probabilities of them
RIDGES = (1.0, 0.1, 0.01, 0.001)  # the values of λ to choose from
KAPPAS = (0, 1, 3, 10, 30)  # the values of κ to choose from
FOLDS = 5


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
    """The sums of some images.

    Args:
        features: z, float [n, d]; longer vectors are scaled to norm 1.
        labels: Classes, int64 [n].
        classes: Number of classes, K.
        weights: Weights of the images, from 0 to 1, float [n]; None = 1.
    """
    z = _shorten(features)
    weights = z.new_ones(len(z)) if weights is None else weights.double()
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

    Lengths are kept on average. Longer vectors are scaled to norm 1.

    `dimensions` is d'; with 0 or d nothing changes. `rng` decides on the signs, and is the same at
    all hospitals.
    """
    if dimensions in (0, features.shape[1]):
        return _shorten(features)
    return _shorten(_shorten(features) @ _signs(dimensions, features.shape[1], rng).T)


@dataclass(frozen=True, eq=False)
class Head:
    """A linear classifier; probabilities are the softmax of its scores."""

    weights: Tensor  # float [K, d]; 0 for a class that nobody has
    biases: Tensor  # float [K]

    def scores(self, features: Tensor) -> Tensor:
        """The scores [n, K] of features [n, d]."""
        return features @ self.weights.T + self.biases

    def lift(self, width: int, rng: np.random.Generator) -> "Head":
        """The classifier of d features that has the scores of this one of d' projected features."""
        dimensions = self.weights.shape[1]
        if dimensions == width:
            return self
        lifted = torch.mm(self.weights.double(), _signs(dimensions, width, rng))
        return Head(lifted.float(), self.biases)


def _signs(dimensions: int, width: int, rng: np.random.Generator) -> Tensor:
    signs = 2.0 * rng.integers(2, size=(dimensions, width)) - 1
    return torch.from_numpy(signs / dimensions**0.5)


def _shorten(vectors: Tensor) -> Tensor:
    """Vectors [n, d] as doubles; those longer than 1 are scaled to 1."""
    vectors = vectors.double().cpu()
    lengths: Tensor = vectors.norm(dim=1, keepdim=True)
    return vectors / lengths.clamp_min(1)


def solve(total: Sums, ridge: float, noise: float = 0.0) -> Head:
    """The classifier of the totals.

    `ridge` is λ. `noise` is the standard deviation of the noise of `random_noise` in the totals, in
    sensitivities; 0 = they are exact.
    """
    return _classifier(*_equations(total, noise), ridge, noise)


def _equations(total: Sums, noise: float) -> tuple[Tensor, Tensor]:
    """A [d, d] and b [d, K]; with noise S and m. Double."""
    if noise:
        return _covariance_and_means(total, noise)
    counts = total.counts.double()
    shares = torch.where(counts > 0, 1 / counts, 0)
    matrix = unfold(shares @ total.seconds.double())
    return matrix, (total.firsts.double() * shares[:, None]).T


def _covariance_and_means(total: Sums, noise: float) -> tuple[Tensor, Tensor]:
    counts, firsts, seconds = (each.double() / GRID**2 for each in vars(total).values())
    least = 4 * noise / SHARES["counts"]
    present, used = counts.clamp_min(0), counts.clamp_min(least)
    images = present.sum().clamp_min(least)
    whole = firsts.sum(dim=0) / images
    apart = firsts / used[:, None] - whole
    lengths = apart.square().sum(dim=1)  # squared, of which noise has `expected`
    expected = firsts.shape[1] * (noise / SHARES["firsts"] / used).square()
    means = whole + (1 - expected / lengths).clamp_min(0)[:, None] * apart
    spread = unfold(seconds.sum(dim=0)) / images - (means.T * present / images) @ means
    values, vectors = torch.linalg.eigh(spread)
    return (vectors * values.clamp_min(0)) @ vectors.T, means.T


def _classifier(matrix: Tensor, targets: Tensor, ridge: float, noise: float) -> Head:
    width = len(matrix)
    pull = ridge * (matrix.trace() / width).clamp_min(torch.finfo(torch.double).tiny)
    factor, failed = torch.linalg.cholesky_ex(matrix + pull * torch.eye(width, dtype=torch.double))
    if failed:  # a hospital sent sums of no images
        values, vectors = torch.linalg.eigh(matrix)
        values = values.clamp_min(0)
        values += ridge * values.mean()
        inverse = torch.where(values > 0, 1 / values, 0)
        found = vectors @ (inverse[:, None] * (vectors.T @ targets))
    else:
        found = torch.cholesky_solve(targets, factor)
    if noise:
        return Head(found.T.float(), (found * targets).sum(dim=0).float() / -2)
    return Head(torch.mul(found.T, SHARPNESS).float(), torch.zeros(targets.shape[1]))


def unfold(triangle: Tensor) -> Tensor:
    """The symmetric matrix [..., d, d] of an upper triangle [..., t]."""
    width = int((2 * triangle.shape[-1]) ** 0.5)
    rows, columns = torch.triu_indices(width, width)
    matrix = triangle.new_zeros(*triangle.shape[:-1], width, width)
    matrix[..., rows, columns] = triangle
    matrix[..., columns, rows] = triangle
    return matrix


def choose(
    others: Sums,
    own: Images,
    ridges: Sequence[float],
    kappas: Sequence[int],
    rng: np.random.Generator,
    noise: float = 0.0,
) -> tuple[float, int]:
    """λ and κ by cross-validation on a hospital's own training images, in `FOLDS` folds.

    A fold's classifier is of the others' sums and of the hospital's images outside of the fold,
    with those of earlier tasks. The score is the balanced accuracy of the images, each in its own
    fold. Of equal scores, the one with the smaller κ and then the larger λ wins.

    `others` is the total without the hospital. A patient is in one fold, by `rng`. `ridges` are
    values of λ, `kappas` of κ. `noise` is as in `solve`.
    """
    kappas, ridges = sorted(kappas), sorted(ridges, reverse=True)
    pairs = [*product(kappas, ridges)]
    if len(pairs) == 1:
        return ridges[0], kappas[0]
    folds = torch.from_numpy(rng.permutation(own.patients.max() + 1)[own.patients] % FOLDS)
    answers = torch.zeros(len(kappas), len(ridges), len(folds), dtype=torch.int64)
    for fold in range(FOLDS):
        held = folds == fold
        fit, seen = own.sums(~held), own.features[held].float()
        for k, kappa in enumerate(kappas):
            equations = _equations(others + fit * (1 + kappa), noise)
            for m, ridge in enumerate(ridges):
                head = _classifier(*equations, ridge, noise)
                answers[k, m, held] = head.scores(seen).argmax(dim=1)
    right = (answers.flatten(0, 1) == own.labels).double()  # [pairs, n]
    recalls = torch.stack([right[:, own.labels == c].mean(dim=1) for c in own.labels.unique()])
    kappa, ridge = pairs[int(recalls.mean(dim=0).argmax())]  # the first of equals
    return ridge, kappa


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

    The multiplier is the standard deviation of the noise, in sensitivities. `normal` gives so many
    standard normal numbers. With the smallest ε and δ of a run the multiplier is below 10^4, so the
    noise is far below 2^63.
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
