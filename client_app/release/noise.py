"""Noise for figures: how much one patient can change them, and how wide noise must be for that.

`client_app.release.disclosure` says which figures get it, and why. Answers with normal noise
compose as in Dong, Roth and Su, arXiv:1905.02383: if each tells two cases apart by µ_k standard
deviations, all tell them apart by √(Σ µ_k²).
"""

import hmac
import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from client_app.datasets.pool import Indices

TOLD = 4.0
COARSEST = 0.25


class Noise:
    """Noise that follows from a secret of the hospital: the same question has the same answer.

    Args:
        secret: The hospital's.
    """

    def __init__(self, secret: bytes) -> None:
        self.secret = secret

    def draw(self, name: str, model: str) -> float:
        """A standard normal number, always the same for one figure of one model here."""
        drawn = hmac.digest(self.secret, f"{name} {model}".encode(), "sha256")
        return NormalDist().inv_cdf((int.from_bytes(drawn[:6]) + 0.5) / 2**48)

    def table(self, name: str, model: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """A standard normal number for each count of a table."""
        cells = [self.draw(f"{name} {cell}", model) for cell in range(math.prod(shape))]
        return np.array(cells).reshape(shape)

    def share(self, name: str, model: str, value: float, step: float) -> float:
        """A share with noise of one step, as a multiple of the step in [0, 1]."""
        return min(max(step * round(value / step + self.draw(name, model)), 0.0), 1.0)

    def permutation(self, name: bytes, count: int) -> Indices:
        """Numbers from 0 to `count` - 1 in an order of the hospital's own."""
        key = hmac.digest(self.secret, name, "sha256")
        return np.random.default_rng(int.from_bytes(key)).permutation(count)


def effects(patients: Indices, labels: Indices) -> dict[str, float]:
    """How much one patient's images can change each figure, at the most.

    Args:
        patients: Whose the images are, [n].
        labels: Their classes, [n].
    """
    if not len(labels):
        return {}
    owner = np.unique(patients, return_inverse=True)[1]
    classes, label, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    cells, images = np.unique(owner * len(classes) + label, return_counts=True)
    owner, label = np.divmod(cells, len(classes))  # from here on of each patient in each class
    share = images / sizes[label]
    images_of, share_of = np.bincount(owner, images), np.bincount(owner, share)
    found = {
        "accuracy": images_of.max() / len(labels),
        "balanced-accuracy": share_of.max() / len(classes),
    }
    if len(classes) > 1:  # a patient's images also stand against those of a class
        against = len(labels) - sizes
        stands = images_of * (1 / against).sum() - np.bincount(owner, images / against[label])
        found["auroc"] = min((share_of + stands).max() / len(classes), 1.0)
    of_class = {f"right-of-class-{c}": share[label == k].max() for k, c in enumerate(classes)}
    return {name: float(effect) for name, effect in (found | of_class).items()}


def effects_of_tasks(patients: Indices, tasks: Indices) -> dict[str, float]:
    """How much one patient's images can change the accuracy of each task, at the most.

    A patient may have images in several tasks. So the effects are multiplied by a factor: the
    largest length of the vector of one patient's effects, each as a share of the largest in its
    task. With noise in proportion, all tasks together tell of a patient no more than one figure.

    Args:
        patients: Whose the images are, [n].
        tasks: The task of each, [n].
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


def step_of(effect: float, models: int = 0) -> float:
    """Between two values of a figure, and the standard deviation of its noise."""
    effect = 2.0 ** (math.ceil(2 * math.log2(effect)) / 2)
    return max(math.sqrt(effect) / 2, effect * math.sqrt(models) / TOLD)
