"""Membership attacks on sums of features: did a hospital add an image?

The attacker sees the hospital's own sums (learning/sums.py), which masks hide from everybody: this
is the worst case. With the sums n_c, s_c and G_c of class c, an image with features z gets a score
by

- difference: the attacker knows the images of all other patients. The rest of the sums is the
  part s, G of one patient, with the noise. The score is a² s · z + b² zᵀ G z, where noise has the
  deviations 1/a and 1/b: for Gaussian noise the best test is linear (Neyman and Pearson), as in
  Dwork et al., "Robust traceability from trace amounts", FOCS 2015. Held-out images are
  scored against the part of the same patient;
- span: minus the squared distance of z to the first n_c eigenvectors of G_c, for classes with fewer
  than d images. Their features are in this span;
- likelihood: the log-likelihood of a normal distribution with the class's mean and covariance.

Each attack compares training images with held-out images of the same classes (`contrast`), one of
each patient.

Shapes: `N` images, `d` features, `K` classes.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from audit.membership import Scores, contrast
from audit.report import Report
from learning.errors import check_deadline
from learning.samples import one_of_each

WORK = "The check of sums"  # in the error after a deadline
MOST = 500  # patients in the attack by difference
SHRINKAGE = 0.1  # of a covariance to its mean variance


@dataclass(frozen=True, eq=False)
class Features:
    """Features of images."""

    values: Tensor  # z, double [N, d]
    labels: Tensor  # classes, int64 [N]
    patients: Tensor  # patients, int64 [N]
    weights: Tensor  # weights in the sums, double [N]

    def __getitem__(self, chosen: Tensor) -> "Features":
        return Features(*(each[chosen] for each in vars(self).values()))

    def select_class(self, label: int) -> Tensor:
        """The features of a class."""
        return self.values[self.labels == label]


@dataclass(frozen=True, eq=False)
class Moments:
    """Sums of features by class."""

    counts: Tensor  # double [K]
    firsts: Tensor  # double [K, d]
    seconds: Tensor  # double [K, d, d]


def audit_sums(
    sent: Moments,
    noise: Moments,
    members: Features,
    others: Features,
    rng: np.random.Generator,
    scales: tuple[float, float] = (1.0, 1.0),
    deadline: float = math.inf,
) -> Report:
    """Attack sums before they leave.

    Args:
        sent: The sums that would leave, with noise.
        noise: Their noise.
        members: The training images of the classes that add their sums.
        others: Held-out images.
        rng: Decides on the patients of the attack by difference.
        scales: a and b of the attack by difference.
        deadline: Time limit, on the clock of `time.monotonic`.

    Returns:
        The leaks of all attacks, and their evidence. An attack is missing if no class for it has
        two members and a held-out image.

    Raises:
        DeadlineError: The deadline has passed.
    """
    small = sent.counts.round() < members.values.shape[1]
    pairs = {
        "difference": _score_by_difference(noise, members, others, rng, scales, deadline),
        "span": _score_by_class(_span, sent, members[small[members.labels]], others, deadline),
        "likelihood": _score_by_class(_likelihood, sent, members, others, deadline),
    }
    found = {
        name: contrast(*pair) for name, pair in pairs.items() if len(pair[0]) > 1 and len(pair[1])
    }
    evidence = {name: asdict(each) for name, each in found.items()}
    return Report(leaks=tuple(each.leak() for each in found.values()), evidence=evidence)


def _score_by_difference(
    noise: Moments,
    members: Features,
    others: Features,
    rng: np.random.Generator,
    scales: tuple[float, float],
    deadline: float,
) -> tuple[Scores, Scores]:
    """Scores of an image of each of some patients, and of as many held-out images."""
    first, second = (scale**2 for scale in scales)
    found: list[tuple[float, float]] = []
    for patient in rng.permutation(members.patients.unique().numpy())[:MOST].tolist():
        check_deadline(deadline, WORK)
        own = members.patients == patient
        z, weights, labels = members.values[own], members.weights[own], members.labels[own]
        chosen = int(labels[rng.integers(len(labels))])
        outside = others.select_class(chosen)
        if not len(outside):
            continue
        mine, weight = z[labels == chosen], weights[labels == chosen]
        tried = torch.stack([mine[0], outside[int(rng.integers(len(outside)))]])
        alike = tried @ mine.T  # [2, images]
        in_noise = torch.einsum("td,de,te->t", tried, noise.seconds[chosen], tried)
        scores = first * (alike @ weight + tried @ noise.firsts[chosen])
        scores += second * (alike.square() @ weight + in_noise)
        found.append((scores[0].item(), scores[1].item()))
    own_scores, other_scores = np.array(found).reshape(-1, 2).T
    return own_scores, other_scores


def _score_by_class(
    score: Callable[[Moments, int, Tensor], Tensor],
    sent: Moments,
    members: Features,
    others: Features,
    deadline: float,
) -> tuple[Scores, Scores]:
    """Scores of one image of each patient whose class has members and others."""
    members, others = (
        each[one_of_each(each.patients.numpy()).sort().values] for each in (members, others)
    )
    own, foreign = [np.empty(0)], [np.empty(0)]
    for label in members.labels.unique().tolist():
        check_deadline(deadline, WORK)
        if len(outside := others.select_class(label)):
            own.append(score(sent, label, members.select_class(label)).numpy())
            foreign.append(score(sent, label, outside).numpy())
    return np.concatenate(own), np.concatenate(foreign)


def _span(sent: Moments, label: int, z: Tensor) -> Tensor:
    """Scores [n] of features [n, d]: minus the squared distance to the span."""
    vectors = torch.linalg.eigh(sent.seconds[label])[1]  # eigenvalues rise
    most = max(round(sent.counts[label].item()), 1)
    inside = z @ vectors[:, -most:]
    return torch.sub(inside.square().sum(dim=1), z.square().sum(dim=1))


def _likelihood(sent: Moments, label: int, z: Tensor) -> Tensor:
    """Scores [n] of features [n, d]: log-densities, but for a constant of all classes."""
    count = sent.counts[label].clamp_min(1)
    mean = sent.firsts[label] / count
    values, vectors = torch.linalg.eigh(sent.seconds[label] / count - mean.outer(mean))
    values = values.clamp_min(0)
    values = (1 - SHRINKAGE) * values + SHRINKAGE * values.mean().clamp_min(1e-12)
    off = (z - mean) @ vectors
    return torch.sub(-(off.square() / values).sum(dim=1), values.log().sum()) / 2
