"""The figures of a run: pure functions of its events (summary.py has the table of figures).

A model may be tested several times in a round: after each of its visits (serial strategies), or
after each epoch of a visit. Each of these tests is of another version of the model. Figures of a
visit use the version at its end. `Summary.visits` has every version. All other figures use the
latest version. If the last version is undone after its test (strategies/engine/undoing.py) and an
older one is tested instead, they use the older one. Means are over the measured values; a figure
without any measurement is NaN.
Hospitals of a deployment add noise to their figures and round them; they may also withhold them
(client_app/release/disclosure.py).
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot, isfinite, nan, sqrt
from statistics import fmean, stdev, variance
from typing import Any, NamedTuple

from learning.intervals import Figure, Z, without_interval
from pages.figures import ROUNDING
from strategies.engine.events import UNDO, Event, visits
from strategies.protocol.tested import TESTED

Pair = tuple[str, str]  # model, hospital
Metrics = Mapping[str, float]
Tests = dict[Pair, Metrics]

LAST_ROUNDS = 10  # rounds that count as the end of a run
# Prefixes of accuracies on the images of one task: among all classes, or among its own.
OF_TASK, IN_TASK = "accuracy-of-task-", "accuracy-in-task-"
PHASES = ("prepare", "train", "evaluate", "serialise")


class Version(NamedTuple):
    """A version of a model within a round."""

    hop: int
    epochs: int
    lineage: str


@dataclass(frozen=True)
class RoundEvents:
    """The figures of a round, computed from its events."""

    number: int  # from 1
    # Its events; and of other rounds the undone visits, in their places among these
    events: Sequence[Event]
    cross: bool | str  # whether all models are tested everywhere, or a sample: `Strategy.cross`

    @cached_property
    def visits(self) -> list[Event]:
        """The successful visits."""
        return [event for event in visits(self.events) if event.outcome == "ok"]

    @cached_property
    def span(self) -> tuple[float, float]:
        """The times of its first message and its last answer; NaN if unknown.

        A round that does not wait may end after the next one has begun.
        """
        # A visit may be undone after its round.
        own = [e for e in self.events if e.round == self.number and e.verb != UNDO]
        began = min((e.began for e in own if isfinite(e.began)), default=nan)
        return began, max((e.time for e in own if isfinite(e.time)), default=nan)

    @cached_property
    def _tested(self) -> tuple[dict[Version, dict[str, Metrics]], dict[str, Version]]:
        """The tests of each version by hospital, and the latest version of each model.

        If a hospital cannot test the copy before an undone one, its figures of the undone one do
        not count either: both copies may have the same hop.
        """
        found: dict[Version, dict[str, Metrics]] = {}
        latest: dict[str, Version] = {}
        undone: set[Version] = set()
        for event in self.events:
            if event.verb == "evaluate" and event.outcome == "ok":
                version = Version(event.hop, event.epochs, event.lineage)
                found.setdefault(version, {})[event.hospital] = event.metrics
                known = latest.get(event.lineage)
                if known is None or known in undone or version > known:
                    latest[event.lineage] = version
            elif event.verb == UNDO:
                undone |= {v for v in found if (v.lineage, v.hop) == (event.lineage, event.hop)}
            elif event.verb == "evaluate":
                for version in undone:
                    if event.lineage in ("", version.lineage):
                        found[version].pop(event.hospital, None)
        return found, latest

    @cached_property
    def versions(self) -> dict[Version, dict[str, Metrics]]:
        """The tests of each version of a model by hospital, in order; earlier versions first."""
        found, _ = self._tested
        return {version: dict(sorted(found[version].items())) for version in sorted(found)}

    @cached_property
    def models(self) -> dict[str, dict[str, Metrics]]:
        """The tests of the latest version of each model, by hospital.

        The version that is tested after an undone one is the latest, although it is older.
        """
        _, latest = self._tested
        return {name: self.versions[latest[name]] for _, _, name in self.versions}

    @cached_property
    def tests(self) -> Tests:
        """The tests of the latest version of each model, by pair of model and hospital."""
        return {(m, h): metrics for m, tests in self.models.items() for h, metrics in tests.items()}

    @cached_property
    def held_pairs(self) -> set[Pair]:
        """The model that each hospital holds after the round."""
        return {(e.lineage, e.hospital) for e in self.events if e.verb == "hand-off"}

    @cached_property
    def home_tests(self) -> Tests:
        """The tests of models where they are held."""
        return {pair: self.tests.get(pair, {}) for pair in sorted(self.held_pairs)}

    @cached_property
    def complete_tests(self) -> Tests:
        """The tests of all models at all hospitals; empty if not all pairs were tested."""
        return self.tests if self.cross is True else {}

    @cached_property
    def federation(self) -> dict[str, Figure]:
        """For each metric the mean over all pairs; without an interval if it is exact."""
        if isinstance(self.cross, str):
            return {metric: _sampled_mean(metric, self.tests, self.held_pairs) for metric in TESTED}
        tests = self.complete_tests.values()
        return {metric: without_interval(average(tests, metric)) for metric in TESTED}

    @cached_property
    def ensemble(self) -> dict[str, Metrics]:
        """The tests of the ensemble of all models, by hospital; none that has an undone model."""
        found: dict[str, Metrics] = {}
        for event in self.events:
            if event.verb == "ensemble":
                found[event.hospital] = event.metrics
            elif event.verb == UNDO:
                found.clear()
        return found

    @property
    def noise(self) -> float:
        """Standard deviation of the noise in the mean balanced accuracy; NaN if it is exact.

        Without balanced accuracies, the noise in the mean accuracy.
        """
        tests = (self.complete_tests or self.home_tests).values()
        for name in ("balanced-accuracy", "accuracy"):
            if known := [metrics for metrics in tests if name in metrics]:
                noises = (each.get(f"{name}-noise", 0.0) / len(known) for each in known)
                return hypot(*noises) or nan
        return nan

    def disagreement(self, metric: str) -> float:
        """The standard deviation over all models at a hospital, averaged over hospitals."""
        at: dict[str, list[float]] = {}
        for (_, hospital), metrics in self.complete_tests.items():
            at.setdefault(hospital, []).append(metrics.get(metric, nan))
        return mean(map(spread, at.values()))

    def task_accuracies(self, begins: str) -> dict[int, float]:
        """By task, the mean of the accuracies whose names begin so: `OF_TASK` or `IN_TASK`."""
        return _by_task([*(self.complete_tests or self.home_tests).values()], begins)

    @property
    def tasks_at(self) -> dict[str, dict[int, float]]:
        """By hospital and task, the mean of the accuracies `OF_TASK` at this hospital."""
        at: dict[str, list[Metrics]] = {}
        for (_, hospital), metrics in (self.complete_tests or self.home_tests).items():
            at.setdefault(hospital, []).append(metrics)
        return {hospital: _by_task(tests, OF_TASK) for hospital, tests in at.items()}

    def visit_accuracies(self) -> Iterable[float]:
        """The accuracy, at each hospital, of its last trained model right after that visit."""
        ends = {(version.hop, version.lineage): tests for version, tests in self.versions.items()}
        for last in {visit.hospital: visit for visit in self.visits}.values():
            # A model that was averaged with models of other hospitals is not this visit's result.
            alone = self._trainers(last.hop, last.lineage) == {last.hospital}
            tests = ends.get((last.hop, last.lineage), {}) if alone else {}
            tested = tests.get(last.hospital, {}).get("accuracy", nan)
            yield last.metrics.get("accuracy-after-visit", tested)

    def _trainers(self, hop: int, lineage: str) -> set[str]:
        return {each.hospital for each in self.visits if (each.hop, each.lineage) == (hop, lineage)}

    def tested_versions(self) -> list[dict[str, Any]]:
        """The rows of `Summary.visits`."""
        rows = []
        for version, tests in self.versions.items() if self.cross is True else ():
            trainers = self._trainers(version.hop, version.lineage)
            rows.append(
                {
                    "round": self.number,
                    **version._asdict(),
                    "hospital": trainers.pop() if len(trainers) == 1 else "",
                    "global_accuracy": pooled_accuracy(tests.values()),
                    "global_balanced_accuracy": _pooled_balanced(tests.values()),
                    "own_accuracies": {h: tests[h].get("accuracy", nan) for h in sorted(tests)},
                }
            )
        return rows


@dataclass(frozen=True)
class Round:
    """The figures of one round; `drop_tests` keeps only the tests of held models."""

    number: int  # from 1
    trained: frozenset[str]  # the hospitals that trained a model
    tests: Tests  # of the latest version of each model
    ensemble: dict[str, Metrics]  # the tests of the ensemble of all models, by hospital
    is_evaluated: bool  # whether a hospital reported an accuracy
    task_accuracies: dict[int, float]  # the mean accuracy on each task that a hospital reports
    tasks_at: dict[str, dict[int, float]]  # the same mean at each hospital
    held_pairs: set[Pair]  # the model that each hospital holds after the round
    figures: dict[str, float]  # means over the round, by their names in `Summary`
    visits: list[dict[str, Any]]  # the rows of `Summary.visits` of this round
    # Of its first message and its last answer, in seconds since the start of the run; virtual
    # seconds in virtual time
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """The time from its first message to its last answer."""
        return self.ended - self.began

    def held_figures(self, metric: str) -> dict[str, float]:
        """By hospital, a metric of the model that the hospital holds after the round."""
        return {
            hospital: self.tests.get((model, hospital), {}).get(metric, nan)
            for model, hospital in self.held_pairs
        }

    def drop_tests(self) -> "Round":
        """The round without tests of models that are not held; only the latest round needs them."""
        return replace(self, tests={pair: self.tests.get(pair, {}) for pair in self.held_pairs})


def last_leg_loss(events: Sequence[Event]) -> float:
    """The mean training loss of the last legs of the latest round with a rewind leg; NaN = none.

    These legs return a model to the hospital whose visit it is (strategies/fedrewind.py), after all
    rewind legs of the round.
    """
    legs = [event for event in visits(events) if event.outcome == "ok"]
    rewinds = ((event.round, event.hop) for event in legs if event.verb == "train.rewind")
    round_, hop = max(rewinds, default=(0, 0))
    returns = [event.metrics for event in legs if event.round == round_ and event.hop > hop]
    return average(returns, "train-loss")


def participants(events: Iterable[Event]) -> list[str]:
    """Hospitals that answered at least once, sorted."""
    return sorted({event.hospital for event in events if event.outcome == "ok"})


def visit_ends(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of `Summary.visits` that describe the end of a visit."""
    return list({(row["round"], row["hop"], row["lineage"]): row for row in rows}.values())


def mean(values: Iterable[float]) -> float:
    """Mean of the finite values; NaN if there is none."""
    finite = list(filter(isfinite, values))
    return fmean(finite) if finite else nan


def spread(values: Iterable[float]) -> float:
    """Standard deviation (N - 1) of the finite values; NaN if there are fewer than two."""
    finite = list(filter(isfinite, values))
    return stdev(finite) if len(finite) > 1 else nan


def average(tests: Iterable[Metrics], metric: str) -> float:
    """The mean of a metric over tests."""
    return mean(metrics.get(metric, nan) for metrics in tests)


def _by_task(tests: Collection[Metrics], begins: str) -> dict[int, float]:
    """By task, the mean over tests of the accuracies whose names begin so."""
    found = (re.fullmatch(rf"{begins}(\d{{1,6}})", name) for metrics in tests for name in metrics)
    numbers = {int(match[1]) for match in found if match}
    return {number: average(tests, f"{begins}{number}") for number in numbers}


def _sampled_mean(metric: str, tests: Tests, held: Collection[Pair]) -> Figure:
    """The mean of a metric over all models and hospitals, and its 95 % interval, from a sample.

    Each model m is tested where it is held, H[m] pairs that stand for themselves, and at k[m] of
    its other N[m] = N - H[m] hospitals, drawn without replacement; with a[m] and s[m] the mean and
    the standard deviation (k - 1) of these k[m] tests (Cochran, Sampling Techniques, 1977, 5.3-4)

        mean     1/(M·N) Σ (ΣH A[m, j] + N[m]·a[m])
        its se   1/(M·N) √ Σ N[m]²·(1 - k[m]/N[m])·s[m]²/k[m]

    and 1.96 se to both sides. The interval covers the choice of hospitals, not of images. If all
    pairs were tested, the mean is exact, and the ends are NaN.
    """
    hospitals = {hospital for _, hospital in tests}
    total = pairs = spread_ = untested = 0.0
    known: dict[str, tuple[list[float], list[float]]] = {}
    for (model, hospital), metrics in tests.items():
        value = metrics.get(metric, nan)
        if isfinite(value):
            known.setdefault(model, ([], []))[(model, hospital) in held].append(value)
    for drawn, own in known.values():
        others = len(hospitals) - len(own)
        left = others - len(drawn)
        if left and len(drawn) < 2:
            return without_interval(nan)
        pairs += len(hospitals)
        untested += left
        total += sum(own) + (others * fmean(drawn) if drawn else 0.0)
        spread_ += others * left * variance(drawn) / len(drawn) if left else 0.0
    if not untested:
        return without_interval(total / pairs if pairs else nan)
    estimate, half = total / pairs, Z * sqrt(spread_) / pairs
    return Figure(value=estimate, low=max(0.0, estimate - half), high=min(1.0, estimate + half))


def sampled_figure(figures: Mapping[str, Any], name: str) -> Figure | None:
    """A mean over a sample of pairs, with its interval if that has a width; None if exact."""
    low, high = (figures.get(f"{name}_{end}", nan) for end in ("low", "high"))
    if not isfinite(high - low):
        return None
    if high - low < ROUNDING:  # all drawn tests are equal
        low = high = nan
    return {"value": figures[name], "low": low, "high": high, "sampled": True}


def pooled_accuracy(tests: Iterable[Metrics]) -> float:
    """The accuracy on the images of all tests together."""
    measured = [test for test in tests if isfinite(test.get("accuracy", nan))]
    images = sum(test.get("num-examples", 0) for test in measured)
    correct = sum(test.get("num-examples", 0) * test["accuracy"] for test in measured)
    return correct / images if images else nan


def _pooled_balanced(tests: Iterable[Metrics]) -> float:
    """The balanced accuracy on the images of all tests together."""
    images: dict[str, float] = {}
    right: dict[str, float] = {}
    for test in tests:
        for name in test:
            number = name.removeprefix("right-of-class-")
            if number != name and (size := test.get(f"images-of-class-{number}", 0)):
                images[number] = images.get(number, 0) + size
                # A hospital may claim more right answers than images.
                right[number] = right.get(number, 0) + min(test[name], size)
    return mean(right[number] / images[number] for number in images)


def agreement(accuracies: Iterable[float], balanced: Iterable[float]) -> dict[str, float]:
    """Mean and standard deviation of accuracies and of balanced accuracies."""
    found: dict[str, float] = {}
    for begins, values in (("", accuracies), ("balanced_", balanced)):
        known = list(values)
        found |= {f"{begins}mean": mean(known), f"{begins}std": spread(known)}
    return found


def last_rounds(evaluated: Sequence[Round]) -> dict[str, float]:
    """`Summary.last_rounds`."""
    before = evaluated[-1].number - LAST_ROUNDS if evaluated else 0
    late = visit_ends([row for each in evaluated if each.number > before for row in each.visits])
    accuracies = (row["global_accuracy"] for row in late)
    return agreement(accuracies, (row["global_balanced_accuracy"] for row in late))


def convergence(hospitals: Iterable[str], tests: Tests) -> dict[str, dict[str, float]]:
    """`Summary.node_convergence`."""
    at: dict[str, list[Metrics]] = {hospital: [] for hospital in hospitals}
    for (_, hospital), metrics in tests.items():
        at[hospital].append(metrics)
    names = ("accuracy", "balanced-accuracy")
    return {
        hospital: agreement(*([each.get(name, nan) for each in own] for name in names))
        for hospital, own in at.items()
    }


def best_round(evaluated: Sequence[Round]) -> int | None:
    """`Summary.best_round`."""
    for name in ("federation_balanced_accuracy", "personalized_balanced_accuracy"):
        measured = [each for each in evaluated if isfinite(each.figures[name])]
        if measured:
            return max(measured, key=lambda each: each.figures[name]).number
    return None


def history(
    evaluated: Sequence[Round], names: Iterable[str], hospitals: Iterable[str]
) -> dict[str, Any]:
    """`Summary.history`; `names` are the names of figures."""
    held = {}
    for name, metric in (("held", "accuracy"), ("held_balanced", "balanced-accuracy")):
        rounds = [each.held_figures(metric) for each in evaluated]
        held[name] = {h: [each.get(h, nan) for each in rounds] for h in hospitals}
    return {
        "round": [each.number for each in evaluated],
        **{name: [each.figures[name] for each in evaluated] for name in names},
        "seconds": [each.seconds for each in evaluated],
        **held,
    }


def participation(hospitals: Iterable[str], visits: Iterable[Event]) -> dict[str, dict[str, Any]]:
    """`Summary.participation`; visits of hospitals that never answered are left out."""
    known: dict[str, tuple[list[Event], list[Event]]] = {
        hospital: ([], []) for hospital in hospitals
    }
    for event in visits:
        if event.hospital in known:
            known[event.hospital][event.outcome != "ok"].append(event)
    return {
        hospital: {
            "visits": len(done),
            "epochs": sum(event.epochs for event in done),
            "visited": sorted({event.round for event in done}),
            "missed": sorted({event.round for event in missed}),
        }
        for hospital, (done, missed) in known.items()
    }


def seconds(events: Sequence[Event]) -> dict[str, float]:
    """`Summary.seconds`."""
    found = {
        phase: sum(filter(isfinite, (e.metrics.get(f"seconds-{phase}", 0.0) for e in events)))
        for phase in PHASES
    }
    return found | {"wait": sum(event.seconds for event in events) - sum(found.values())}
