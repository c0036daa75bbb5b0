"""Details of a model after the last round: intervals of its figures, and figures of each class.

In a deployment no figure is exact, and only D = `figures.max-detailed` models get details in a run
and in a day (docs/privacy/figures.md). A model has `TABLES` tables:

- its answers for each class;
- images of each class that it finds at the class's operating point;
- images of other classes that it assigns to this class there;
- the bins of its reliability plot, with the numbers of images and of right answers;
- its calibration error.

Each count has normal noise with the standard deviation

    d m sqrt(TABLES · D) / SEPARATION

and becomes a share of three digits. All that leaves follows from these shares, and is consistent
(client_app.release.agreement). m is the largest number of images of a patient, rounded up to a
power of √2. d is the largest change of a table by one image, in Euclidean length: √2 for the
answers, where one cell loses the image and another gains it; 1 and √(K − 1) for the next two
tables, with K classes; 2 for the bins; and 2/n for the calibration error of n images. So all tables
of any D models together separate two cases of one patient by SEPARATION standard deviations or less
(arXiv:1905.02383).

An operating point is chosen on training images (`Disclosure.training_rows`). In a deployment its
counts have noise too, with d = √(K T) for T thresholds, without the factor TABLES.

The bootstrap would reveal single patients. So a deployment widens the interval of the released
figures by their noise, for the case that all images of a patient are right or all are wrong. No
model changes this interval: it depends only on the number of images of each patient.
"""

from dataclasses import dataclass, field
from functools import partial
from math import hypot, isfinite, nan, sqrt

import numpy as np
import torch
from torch import Tensor, nn

from client_app.authority.policy import PolicyError
from client_app.datasets.pool import Indices
from client_app.errors import line_of
from client_app.release.agreement import area_between, share_at_point, share_out
from client_app.release.disclosure import Disclosure, Noised
from client_app.release.noise import COARSEST, SEPARATION, round_up
from client_app.request import log_once
from client_app.run import count_model
from learning.assessment import (
    BINS,
    Bootstrap,
    Floats,
    Outcome,
    Sureness,
    count_above,
    operating_point,
)
from learning.errors import DivergedError
from learning.evaluation import probabilities
from learning.intervals import Figure, combine, metrics_of, widen, wilson
from learning.samples import Samples
from strategies.protocol.parcel import Manifest
from strategies.protocol.settings import rng_for

TABLES = 5
VAGUE = 0.1  # an AUROC with more noise adds nothing to the released shares
MOST_CLASSES = 20  # at most, for counts of every pair of classes
DIGITS = 3  # of a share between real hospitals
ALONE = "alone"  # file of the own model's outputs, in the run's folder
CALIBRATION, IN_BIN, RECALL = "calibration-error", "right-in-bin-", "recall-of-class-"
SENSITIVITY, SPECIFICITY = "sensitivity-of-class-", "specificity-of-class-"


@dataclass(frozen=True, eq=False)
class Outputs:
    """The outputs of a model for the hospital's images, as probabilities."""

    model: str  # fingerprint of the model
    test: Tensor  # for all test images [n, K]
    seen: Tensor  # for the training images of operating points [t, K]


@dataclass(frozen=True, eq=False)
class Judged:
    """The details of a model."""

    sureness: Sureness
    figures: dict[str, float]  # those that may leave
    recalls: list[Figure]  # of each class with test images; intervals without the noise
    noise: float  # standard deviation of the noise in the balanced accuracy; 0 = no noise


class Details:
    """The details of models, in answer to one request."""

    def __init__(self, disclosure: Disclosure) -> None:
        self.disclosure = disclosure
        self._noised = disclosure if isinstance(disclosure, Noised) else None
        data = disclosure.data
        self.seen: Samples = data.train[torch.from_numpy(disclosure.training_rows)]
        patients = data.train.patients[disclosure.training_rows]
        self._most_seen = round_up(np.unique(patients, return_counts=True)[1].max())
        self._labels = disclosure.labels.cpu().numpy()
        self._patients = np.unique(disclosure.patients, return_inverse=True)[1]
        self._classes = np.unique(self._labels)
        self._alone: Judged | None = None

    def outputs(self, model: str, network: nn.Module, test: Tensor | None = None) -> Outputs:
        """The outputs of a model for the hospital's images.

        `test` are probabilities for all test images; None = compute them.

        Raises:
            DeadlineError: The deadline has passed.
        """
        clock, data = self.disclosure.request.clock, self.disclosure.data
        with clock.measure("evaluate"):
            if test is None:
                test = probabilities(network, data.test.images, clock.deadline)
            return Outputs(model, test, probabilities(network, self.seen.images, clock.deadline))

    def keep_alone(self, network: nn.Module, label: Manifest) -> None:
        """Keep the outputs of the hospital's own model, before the first hand-off.

        Raises:
            DeadlineError: The deadline has passed.
        """
        outputs = self.outputs(self.disclosure.hash_model(network, label), network)
        arrays = {"test": outputs.test.cpu().numpy(), "seen": outputs.seen.cpu().numpy()}
        about = {"model": outputs.model, "images": self.images}
        named = {name: np.array(text) for name, text in about.items()}
        self.disclosure.request.run.save(ALONE, {**arrays, **named})

    def alone_outputs(self) -> Outputs | None:
        """The kept outputs of the hospital's own model; None if there are none for these images."""
        kept = self.disclosure.request.run.load(ALONE)
        if str(kept.get("images")) != self.images:
            return None
        question = self.disclosure.question(str(kept["model"]))
        return Outputs(question, *map(torch.from_numpy, (kept["test"], kept["seen"])))

    def alone_figures(self, outputs: Outputs | None = None) -> dict[str, float]:
        """The figures and details of the hospital's own model, for comparison with others.

        Without `outputs`: those that were kept before the first hand-off, if there are any.
        """
        disclosure = self.disclosure
        if (outputs := outputs or self.alone_outputs()) is None:
            return {}
        try:
            disclosure.admit(outputs.model)
            figures = disclosure.test_figures(outputs.model, outputs.test)
        except (PolicyError, DivergedError) as error:
            log_once(f"No figure of the hospital's own model leaves. {line_of(error)}")
            return {}
        self._alone = self._judge(outputs, figures)
        return self._alone.figures if self._alone else figures

    @property
    def images(self) -> str:
        """The fingerprints of the test and training images."""
        data = self.disclosure.data
        return f"{data.test.fingerprint} {data.train.fingerprint}"

    def figures(self, outputs: Outputs, figures: dict[str, float]) -> dict[str, float]:
        """The figures of `Disclosure.test_figures`, with details if they may leave."""
        judged = self._judge(outputs, figures)
        return judged.figures | self._gain(judged) if judged else figures

    def _tables(self, model: str, outcome: Outcome) -> "_Tables":
        """The tables of a model, as they may leave."""
        labels, count = self._labels, outcome.scores.shape[1]
        sizes = np.bincount(labels, minlength=count).astype(float)
        own = labels[:, None] == np.arange(count)
        reached = outcome.scores >= outcome.thresholds  # [n, K]
        right = outcome.answers == labels
        in_bins = [np.bincount(outcome.bins, mask, minlength=BINS) for mask in (None, right)]
        tell = partial(self._release_table, model)
        answers = tell("answers", outcome.confusion, sqrt(2), sizes[:, None])
        found = tell("found", (reached & own).sum(axis=0), 1, sizes)
        taken = tell("taken", (reached & ~own).sum(axis=0), sqrt(count - 1), sizes.sum() - sizes)
        error = tell("error", np.array([outcome.calibration_error]), 2 / sizes.sum(), 1.0)
        images, hits = tell("bins", np.stack(in_bins), 2, sizes.sum())
        # From here on, sizes are the released ones: released noise would reveal exact sizes.
        strata = [self.disclosure.strata[labels == k] for k in range(count)]
        sizes = np.array([*map(self.disclosure.number, strata)])
        others, width = sizes.sum() - sizes, self._width
        # The noise is at most that of the least sizes that are released so.
        least = np.array([*map(self.disclosure.least, strata)])
        whole = least.sum()
        tables = _Tables()
        tables.add(CALIBRATION, min(max(error[0], 0.0), 1.0), 2 * width / whole)
        cells = np.zeros((count, count))
        for k in map(int, self._classes):
            cells[k] = share_out(answers[k] * sizes[k], sizes[k], first=k)
        for k in map(int, self._classes):
            name, recall = f"{RECALL}{k}", cells[k, k] / sizes[k]
            tables.counts[f"images-of-class-{k}"] = sizes[k]
            tables.means[name] = answers[k, k]
            if tables.add(name, recall, sqrt(2) * width / least[k]) and count <= MOST_CLASSES:
                counted = enumerate(cells[k].tolist())
                tables.counts.update({f"answers-{a}-of-class-{k}": cell for a, cell in counted})
            if np.isfinite(point := outcome.thresholds[k]):
                share = share_at_point(found[k], recall, point, count) if width else found[k]
                tables.add(f"{SENSITIVITY}{k}", share, width / least[k])
                if others[k]:
                    share, wrong = taken[k], np.delete(cells[:, k], k).sum() / others[k]
                    share = share_at_point(share, wrong, point, count) if width else share
                    noise = sqrt(count - 1) * width / (whole - least[k])
                    tables.add(f"{SPECIFICITY}{k}", 1 - share, noise)
        images = share_out(images * sizes.sum(), sizes.sum())
        hits = share_out(hits * sizes.sum(), np.trace(cells), images)
        for b in np.flatnonzero(images):
            noise = 2 * width / images[b] * sizes.sum() / whole
            if tables.add(f"{IN_BIN}{b}", hits[b] / images[b], noise):
                tables.counts[f"images-in-bin-{b}"] = images[b]
                if not width:
                    sure = outcome.confidence[outcome.bins == b].mean()
                    tables.counts[f"confidence-in-bin-{b}"] = float(sure)
        return tables

    @property
    def _width(self) -> float:
        """The standard deviation of the noise if one image changes a table by 1; 0 = exact."""
        if not self._noised:
            return 0.0
        most = round_up(np.bincount(self._patients).max())
        return most * sqrt(TABLES * self._noised.rules.max_detailed) / SEPARATION

    def _release_table(
        self, model: str, name: str, table: Floats, moved: float, most: float | Floats
    ) -> Floats:
        """A table as it may leave: shares of `most` with noise, or exact in a simulation.

        Shares with noise are rounded, so that they do not reveal `most`.
        """

        def share(part: Floats) -> Floats:
            return np.divide(part, most, out=np.zeros(table.shape), where=np.asarray(most) > 0)

        if not self._noised:
            return share(table)
        noise = moved * self._width * self._noised.noise.table(name, model, table.shape)
        return (share(table) + share(noise)).round(DIGITS)

    def _judge(self, outputs: Outputs, figures: dict[str, float]) -> Judged | None:
        disclosure, noised = self.disclosure, self._noised
        if not len(self._labels):
            return None
        if noised:
            try:
                run, most = disclosure.request.run, noised.rules.max_detailed
                count_model(run, "detailed", "figures.max-detailed", outputs.model, most)
            except PolicyError as error:
                log_once(f"Details of further models do not leave. {error.explain()}")
                return None
        points = self._operating_point(outputs)
        scores = disclosure.choose(outputs.test).double().cpu().numpy()
        outcome = Outcome(scores, self._labels, self._patients, points)
        hospital = disclosure.request.hospital
        drawn = rng_for(hospital.settings.seed, "bootstrap", hospital=hospital.name)
        sureness = Sureness(outcome, None if noised else Bootstrap.draw(outcome, drawn))
        tables = self._tables(outputs.model, outcome)
        estimates = {
            name: widen(self._estimate(sureness, name, share, tables), share, tables.noise[name])
            for name, share in tables.shares.items()
        }
        recalls = [
            sureness.estimate_share(name, tables.shares.get(name, 0.5))
            for name in (f"{RECALL}{k}" for k in self._classes)
        ]
        noise = noised.deviations(figures) if noised else {}
        if noised:
            tables.settle(figures := dict(figures), noise)
        for name, estimate in sureness.estimate(figures, recalls).items():
            estimates[name] = widen(estimate, figures[name], noise.get(name, 0.0))
            figures |= {f"{name}-noise": noise[name]} if noised else {}
        details = {**figures, **self._patient_counts, **tables.counts}
        details |= {
            f"threshold-of-class-{k}": points[k] for k in self._classes if np.isfinite(points[k])
        }
        for name, estimate in estimates.items():
            details |= metrics_of(name, estimate)
        return Judged(sureness, details, recalls, noise.get("balanced-accuracy", 0.0))

    @property
    def _patient_counts(self) -> dict[str, float]:
        """The numbers of patients of the test images; empty if unknown.

        With tasks, the number in each class of each task is rounded, as for images.
        """
        disclosure = self.disclosure
        if disclosure.data.test.groups is None:
            return {}

        def count(rows: Indices) -> float:
            if self._noised and disclosure.tasks is not None:
                cells = np.stack([disclosure.strata[rows], self._patients[rows]])
                return disclosure.number(np.unique(cells, axis=1)[0])
            return disclosure.round_count(len(np.unique(self._patients[rows])))

        of_class = {
            f"patients-of-class-{k}": count(np.flatnonzero(self._labels == k))
            for k in self._classes
        }
        return {"num-patients": count(np.arange(len(self._labels))), **of_class}

    def _estimate(self, sureness: Sureness, name: str, share: float, tables: "_Tables") -> Figure:
        if name == CALIBRATION:
            return sureness.estimate_calibration_error(share)
        if name.startswith(IN_BIN) and self._noised:  # the model decides the images in a bin
            images = tables.counts[f"images-in-bin-{name.removeprefix(IN_BIN)}"]
            part = images / self.disclosure.number(self.disclosure.strata)
            return wilson(share, max(part * sureness.worth["accuracy"], 1.0))
        return sureness.estimate_share(name, share)

    def _gain(self, judged: Judged) -> dict[str, float]:
        """The gain in balanced accuracy over the hospital's own model."""
        name, alone = "balanced-accuracy", self._alone
        if alone is None or name not in judged.figures or name not in alone.figures:
            return {}
        count = len(self._classes)
        estimate = combine(
            [1 / count] * count + [-1 / count] * count,
            [*judged.recalls, *alone.recalls],
            judged.sureness.correlation(alone.sureness),
        )
        gain = judged.figures[name] - alone.figures[name]
        noise = hypot(judged.noise, alone.noise)
        figures = metrics_of("gain", widen(estimate, gain, noise, least=-1.0))
        return figures | ({"gain-noise": noise} if noise else {})

    def _operating_point(self, outputs: Outputs) -> Floats:
        labels = self.seen.labels.cpu().numpy()
        scores = outputs.seen.cpu().nan_to_num().double().numpy()
        own, others = count_above(scores, labels)
        sizes = np.bincount(labels, minlength=len(own)).astype(float)
        if noised := self._noised:
            moved = self._most_seen * sqrt(own.size)
            width = moved * sqrt(noised.rules.max_detailed) / SEPARATION
            noise = partial(noised.noise.table, model=outputs.model, shape=own.shape)
            own, others = (
                table + width * noise(f"{name} reached")
                for name, table in (("own", own), ("others", others))
            )
        return operating_point(own, others, sizes)


@dataclass(frozen=True)
class _Tables:
    """The tables of a model, by name."""

    counts: dict[str, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)  # those that are not too coarse to leave
    noise: dict[str, float] = field(default_factory=dict)  # standard deviations, of all shares
    # Recalls before they are clipped to [0, 1], for the mean of all recalls
    means: dict[str, float] = field(default_factory=dict)

    def settle(self, figures: dict[str, float], noise: dict[str, float]) -> None:
        """Make figures of all classes consistent with the released shares of each class.

        The figures, and the standard deviations of their noise, are changed in place. Their noise
        is for many more models than that of the shares.
        """
        classes = [name.removeprefix(RECALL) for name in self.means]
        sizes = np.array([self.counts[f"images-of-class-{k}"] for k in classes])
        of_class = np.array([self.noise[name] for name in self.means])
        recalls = np.array([self.shares.get(name, nan) for name in self.means])
        known = np.isfinite(recalls)
        for name, part in (
            ("accuracy", sizes / sizes.sum()),
            ("balanced-accuracy", np.full(len(sizes), 1 / len(sizes))),
        ):
            coarse = float(np.hypot.reduce(part * of_class))
            if known.all() or coarse < noise.get(name, COARSEST):
                figures[name], noise[name] = float(part @ [*self.means.values()]), coarse
            if name in figures:
                least = part[known] @ recalls[known]
                most = least + part[~known].sum()
                # Sums of shares can exceed 1 by rounding, and then no answer may leave.
                figures[name] = min(float(np.clip(figures[name], least, most)), 1.0)
        if "auroc" in figures:
            areas = [
                area_between(*(self.shares[f"{part}{k}"] for part in (SENSITIVITY, SPECIFICITY)))
                if {f"{SENSITIVITY}{k}", f"{SPECIFICITY}{k}"} <= self.shares.keys()
                else (0.0, 1.0)
                for k in classes
            ]
            figures["auroc"] = float(np.clip(figures["auroc"], *np.mean(areas, axis=0)))
            if noise["auroc"] > VAGUE:
                del figures["auroc"], figures["auroc-noise"]
        for k, size, share in zip(classes, sizes, recalls, strict=True):
            if f"right-of-class-{k}" in figures and isfinite(share):
                figures[f"right-of-class-{k}"] = round(share * size)

    def add(self, name: str, share: float, noise: float) -> bool:
        """Add a share unless its noise is too large; return whether it was added."""
        self.noise[name] = noise
        if noise <= COARSEST:
            self.shares[name] = float(share)
        return noise <= COARSEST
