"""What a hospital says of a model after the last round: how sure figures are, and each class.

Whoever sends models chooses what these tell, as in disclosure.py, and the same holds here: in a
deployment no figure is exact, and `figures.max-detailed` models D are told of in a run and in a
day. A model has `TABLES` tables: its answers, the images of each class that it finds at the class's
operating point, those of other classes that it takes for it, the bins of its reliability plot, and
its calibration error. Each count has normal noise with the standard deviation

    d m sqrt(TABLES · D) / TOLD

and is a share of three digits. What leaves follows from these shares alone, and agrees with itself
(client_app.release.agreement). Here m is the most images that a patient has, and d how far
one image can move a table, in Euclidean length: √2 for the answers, where one cell loses it and
another gains it; 1; √(K − 1) for K classes; 2 for the numbers of images in bins and of right ones;
and 2/n for the calibration error of n images. So all tables of D models, however they are made,
tell two cases of one patient apart by TOLD standard deviations together.

An operating point is chosen on the training images that models are asked about. In a deployment the
counts that it is chosen by have noise too, with d = √(K T) for T thresholds, without the factor
TABLES. Nobody's training image decides on it, and it can be told.

An interval tells of patients as well. So a deployment does not use the bootstrap, but the interval
of figures as they are told, wider by their noise, where all images of a patient are right or all
are wrong: that follows from how many images each patient has, and no model changes it. The number
of patients that this is worth is rounded down to a power of √2, and numbers of images as in
disclosure.py.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from math import hypot, isfinite, nan, sqrt

import numpy as np
import torch
from torch import Tensor, nn

from client_app.authority.policy import PolicyError
from client_app.release.agreement import area_between, share_at_point, share_out
from client_app.release.disclosure import Disclosure, Noised, fingerprint
from client_app.release.noise import COARSEST, TOLD
from client_app.request import log_once
from client_app.run import Tested
from learning.assessment import (
    BINS,
    Bootstrap,
    Floats,
    Outcome,
    Sureness,
    count_above,
    operating_point,
    round_down,
)
from learning.errors import DivergedError
from learning.evaluation import probabilities
from learning.intervals import Estimate, combine, wilson
from learning.samples import Samples
from strategies.protocol.parcel import Manifest
from strategies.protocol.settings import rng_for

TABLES = 5
VAGUE = 0.1  # noise in an AUROC above which it says nothing beside the shares that follow from it
MOST_CLASSES = 20  # of which every pair is counted
DIGITS = 3  # of a share between real hospitals
ALONE = "alone"  # what is kept of the hospital's own model, in the run's folder
CALIBRATION, IN_BIN = "calibration-error", "right-in-bin-"
RECALL, SENSITIVITY, SPECIFICITY = (
    f"{name}-of-class-" for name in ("recall", "sensitivity", "specificity")
)


@dataclass(frozen=True, eq=False)
class Said:
    """What a model says of the hospital's images.

    Attributes:
        model: Its fingerprint.
        test: Its probabilities for all test images [n, K].
        seen: For the training images on which operating points are chosen [t, K].
    """

    model: str
    test: Tensor
    seen: Tensor


@dataclass(frozen=True, eq=False)
class Judged:
    """A model whose details are told.

    Attributes:
        sureness: How sure its figures are.
        told: What is told of it, by name.
        recalls: Those of the classes that there are, as they are told but without their noise.
        noise: The standard deviation of that in the balanced accuracy; 0 = none.
    """

    sureness: Sureness
    told: dict[str, float]
    recalls: list[Estimate]
    noise: float


class Details:
    """The details of models, in answer to one request.

    Args:
        disclosure: Of the request.
    """

    def __init__(self, disclosure: Disclosure) -> None:
        self.disclosure = disclosure
        self._noised = disclosure if isinstance(disclosure, Noised) else None
        data = disclosure.data
        self.seen: Samples = data.train[torch.from_numpy(disclosure.asked)]
        patients = data.train_patients[disclosure.asked]
        self._most_seen = int(np.unique(patients, return_counts=True)[1].max())
        self._labels = disclosure.labels.cpu().numpy()
        self._patients = np.unique(disclosure.patients, return_inverse=True)[1]
        self._classes = np.unique(self._labels)
        self._alone: Judged | None = None

    def ask(self, model: str, network: nn.Module, test: Tensor | None = None) -> Said:
        """Ask a model about the hospital's images.

        Args:
            model: Its fingerprint.
            network: The model.
            test: Its probabilities for all test images, if they are known.

        Raises:
            DeadlineError: The deadline has passed.
        """
        clock, data = self.disclosure.request.clock, self.disclosure.data
        with clock.measure("evaluate"):
            if test is None:
                test = probabilities(network, data.test.images, clock.deadline)
            return Said(model, test, probabilities(network, self.seen.images, clock.deadline))

    def keep_alone(self, network: nn.Module, label: Manifest) -> None:
        """Keep what the hospital's own model says, before the first hand-off.

        Raises:
            DeadlineError: The deadline has passed.
        """
        said = self.ask(self.disclosure.fingerprint(network, label), network)
        arrays = {"test": said.test.cpu().numpy(), "seen": said.seen.cpu().numpy()}
        about = {"model": said.model, "images": self.images}
        named = {name: np.array(text) for name, text in about.items()}
        self.disclosure.request.run.save(ALONE, {**arrays, **named})

    def alone_says(self) -> Said | None:
        """What the hospital's own model said, if that is kept, and of the images as they are."""
        kept = self.disclosure.request.run.load(ALONE)
        if str(kept.get("images")) != self.images:
            return None
        return Said(str(kept["model"]), *map(torch.from_numpy, (kept["test"], kept["seen"])))

    def alone_figures(self, said: Said | None = None) -> dict[str, float]:
        """The figures and details of the hospital's own model, with which others are compared.

        Args:
            said: What it says; None = that before the first hand-off, if that is kept.

        None is told if the images are no longer the same: of other tasks, or by another seed.
        """
        disclosure = self.disclosure
        if (said := said or self.alone_says()) is None:
            return {}
        if tasks := disclosure.request.order.so_far:  # which classes are answers
            said = replace(said, model=fingerprint([said.model, tasks]))
        try:
            disclosure.admit(said.model)
            figures = disclosure.test_figures(said.model, said.test)
        except (PolicyError, DivergedError) as error:
            reason = error.explain() if isinstance(error, PolicyError) else error
            log_once(f"Nothing is told of the hospital's own model. {reason}")
            return {}
        self._alone = self._judge(said, figures)
        return self._alone.told if self._alone else figures

    @property
    def images(self) -> str:
        """Changes with the images that are asked about."""
        data = self.disclosure.data
        return f"{data.test_fingerprint} {data.train_fingerprint}"

    def figures(self, said: Said, figures: dict[str, float]) -> dict[str, float]:
        """The figures of a model with its details; as they are if none may be told.

        Args:
            said: What the model says.
            figures: What `Disclosure.test_figures` tells of it.
        """
        judged = self._judge(said, figures)
        return judged.told | self._gain(judged) if judged else figures

    def _tables(self, model: str, outcome: Outcome) -> "_Tables":
        """What is counted of a model, as it is told."""
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
        # Sizes in what follows are those that are told: a noise that is told would tell others.
        strata = self.disclosure.strata
        sizes = np.array([self.disclosure.number(strata[labels == k]) for k in range(count)])
        others, width = sizes.sum() - sizes, self._width
        tables = _Tables()
        tables.add(CALIBRATION, min(max(error[0], 0.0), 1.0), 2 * width / sizes.sum())
        cells = np.zeros((count, count))
        for k in map(int, self._classes):
            cells[k] = share_out(answers[k] * sizes[k], sizes[k], first=k)
        for k in map(int, self._classes):
            name, is_k = f"{RECALL}{k}", np.arange(count) == k
            tables.counts[f"images-of-class-{k}"] = sizes[k]
            tables.add(name, cells[k, k] / sizes[k], sqrt(2) * width / sizes[k])
            tables.means[name] = answers[k, k]
            if name in tables.shares and count <= MOST_CLASSES:
                counted = enumerate(cells[k].tolist())
                tables.counts.update({f"answers-{a}-of-class-{k}": cell for a, cell in counted})
            if np.isfinite(point := outcome.thresholds[k]):
                share = found[k]
                if width:
                    share = share_at_point(share, cells[k, k] / sizes[k], point, count)
                tables.add(f"{SENSITIVITY}{k}", share, width / sizes[k])
                if others[k]:
                    share = taken[k]
                    if width:
                        share = share_at_point(
                            share, cells[~is_k, k].sum() / others[k], point, count
                        )
                    noise = sqrt(count - 1) * width / others[k]
                    tables.add(f"{SPECIFICITY}{k}", 1 - share, noise)
        images = share_out(images * sizes.sum(), sizes.sum())
        hits = share_out(hits * sizes.sum(), np.trace(cells), images)
        for b in np.flatnonzero(images):
            if tables.add(f"{IN_BIN}{b}", hits[b] / images[b], 2 * width / images[b]):
                tables.counts[f"images-in-bin-{b}"] = images[b]
                if not width:
                    sure = outcome.confidence[outcome.bins == b].mean()
                    tables.counts[f"confidence-in-bin-{b}"] = float(sure)
        return tables

    @property
    def _width(self) -> float:
        """The standard deviation of noise for a table that an image moves by 1; 0 = exact."""
        if not self._noised:
            return 0.0
        most = int(np.bincount(self._patients).max())
        return most * sqrt(TABLES * self._noised.rules.max_detailed) / TOLD

    def _release_table(
        self, model: str, name: str, table: Floats, moved: float, most: float | Floats
    ) -> Floats:
        """A table as it is told: shares of `most`, with noise; in a simulation exact.

        They are rounded, so that no share tells what it is a share of. Noise may make them less
        than 0 and more than 1.
        """
        shares: Floats = np.divide(
            table, most, out=np.zeros(table.shape), where=np.asarray(most) > 0
        )
        if not self._noised:
            return shares
        noise = moved * self._width * self._noised.noise.table(name, model, table.shape)
        scaled = np.divide(noise, most, out=np.zeros(table.shape), where=np.asarray(most) > 0)
        told: Floats = (shares + scaled).round(DIGITS)
        return told

    def _judge(self, said: Said, figures: dict[str, float]) -> Judged | None:
        disclosure, noised = self.disclosure, self._noised
        if not len(self._labels):
            return None
        if noised:
            try:
                counted = Tested(disclosure.request.run, "detailed", "figures.max-detailed")
                counted.add(said.model, "", noised.rules.max_detailed)
            except PolicyError as error:
                log_once(f"Of further models only the figures are told. {error.explain()}")
                return None
        points = self._operating_point(said)
        scores = said.test.cpu()[disclosure.chosen].nan_to_num().double().numpy()
        outcome = Outcome(scores, self._labels, self._patients, points)
        hospital = disclosure.request.hospital
        drawn = rng_for(hospital.settings.seed, "bootstrap", hospital=hospital.name)
        sureness = Sureness(outcome, None if noised else Bootstrap.of(outcome, drawn))
        tables = self._tables(said.model, outcome)
        estimates = {
            name: self._sure(sureness, name, share, tables).told(share, tables.noise[name])
            for name, share in tables.shares.items()
        }
        recalls = [
            sureness.estimate_share(name, tables.shares.get(name, 0.5))
            for name in (f"{RECALL}{k}" for k in self._classes)
        ]
        weights = [1 / len(recalls)] * len(recalls)
        noise = noised.deviations(figures) if noised else {}
        if noised:
            tables.settle(figures := dict(figures), noise)
        for name, of in (
            ("accuracy", lambda value: sureness.estimate_share("accuracy", value)),
            ("balanced-accuracy", lambda _: combine(weights, recalls, sureness.correlation())),
            ("auroc", sureness.estimate_auroc),
        ):
            if name in figures:
                value = figures[name]
                estimates[name] = of(value).told(value, noise.get(name, 0.0))
                figures |= {f"{name}-noise": noise[name]} if noised else {}
        told = {**figures, **self._patients_told, **tables.counts}
        told |= {
            f"threshold-of-class-{k}": points[k] for k in self._classes if np.isfinite(points[k])
        }
        for name, estimate in estimates.items():
            told |= _estimate_figures(name, estimate)
        return Judged(sureness, told, recalls, noise.get("balanced-accuracy", 0.0))

    @property
    def _patients_told(self) -> dict[str, float]:
        """How many patients the test images are of, if that is known."""
        if self.disclosure.data.test_groups is None:
            return {}
        of_class = {
            f"patients-of-class-{k}": float(len(np.unique(self._patients[self._labels == k])))
            for k in self._classes
        }
        told = {"num-patients": float(len(np.unique(self._patients))), **of_class}
        return {name: self.disclosure.rounded(count) for name, count in told.items()}

    def _sure(self, sureness: Sureness, name: str, share: float, tables: "_Tables") -> Estimate:
        if name == CALIBRATION:
            return sureness.estimate_calibration_error(share)
        if name.startswith(IN_BIN) and self._noised:  # the model decides what is in a bin
            part = tables.counts[f"images-in-bin-{name.removeprefix(IN_BIN)}"] / len(self._labels)
            return wilson(share, round_down(part * sureness.outcome.shares.worth["accuracy"]))
        return sureness.estimate_share(name, share)

    def _gain(self, judged: Judged) -> dict[str, float]:
        """How much better the balanced accuracy is than that of the hospital's own model."""
        name, alone = "balanced-accuracy", self._alone
        if alone is None or name not in judged.told or name not in alone.told:
            return {}
        count = len(self._classes)
        estimate = combine(
            [1 / count] * count + [-1 / count] * count,
            [*judged.recalls, *alone.recalls],
            judged.sureness.correlation(alone.sureness),
        )
        gain = judged.told[name] - alone.told[name]
        noise = hypot(judged.noise, alone.noise)
        told = _estimate_figures("gain", estimate.told(gain, noise, least=-1.0))
        return told | ({"gain-noise": noise} if noise else {})

    def _operating_point(self, said: Said) -> Floats:
        labels = self.seen.labels.cpu().numpy()
        scores = said.seen.cpu().nan_to_num().double().numpy()
        own, others = count_above(scores, labels)
        sizes = np.bincount(labels, minlength=len(own)).astype(float)
        if noised := self._noised:
            moved = self._most_seen * sqrt(own.size)
            width = moved * sqrt(noised.rules.max_detailed) / TOLD
            noise = partial(noised.noise.table, model=said.model, shape=own.shape)
            own, others = (
                table + width * noise(f"{name} reached")
                for name, table in (("own", own), ("others", others))
            )
        return operating_point(own, others, sizes)


@dataclass(frozen=True)
class _Tables:
    """What is counted of a model.

    Attributes:
        counts: By name.
        shares: What follows from them, and is not too coarse to be told.
        noise: The standard deviation of the noise in each, also in those that are too coarse.
        means: All recalls as they are before they are cut off at 0 and 1, for the mean of all.
    """

    counts: dict[str, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    noise: dict[str, float] = field(default_factory=dict)
    means: dict[str, float] = field(default_factory=dict)

    def settle(self, figures: dict[str, float], noise: dict[str, float]) -> None:
        """Make figures of all classes agree with what is told of each.

        Args:
            figures: Both accuracies and the AUROC, as far as they are told of one of many more
                models; changed.
            noise: In these; changed.
        """
        classes = [name.removeprefix(RECALL) for name in self.means]
        sizes = np.array([self.counts[f"images-of-class-{k}"] for k in classes])
        of_class = np.array([self.noise[name] for name in self.means])
        told = np.array([self.shares.get(name, nan) for name in self.means])
        known = np.isfinite(told)
        for name, part in (
            ("accuracy", sizes / sizes.sum()),
            ("balanced-accuracy", np.full(len(sizes), 1 / len(sizes))),
        ):
            coarse = float(np.hypot.reduce(part * of_class))
            if known.all() or coarse < noise.get(name, COARSEST):
                figures[name], noise[name] = float(part @ [*self.means.values()]), coarse
            if name in figures:
                least = part[known] @ told[known]
                most = least + part[~known].sum()
                figures[name] = float(np.clip(figures[name], least, most))
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
        for k, size, share in zip(classes, sizes, told, strict=True):
            if f"right-of-class-{k}" in figures and isfinite(share):
                figures[f"right-of-class-{k}"] = round(share * size)

    def add(self, name: str, share: float, noise: float) -> bool:
        """Take a share in unless its noise is too large; whether it was."""
        self.noise[name] = noise
        if noise <= COARSEST:
            self.shares[name] = float(share)
        return noise <= COARSEST


def _estimate_figures(name: str, estimate: Estimate) -> dict[str, float]:
    """An estimate as figures."""
    ends = {f"{name}-low": estimate.low, f"{name}-high": estimate.high}
    return {name: estimate.value, **ends}
