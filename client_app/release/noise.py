"""Noise of figures, from the effect of one patient.

`client_app.release.disclosure` explains the noise of each figure. Answers with normal noise compose
as in Dong, Roth and Su, arXiv:1905.02383: if each separates two cases by µ_k standard deviations,
all together separate them by √(Σ µ_k²).
"""

import hmac
import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from client_app.datasets.pool import Indices
from learning.randomness import secret_rng

SEPARATION = 4.0
COARSEST = 0.25


class Noise:
    """Noise from a secret of the hospital: the same question has the same answer."""

    def __init__(self, secret: bytes) -> None:  # a dataclass would print the secret
        self.secret = secret

    def draw(self, name: str, model: str) -> float:
        """A standard normal number, always the same for one figure and one model."""
        drawn = hmac.digest(self.secret, f"{name} {model}".encode(), "sha256")
        return NormalDist().inv_cdf((int.from_bytes(drawn[:6]) + 0.5) / 2**48)

    def table(self, name: str, model: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """A standard normal number for each cell of a table."""
        cells = [self.draw(f"{name} {cell}", model) for cell in range(math.prod(shape))]
        return np.array(cells).reshape(shape)

    def share(self, name: str, model: str, value: float, step: float) -> float:
        """A share with noise of one step, as a multiple of the step in [0, 1]."""
        return min(max(step * round(value / step + self.draw(name, model)), 0.0), 1.0)

    def permutation(self, name: bytes, count: int) -> Indices:
        """Numbers from 0 to `count` - 1 in an order that follows from the secret."""
        key = hmac.digest(self.secret, name, "sha256")
        return secret_rng(key).permutation(count)


def effects(patients: Indices, labels: Indices) -> dict[str, float]:
    """The largest change of each figure by one patient's images.

    `patients` [n] and `labels` [n] are of the images.
    """
    if not len(labels):
        return {}
    owner = np.unique(patients, return_inverse=True)[1]
    classes, label, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    cells, images = np.unique(owner * len(classes) + label, return_counts=True)
    owner, label = np.divmod(cells, len(classes))  # from here on for each patient in each class
    share = images / sizes[label]
    images_of, share_of = np.bincount(owner, images), np.bincount(owner, share)
    found = {
        "accuracy": images_of.max() / len(labels),
        "balanced-accuracy": share_of.max() / len(classes),
    }
    if len(classes) > 1:  # an AUROC also compares a patient's images with those of other classes
        against = len(labels) - sizes
        stands = images_of * (1 / against).sum() - np.bincount(owner, images / against[label])
        found["auroc"] = min((share_of + stands).max() / len(classes), 1.0)
    of_class = {f"right-of-class-{c}": share[label == k].max() for k, c in enumerate(classes)}
    return {name: float(effect) for name, effect in (found | of_class).items()}


def effects_of_tasks(patients: Indices, tasks: Indices) -> dict[str, float]:
    """The largest change of each task's accuracy by one patient's images, times a factor.

    Divide each effect of a patient by the largest effect in its task. The factor is the largest
    length of the vector of these shares. With noise in proportion, all tasks together reveal no
    more of a patient than one figure.

    `patients` [n] and `tasks` [n] are of the images.
    """
    owner = np.unique(patients, return_inverse=True)[1]
    present, task, sizes = np.unique(tasks, return_inverse=True, return_counts=True)
    table = np.zeros((int(owner.max(initial=-1)) + 1, len(present)))  # [patients, tasks]
    np.add.at(table, (owner, task), 1)
    shares = table / sizes
    largest = shares.max(axis=0, initial=0)
    length = np.linalg.norm(shares / largest, axis=1).max(initial=1)
    return {
        f"accuracy-of-task-{t}": float(min(share * length, 1.0))
        for t, share in zip(present.tolist(), largest.tolist(), strict=True)
    }


def round_up(number: float) -> float:
    """A number above 0, rounded for release: up to a power of √2."""
    return float(2.0 ** (math.ceil(2 * math.log2(number)) / 2))


def step_of(effect: float, models: int = 0) -> float:
    """The step between values of a figure, which is also the standard deviation of its noise."""
    effect = round_up(effect)
    return max(math.sqrt(effect) / 2, effect * math.sqrt(models) / SEPARATION)
