"""What a model is worth on test images: shares of them, and how sure these are.

Shapes: `n` images, `K` classes, `G` patients, `A` shares, `B` resamples, `T` thresholds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import floor, inf, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learning.intervals import Estimate, auroc_error, combine, wilson

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

BINS = 10  # of the reliability plot, of equal width in confidence
# Resamples of few images, and the least of many: their standard errors are off by 2 and by 5 %.
RESAMPLES, FEWEST = 1000, 200
WEIGHTS = 2**21  # of images, in all resamples together if that leaves the fewest
ROWS = 250  # resamples that are in memory at a time
# The probabilities of a class among which its operating point is chosen: few, because what the
# choice tells of a single training image grows with their number (client_app.release.details).
THRESHOLDS = (0.001, 0.005, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 0.995, 0.999)


def count_above(scores: Floats, labels: Indices) -> tuple[Floats, Floats]:
    """How many images of each class reach each threshold for it, and how many of all others.

    Args:
        scores: Probabilities [n, K].
        labels: Classes [n].

    Returns:
        Twice [K, T].
    """
    reached = scores[:, :, None] >= np.array(THRESHOLDS)  # [n, K, T]
    own = labels[:, None] == np.arange(scores.shape[1])  # [n, K]
    return (
        (reached & own[:, :, None]).sum(axis=0, dtype=float),
        (reached & ~own[:, :, None]).sum(axis=0, dtype=float),
    )


def operating_point(own: Floats, others: Floats, sizes: Floats) -> Floats:
    """The threshold [K] at which each class against the rest has the largest Youden's J.

    J is the share of the class that reaches the threshold, less that of the others (Youden, Cancer
    3, 1950). Of thresholds that are equally good it is the middle one: a model that knows these
    images by heart separates them at any.

    Args:
        own: What `count_above` counts [K, T], on images that are not tested on.
        others: The same.
        sizes: Images of each class [K].

    Returns:
        NaN for a class that none or all of the images show.
    """
    against = sizes.sum() - sizes
    with np.errstate(invalid="ignore", divide="ignore"):
        gained = own / sizes[:, None] - others / against[:, None]
    chosen = np.full(len(sizes), np.nan)
    for k in np.flatnonzero((sizes > 0) & (against > 0)):
        best = np.flatnonzero(gained[k] >= gained[k].max() - 1e-12)
        chosen[k] = THRESHOLDS[best[len(best) // 2]]
    return chosen


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a model says of test images.

    Attributes:
        scores: Its probabilities [n, K].
        labels: What the images show [n].
        patients: Whose each image is [n], from 0 to G - 1.
        thresholds: The operating point of each class [K]; NaN = it has none.
    """

    scores: Floats
    labels: Indices
    patients: Indices
    thresholds: Floats

    @cached_property
    def answers(self) -> Indices:
        """The most probable class [n]."""
        answers: Indices = self.scores.argmax(axis=1)
        return answers

    @cached_property
    def confusion(self) -> Floats:
        """How many images of each class (rows) have each answer [K, K]."""
        count = self.scores.shape[1]
        cells = np.bincount(self.labels * count + self.answers, minlength=count**2)
        return cells.reshape(count, count).astype(float)

    @cached_property
    def bins(self) -> Indices:
        """The bin of each image [n], by the probability of its answer."""
        return np.minimum((self.confidence * BINS).astype(np.int64), BINS - 1)

    @cached_property
    def confidence(self) -> Floats:
        """The probability of the answer [n]."""
        confidence: Floats = self.scores.max(axis=1)
        return confidence

    @cached_property
    def off(self) -> Floats:
        """Right answers less the confidence in them, of each patient in each bin [BINS, G]."""
        return self._per_patient(self.bins, (self.answers == self.labels) - self.confidence, BINS)

    @property
    def calibration_error(self) -> float:
        """The expected calibration error (Guo et al., ICML 2017), over `BINS` bins."""
        return float(np.abs(self.off.sum(axis=1)).sum() / len(self.labels))

    @cached_property
    def shares(self) -> "Shares":
        """Every share that is estimated, of those that have an image."""
        right = self.answers == self.labels
        every = np.ones_like(right)
        found = {"accuracy": (every, right)}
        for k in range(self.scores.shape[1]):
            own, reached = self.labels == k, self.scores[:, k] >= self.thresholds[k]
            found[f"recall-of-class-{k}"] = own, right
            if np.isfinite(self.thresholds[k]):
                found[f"sensitivity-of-class-{k}"] = own, reached
                found[f"specificity-of-class-{k}"] = ~own, ~reached
        for b in range(BINS):
            found[f"right-in-bin-{b}"] = self.bins == b, right
        found = {name: masks for name, masks in found.items() if masks[0].any()}
        images, hits = (
            np.stack([self._per_patient(None, mask, 1)[0] for mask in masks])
            for masks in (
                [mask for mask, _ in found.values()],
                [mask & hit for mask, hit in found.values()],
            )
        )
        return Shares(list(found), images, hits)

    def _per_patient(self, rows: Indices | None, values: NDArray[Any], count: int) -> Floats:
        """Sums of values [n] by row [n] and patient, [count, G]."""
        size = int(self.patients.max()) + 1
        cells = self.patients if rows is None else rows * size + self.patients
        sums = np.bincount(cells, weights=values, minlength=count * size)
        return sums.astype(float).reshape(count, size)


@dataclass(frozen=True, eq=False)
class Shares:
    """Shares of images that are right, each in its own sense.

    Attributes:
        names: Of the shares [A].
        images: How many images of each patient a share is of [A, G].
        right: How many of these are right [A, G].
    """

    names: list[str]
    images: Floats
    right: Floats

    @property
    def values(self) -> dict[str, float]:
        """The shares."""
        return dict(zip(self.names, self.right.sum(axis=1) / self.images.sum(axis=1), strict=True))

    @cached_property
    def worth(self) -> dict[str, float]:
        """The effective numbers of patients, if all images of one are right or all are wrong.

        It is the effective sample size (Σ m)² / Σ m² of patients with m images each (Kish, Survey
        Sampling, 1965), the least that a share can be worth. It does not depend on the model.
        """
        numbers = self.images.sum(axis=1) ** 2 / (self.images**2).sum(axis=1)
        return dict(zip(self.names, numbers, strict=True))

    def alike(self, names: list[str]) -> Floats:
        """The correlation of some shares in that case: of patients who have images in both."""
        rows = self.images[[self.names.index(name) for name in names]]
        products = rows @ rows.T
        scale = np.sqrt(np.diag(products))
        alike: Floats = products / np.outer(scale, scale)
        return alike


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """The figures of a model over resamples of patients.

    Attributes:
        shares: [B, A]; NaN where a resample has no such image.
        areas: Of each class that there is against the rest [B, P]; the same.
        calibration_error: [B].
    """

    shares: Floats
    areas: Floats
    calibration_error: Floats

    @classmethod
    def of(cls, outcome: Outcome, rng: np.random.Generator) -> "Bootstrap":
        """Draw as many patients as there are, with replacement, `RESAMPLES` times."""
        # scipy.stats.bootstrap draws single images, not patients with all of theirs.
        shares = outcome.shares
        parts = []
        with np.errstate(invalid="ignore", divide="ignore"):
            for weights in _weights(outcome, rng):  # [b, G]
                images = weights @ shares.images.T
                off = np.abs(weights @ outcome.off.T).sum(axis=1)
                each = images[:, shares.names.index("accuracy")]
                areas = _areas(outcome, weights.T[outcome.patients])
                parts.append((weights @ shares.right.T / images, areas, off / each))
        return cls(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _weights(outcome: Outcome, rng: np.random.Generator) -> Iterator[Floats]:
    """How often each patient is in each resample, some resamples [b, G] at a time."""
    count = int(outcome.patients.max()) + 1
    resamples = min(RESAMPLES, max(FEWEST, WEIGHTS // len(outcome.labels)))
    for start in range(0, resamples, ROWS):
        size = min(ROWS, resamples - start)
        drawn = rng.integers(count, size=(size, count)) + count * np.arange(size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=size * count)
        yield times.reshape(size, count).astype(float)


def _areas(outcome: Outcome, weights: Floats) -> Floats:
    """The AUROC of each of the P classes that there are, of weighted images [n, b]; [b, P]."""
    areas = []  # sklearn.metrics.roc_auc_score would sort anew for each resample
    for k in np.unique(outcome.labels):
        own, others = (np.flatnonzero((outcome.labels == k) == is_own) for is_own in (True, False))
        others = others[np.argsort(outcome.scores[others, k], kind="stable")]
        sums = np.zeros((len(others) + 1, weights.shape[1]))  # of the lowest scores
        np.cumsum(weights[others], axis=0, out=sums[1:])
        scores, inside = outcome.scores[own, k], weights[own]
        below, up_to = (
            sums[np.searchsorted(outcome.scores[others, k], scores, side)]
            for side in ("left", "right")
        )
        wins = (inside * (below + up_to)).sum(axis=0) / 2  # ties count half
        areas.append(wins / (inside.sum(axis=0) * sums[-1]))
    return np.stack(areas, axis=1)


@dataclass(frozen=True, eq=False)
class Sureness:
    """How sure the figures of a model are.

    Attributes:
        outcome: What the model says.
        bootstrap: The same over resamples. None = as sure as they are if all images of a patient
            are right or all are wrong, which can be said without looking at the answers.
    """

    outcome: Outcome
    bootstrap: Bootstrap | None = None

    def estimate_share(self, name: str, value: float) -> Estimate:
        """The estimate of a share in `Outcome.shares`, at a value."""
        shares = self.outcome.shares
        place, least = shares.names.index(name), shares.worth[name]
        images = shares.images[place]
        if self.bootstrap is None:
            return wilson(value, round_down(least))
        return _estimate(value, self.bootstrap.shares[:, place], least, images)

    def estimate_calibration_error(self, value: float) -> Estimate:
        """The estimate of the expected calibration error, at a value."""
        shares = self.outcome.shares
        least, images = shares.worth["accuracy"], shares.images[shares.names.index("accuracy")]
        if self.bootstrap is None:
            return wilson(value, round_down(least))
        return _estimate(value, self.bootstrap.calibration_error, least, images)

    def estimate_auroc(self, value: float) -> Estimate:
        """The estimate of the mean AUROC over the classes that there are, at a value."""
        shares, sums = self.outcome.shares, []
        names = [name for name in shares.names if name.startswith("recall-")]
        total = sum(shares.worth[name] for name in names)
        if self.bootstrap is None:
            areas, alike = [value] * len(names), np.ones((len(names), len(names)))
        else:
            areas = _areas(self.outcome, np.ones((len(self.outcome.labels), 1)))[0].tolist()
            alike = _correlation(self.bootstrap.areas)
        for k, (name, area) in enumerate(zip(names, areas, strict=True)):
            error = auroc_error(area, shares.worth[name], total - shares.worth[name])
            least = area * (1 - area) / error**2 if error else shares.worth[name]
            if self.bootstrap is None:
                sums.append(wilson(area, round_down(least)))
            else:
                images = shares.images[shares.names.index(name)]
                sums.append(_estimate(area, self.bootstrap.areas[:, k], least, images, inf))
        return combine([1 / len(names)] * len(names), sums, alike)

    def correlation(self, other: "Sureness | None" = None) -> Floats:
        """Of the errors of the recalls; with another model's behind them if there is one."""
        models = [self, other] if other else [self]
        names = [
            [name for name in each.outcome.shares.names if name.startswith("recall-")]
            for each in models
        ]
        if self.bootstrap is None:
            count = len(names[0])
            alike = np.eye(count * len(models))
            for k, (each, own) in enumerate(zip(models, names, strict=True)):
                place = slice(k * count, (k + 1) * count)
                alike[place, place] = each.outcome.shares.alike(own)
            return alike
        columns = [
            each.bootstrap.shares[:, [each.outcome.shares.names.index(name) for name in own]]
            for each, own in zip(models, names, strict=True)
            if each.bootstrap
        ]
        return _correlation(np.concatenate(columns, axis=1))


def round_down(number: float) -> float:
    """A number of patients as it may be told: 1, or the power of √2 below it."""
    return max(1.0, 2.0 ** (floor(2 * log2(number)) / 2)) if number > 0 else 1.0


def _estimate(
    value: float, drawn: Floats, least: float, images: Floats, most: float | None = None
) -> Estimate:
    """An estimate from the values in resamples [B], of so many images of each patient [G]."""
    drawn, patients = drawn[np.isfinite(drawn)], int(np.count_nonzero(images))
    most = float(images.sum()) if most is None else most
    if patients < 2 or len(drawn) < 2 or not drawn.std():
        return wilson(value, max(least, 1.0))
    variance = drawn.var() * patients / (patients - 1)
    number = min(max(value * (1 - value) / variance, 1.0), most)
    return wilson(value, number, inf if images.max() <= 1 else patients - 1)


def _correlation(drawn: Floats) -> Floats:
    """Of the columns of [B, A]; 0 where one does not vary."""
    complete = drawn[np.isfinite(drawn).all(axis=1)]
    centred = complete - complete.mean(axis=0) if len(complete) else np.zeros((1, drawn.shape[1]))
    length = np.sqrt((centred**2).sum(axis=0))
    scaled = np.divide(centred, length, out=np.zeros_like(centred), where=length > 0)
    found: Floats = scaled.T @ scaled
    np.fill_diagonal(found, 1.0)
    return found
