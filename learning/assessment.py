"""A model's test performance: shares of test images, and the uncertainty of each share.

Shapes: `n` images, `K` classes, `G` patients, `A` shares, `B` resamples, `T` thresholds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import floor, inf, log2, pi, sqrt

import numpy as np
from numpy.typing import NDArray

from learning.evaluation import areas
from learning.intervals import Figure, auroc_error, combine, wilson

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

BINS = 10  # of the reliability plot, of equal width in confidence
# Resamples for few images, and at least for many. Standard errors are off by 2 % and by 5 %.
RESAMPLES, FEWEST = 1000, 200
WEIGHTS = 2**21  # most image weights in all resamples together, but at least FEWEST resamples
ROWS = 250  # resamples that are in memory at a time
FLAT = 1e-9  # less spread is a rounding error: a thousand copies of 1/3 have a std of 5.6e-17
# Candidate operating points of a class, as probabilities. They are few: the more there are, the
# more the choice reveals about a single training image (client_app.release.details).
THRESHOLDS = (0.001, 0.005, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 0.995, 0.999)


def count_above(scores: Floats, labels: Indices) -> tuple[Floats, Floats]:
    """Count the images of each class, and the other images, that reach each of its thresholds.

    Both counts are [K, T], from probabilities [n, K] and classes [n].
    """
    reached = scores[:, :, None] >= np.array(THRESHOLDS)  # [n, K, T]
    own = labels[:, None] == np.arange(scores.shape[1])  # [n, K]
    return (
        (reached & own[:, :, None]).sum(axis=0, dtype=float),
        (reached & ~own[:, :, None]).sum(axis=0, dtype=float),
    )


def operating_point(own: Floats, others: Floats, sizes: Floats) -> Floats:
    """The threshold [K] of each class with the largest Youden's J against the other classes.

    J is the share of the class that reaches the threshold, minus the share of the other images
    that reach it (Youden, Cancer 3, 1950). Of equally good thresholds the middle one is chosen: a
    model that has memorised these images separates them at every threshold. The threshold is NaN
    for a class that no image shows or that all images show.

    `own` and `others` are counts [K, T] by `count_above`, on images that are not tested on. `sizes`
    are the images of each class [K].
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
    """The predictions of a model on test images."""

    scores: Floats  # probabilities [n, K]
    labels: Indices  # true classes [n]
    patients: Indices  # the patient of each image [n], from 0 to G - 1
    thresholds: Floats  # the operating point of each class [K]; NaN = none

    @cached_property
    def answers(self) -> Indices:
        """The most probable class [n]."""
        return np.asarray(self.scores.argmax(axis=1))

    @cached_property
    def confusion(self) -> Floats:
        """The number of images by class (rows) and by answer (columns) [K, K]."""
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
        return np.asarray(self.scores.max(axis=1))

    @cached_property
    def calibration_gap(self) -> Floats:
        """Right answers minus the sum of their confidences, by bin and patient [BINS, G]."""
        count = int(self.patients.max()) + 1
        gaps = (self.answers == self.labels) - self.confidence
        sums = np.bincount(self.bins * count + self.patients, gaps, BINS * count)
        return sums.astype(float).reshape(BINS, count)

    @property
    def calibration_error(self) -> float:
        """The expected calibration error (Guo et al., ICML 2017), over `BINS` bins."""
        return float(np.abs(self.calibration_gap.sum(axis=1)).sum() / len(self.labels))

    @cached_property
    def shares(self) -> "Shares":
        """All shares that have at least one image."""
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
        images = [np.bincount(self.patients, mask) for mask, _ in found.values()]
        hits = [np.bincount(self.patients, mask & hit) for mask, hit in found.values()]
        return Shares(list(found), np.stack(images), np.stack(hits))


@dataclass(frozen=True, eq=False)
class Shares:
    """Shares of right images, each by its own criterion."""

    names: list[str]  # names of the shares
    images: Floats  # images of each patient that belong to a share [A, G]
    right: Floats  # right images among these [A, G]

    @cached_property
    def worth(self) -> dict[str, float]:
        """The least effective number of patients of each share.

        It holds if all images of a patient are right or all are wrong: the effective sample size
        (Σ m)² / Σ m² of patients with m images each (Kish, Survey Sampling, 1965). It does not
        depend on the model.
        """
        numbers = self.images.sum(axis=1) ** 2 / (self.images**2).sum(axis=1)
        return dict(zip(self.names, numbers, strict=True))

    @property
    def recalls(self) -> list[int]:
        """The places of the classes' recalls among the shares."""
        return [place for place, name in enumerate(self.names) if name.startswith("recall-")]

    def correlations(self) -> Floats:
        """The correlations of recalls in the case of `worth`: of patients with images in both."""
        rows = self.images[self.recalls]
        products = rows @ rows.T
        scale = np.sqrt(np.diag(products))
        return np.asarray(products / np.outer(scale, scale))


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """The figures of a model over B resamples of patients."""

    shares: Floats  # [B, A]; NaN if a resample has no such image
    areas: Floats  # AUROC of each of the P classes in the test images [B, P]; NaN likewise
    calibration_error: Floats  # [B]

    @classmethod
    def draw(cls, outcome: Outcome, rng: np.random.Generator) -> "Bootstrap":
        """Draw G patients with replacement, at most `RESAMPLES` times."""
        # scipy.stats.bootstrap draws single images; here a patient is drawn with all images.
        shares = outcome.shares
        parts = []
        with np.errstate(invalid="ignore", divide="ignore"):
            for weights in _weights(outcome, rng):  # [b, G]
                images = weights @ shares.images.T
                off = np.abs(weights @ outcome.calibration_gap.T).sum(axis=1)
                each = images[:, shares.names.index("accuracy")]
                found = areas(outcome.scores, outcome.labels, weights.T[outcome.patients])
                parts.append((weights @ shares.right.T / images, found, off / each))
        return cls(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _weights(outcome: Outcome, rng: np.random.Generator) -> Iterator[Floats]:
    """The count of each patient in each resample, in blocks of resamples [b, G]."""
    count = int(outcome.patients.max()) + 1
    resamples = min(RESAMPLES, max(FEWEST, WEIGHTS // len(outcome.labels)))
    for start in range(0, resamples, ROWS):
        size = min(ROWS, resamples - start)
        drawn = rng.integers(count, size=(size, count)) + count * np.arange(size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=size * count)
        yield times.reshape(size, count).astype(float)


@dataclass(frozen=True, eq=False)
class Sureness:
    """The uncertainty of a model's figures."""

    outcome: Outcome  # the model's predictions
    # The figures over resamples. None = the case of `Shares.worth`, in which intervals do not
    # depend on the answers.
    bootstrap: Bootstrap | None = None

    @cached_property
    def worth(self) -> dict[str, float]:
        """`Shares.worth`; without a bootstrap rounded for release, down to powers of √2."""
        worth = self.outcome.shares.worth
        return worth if self.bootstrap else {name: round_down(each) for name, each in worth.items()}

    def estimate(
        self, figures: Mapping[str, float], recalls: Sequence[Figure]
    ) -> dict[str, Figure]:
        """The estimates of the figures of every test, around their values.

        `recalls` are the estimates of each class with test images.
        """
        equal = [1 / len(recalls)] * len(recalls)
        found: dict[str, Callable[[float], Figure]] = {
            "accuracy": partial(self.estimate_share, "accuracy"),
            "balanced-accuracy": lambda _: combine(equal, recalls, self.correlation()),
            "auroc": self.estimate_auroc,
        }
        return {name: make(figures[name]) for name, make in found.items() if name in figures}

    def estimate_share(self, name: str, value: float) -> Figure:
        """The estimate of a share in `Outcome.shares` around a value."""
        shares = self.outcome.shares
        drawn = self.bootstrap.shares[:, shares.names.index(name)] if self.bootstrap else None
        return self._estimate(name, value, drawn, self.worth[name])

    def estimate_calibration_error(self, value: float) -> Figure:
        """The estimate of the expected calibration error around a value.

        A sum of absolute values is above 0 for a calibrated model, too. The lower end is lower by
        the expected error of such a model; without a bootstrap by the largest expected one.
        """
        worth, outcome = self.worth["accuracy"], self.outcome
        drawn, variances = None, np.full(BINS, worth / BINS / 4)
        if self.bootstrap:
            drawn, sure = self.bootstrap.calibration_error, outcome.confidence
            variances = np.bincount(outcome.bins, sure * (1 - sure) * worth / len(sure), BINS)
        estimate = self._estimate("accuracy", value, drawn, worth)
        excess = sqrt(2 / pi) * float(np.sqrt(variances).sum()) / worth
        return {**estimate, "low": max(0.0, estimate["low"] - excess)}

    def estimate_auroc(self, value: float) -> Figure:
        """The estimate of the mean AUROC over the classes in the test images, around a value."""
        shares, sums = self.outcome.shares, []
        names = [shares.names[place] for place in shares.recalls]
        total = sum(self.worth[name] for name in names)
        if self.bootstrap is None:
            values, alike = [value] * len(names), np.ones((len(names), len(names)))
        else:
            labels = self.outcome.labels
            values = areas(self.outcome.scores, labels, np.ones((len(labels), 1)))[0].tolist()
            alike = _correlation(self.bootstrap.areas)
        for k, (name, area) in enumerate(zip(names, values, strict=True)):
            error = auroc_error(area, self.worth[name], total - self.worth[name])
            least = area * (1 - area) / error**2 if error else self.worth[name]
            drawn = self.bootstrap.areas[:, k] if self.bootstrap else None
            sums.append(self._estimate(name, area, drawn, least, inf))
        return combine([1 / len(names)] * len(names), sums, alike)

    def _estimate(
        self, name: str, value: float, drawn: Floats | None, least: float, most: float | None = None
    ) -> Figure:
        """An estimate over the images of a share, from values in resamples [B] if there are any."""
        if drawn is None:
            return wilson(value, max(least, 1.0))
        shares = self.outcome.shares
        images = shares.images[shares.names.index(name)]  # [G]
        drawn, patients = drawn[np.isfinite(drawn)], int(np.count_nonzero(images))
        most = float(images.sum()) if most is None else most
        if patients < 2 or len(drawn) < 2 or drawn.std() < FLAT:
            return wilson(value, max(least, 1.0))
        variance = drawn.var() * patients / (patients - 1)
        number = min(max(value * (1 - value) / variance, 1.0), most)
        return wilson(value, number, inf if images.max() <= 1 else patients - 1)

    def correlation(self, other: "Sureness | None" = None) -> Floats:
        """The correlations of the recalls' errors, of both models if there is another one.

        Without a bootstrap they are rounded for release, to quarters.
        """
        models = [self, other] if other else [self]
        if self.bootstrap is None:
            count = len(self.outcome.shares.recalls)
            alike = np.eye(count * len(models))
            for k, each in enumerate(models):
                place = slice(k * count, (k + 1) * count)
                alike[place, place] = (4 * each.outcome.shares.correlations()).round() / 4
            return alike
        columns = [
            each.bootstrap.shares[:, each.outcome.shares.recalls]
            for each in models
            if each.bootstrap
        ]
        return _correlation(np.concatenate(columns, axis=1))


def round_down(number: float) -> float:
    """A number of patients, rounded for release: down to a power of √2, and at least 1."""
    return max(1.0, 2.0 ** (floor(2 * log2(number)) / 2)) if number > 0 else 1.0


def _correlation(drawn: Floats) -> Floats:
    """The correlations [A, A] of columns [B, A]; 0 for a constant column."""
    complete = drawn[np.isfinite(drawn).all(axis=1)]
    centred = complete - complete.mean(axis=0) if len(complete) else np.zeros((1, drawn.shape[1]))
    length = np.sqrt((centred**2).sum(axis=0))
    scaled = np.divide(centred, length, out=np.zeros_like(centred), where=length > FLAT)
    found: Floats = scaled.T @ scaled
    np.fill_diagonal(found, 1.0)
    return found
