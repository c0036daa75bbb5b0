"""The classifier in closed form that sums of features (sums.py) determine: nothing is trained.

From the totals n_c, s_c and G_c of all hospitals it is the class-balanced ridge regression on all
images:

    W = (A + λ tr(A)/d I)⁻¹ [b_1 … b_K],    A = Σ_c G_c / n_c,    b_c = s_c / n_c

and the score of class c is w_c · z: Fed3R (Fanì et al., ICML 2024, arXiv:2406.01116), analytic
federated learning (He et al., arXiv:2405.16240) and FedCGS (Guan et al., AAAI 2025,
arXiv:2503.06962). With its own sums counted 1 + κ times, a hospital gets a classifier for home.

**With noise** 1 / n_c would multiply the noise of a rare class in A. The classifier is then linear
discriminant analysis: Gaussian classes with equal priors and one covariance S (Fisher, 1936).

    w_c = (S + λ tr(S)/d I)⁻¹ m_c    bias_c = -w_c · m_c / 2    S = Σ_c G_c / n - Σ_c n_c/n m_c m_cᵀ

Here n = Σ_c n_c, and negative eigenvalues of S become 0. A count below four standard deviations of
its noise counts as so many. The noise in a mean has a known length. So means are moved towards the
mean m of all images (James and Stein, 1961); σ_c² is the variance of each number of s_c / n_c:

    m_c = m + max(0, 1 - d σ_c² / ‖s_c / n_c - m‖²) (s_c / n_c - m)

Shapes: `n` images, `d` features, `K` classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from learning.errors import check_deadline
from learning.sums import GRID, SHARES, Images, Sums, random_signs, unfold

SHARPNESS = 10.0  # scores of the ridge are near 0 and 1; this makes probabilities of them
RIDGES = (1.0, 0.1, 0.01, 0.001)  # the values of λ to choose from
KAPPAS = (0, 1, 3, 10, 30)  # the values of κ to choose from
FOLDS = 5
WORK = "The choice of a classifier"  # in the error after a deadline


@dataclass(frozen=True, eq=False)
class Head:
    """A linear classifier; probabilities are the softmax of its scores."""

    weights: Tensor  # float [K, d]; 0 for a class that nobody has
    biases: Tensor  # float [K]

    def scores(self, features: Tensor) -> Tensor:
        """The scores [n, K] of features [n, d]."""
        return features @ self.weights.T + self.biases

    def lift(self, width: int, rng: np.random.Generator) -> "Head":
        """The classifier of d features that has the scores of this one of d' projected features.

        Its scores are those of projections that `project` has not shortened.
        """
        dimensions = self.weights.shape[1]
        if dimensions == width:
            return self
        lifted = torch.mm(self.weights.double(), random_signs(dimensions, width, rng))
        return Head(lifted.float(), self.biases)


def solve(total: Sums, ridge: float, noise: float = 0.0) -> Head:
    """The classifier of the totals.

    `ridge` is λ. `noise` is the standard deviation of the noise of `random_noise` in the totals, in
    sensitivities; 0 = they are exact.
    """
    return _classifier(*_equations(total, noise), ridge, noise)


def _equations(total: Sums, noise: float) -> tuple[Tensor, Tensor]:
    """A [d, d] and b [d, K], double; with noise S and m."""
    if noise:
        return _covariance_and_means(total, noise)
    counts = total.counts.double()
    shares = torch.where(counts > 0, 1 / counts, 0)
    matrix = unfold(shares @ total.seconds.double())
    return matrix, (total.firsts.double() * shares[:, None]).T


def _covariance_and_means(total: Sums, noise: float) -> tuple[Tensor, Tensor]:
    """S [d, d] and m [d, K], double."""
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


def choose(
    others: Sums,
    own: Images,
    ridges: Sequence[float],
    kappas: Sequence[int],
    rng: np.random.Generator,
    noise: float = 0.0,
    deadline: float = math.inf,
) -> tuple[float, int]:
    """λ and κ by cross-validation on a hospital's own training images, in `FOLDS` folds.

    A fold's classifier is of the others' sums and of the hospital's images outside of the fold,
    with those of earlier tasks. The score is the balanced accuracy of the images, each in its own
    fold. Of equal scores, the one with the smaller κ and then the larger λ wins. `others` is the
    total without the hospital. A patient is in one fold, by `rng`. `noise` is as in `solve`.

    Raises:
        DeadlineError: The deadline has passed, on the clock of `time.monotonic`.
    """
    check_deadline(deadline, WORK)
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
            check_deadline(deadline, WORK)
            equations = _equations(others + fit * (1 + kappa), noise)
            for m, ridge in enumerate(ridges):
                head = _classifier(*equations, ridge, noise)
                answers[k, m, held] = head.scores(seen).argmax(dim=1)
    right = (answers.flatten(0, 1) == own.labels).double()  # [pairs, n]
    recalls = torch.stack([right[:, own.labels == c].mean(dim=1) for c in own.labels.unique()])
    kappa, ridge = pairs[int(recalls.mean(dim=0).argmax())]  # the first of equals
    return ridge, kappa
