"""What a run measured: pure functions from its events to its figures.

With A[m, j] the accuracy of model m on the n[j] test images of hospital j, M models, N hospitals:

    federation     1/(M·N) ΣΣ A[m, j]               what any model is worth anywhere; estimated if
                                                    a sample of the pairs is tested
    as printed     1/(2·N) ΣΣ A[m, j]               FedRewind's Eq. 4.11; the same if M = 2
    pooled         ΣΣ n[j]·A[m, j] / (M·Σ n[j])     the same, every image counting alike
    personalized   1/N Σ A[held by j, j]            the model that j holds after the hand-off
    origin         1/N Σ A[model named j, j]        what a model is worth where it started
    after visit    1/N Σ A[trained by j, j]         the model that j has just trained
    ensemble       1/N Σ A[mean of all models, j]   what they are worth together (last round)
    disagreement   1/N Σ std of A[., j] (M - 1)     how much the models differ
    global         Σ n[j]·A[m, j] / Σ n[j]          what one model is worth after one visit
    over tasks     mean over tasks of the accuracy  every task counting alike (over_tasks.py)
    within tasks   the same (Task-IL)               only the classes of an image's task can be right

A model may be tested several times in a round: after each of its visits (serial strategies), or
after each epoch of a visit. Each of these tests is of another version of the model. `after visit`
takes the version at the end of the visit, `global` every version by itself, and everything else the
latest. Global balanced accuracy puts all test images together: it is the mean over their classes of
the share that is right.

Means are over what was measured; a figure without any measurement is NaN. Hospitals of a deployment
round their figures, with noise, and may tell none (client_app/release/disclosure.py). `noise` is
the standard deviation of that in the first of these means that there is, balanced; NaN if figures
are exact.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, isfinite, nan, sqrt
from statistics import fmean, stdev, variance
from typing import Any, NamedTuple

from pages.verdicts.run import judge_run
from server_app.assessments import (
    assess,
    figure_everywhere,
    headline,
    pool,
    was_handed_on,
)
from server_app.data import data_of
from server_app.embeddings import embeddings_of
from server_app.over_tasks import measure as measure_over_tasks
from server_app.over_time import measure as measure_over_time
from server_app.summary import Summary
from strategies.engine.events import Event

Metrics = Mapping[str, float]
Tests = dict[tuple[str, str], Metrics]  # by (model, hospital)

Z = 1.959964  # of 95 %
LAST_ROUNDS = 10  # over which the end of a run is judged
METRICS = ("accuracy", "balanced-accuracy", "auroc")
# How the names begin of the accuracies on the images of one task: among all classes, or its own.
OF_TASK, IN_TASK = "accuracy-of-task-", "accuracy-in-task-"
PHASES = ("prepare", "train", "evaluate", "serialise")
# How the names begin of what a hospital measures of its synthetic images.
_OF_SYNTHETIC = re.compile(
    "gan-|fid|frechet-|ada-|release-(?!passed)|held-out-|diversity-|mml-|projection-"
)


class Version(NamedTuple):
    """A model as it was at one time of a round."""

    hop: int
    epochs: int
    lineage: str


Versions = dict[Version, dict[str, Metrics]]  # by hospital, earlier versions first


@dataclass(frozen=True)
class Round:
    """The figures of one round.

    Attributes:
        number: The round, from 1.
        trained: Hospitals that trained a model.
        tests: What was measured of the latest version of each model, by (model, hospital).
            `without_tests` only of models at hospitals that hold them.
        matrix: Accuracy by (model, hospital); empty if the round was not evaluated.
        by_task: Mean accuracy on each task that a hospital tells of, by its number.
        held: (model, hospital) of the model that each hospital holds after the round.
        figures: Means over the round, under their names in `Summary`.
        visits: As in `Summary`, of this round.
        seconds: From its first message to its last answer.
    """

    number: int
    trained: frozenset[str]
    tests: Tests
    matrix: dict[tuple[str, str], float]
    by_task: dict[int, float]
    held: set[tuple[str, str]]
    figures: dict[str, float]
    visits: list[dict[str, Any]]
    seconds: float

    def at_holders(self, metric: str) -> dict[str, float]:
        """A metric, at each hospital, of the model that it holds after the round."""
        return {
            hospital: self.tests.get((model, hospital), {}).get(metric, nan)
            for model, hospital in self.held
        }

    def without_tests(self) -> "Round":
        """The round without what is read of the latest one alone: tests of models not held."""
        return replace(self, tests={pair: self.tests.get(pair, {}) for pair in self.held})


def measure_round(
    number: int, events: Iterable[Event], cross: bool | str, seconds: float = nan
) -> Round:
    """The figures of one round, from its events.

    Args:
        number: The round.
        events: What happened in it.
        cross: Whether every model was tested everywhere, or at a sample of hospitals; the setting.
        seconds: How long it took.
    """
    events = [event for event in events if event.outcome == "ok"]
    visits = [event for event in events if _is_visit(event)]
    versions = _versions(events)
    latest = {version.lineage: tests for version, tests in versions.items()}
    tests = {(m, hospital): metrics for m in latest for hospital, metrics in latest[m].items()}
    held = {(e.lineage, e.hospital) for e in events if e.verb == "hand-off"}
    ensemble = [event.metrics for event in events if event.verb == "ensemble"]

    everywhere: Tests = (
        tests if cross is True else {}
    )  # what figures over all models are taken from

    figures = {"train_loss": _mean_of("train-loss", (event.metrics for event in visits))}
    for metric in METRICS:
        name = metric.replace("-", "_")
        federation, low, high = _mean_of(metric, everywhere.values()), nan, nan
        if isinstance(cross, str):
            federation, low, high = _sampled_mean(metric, tests, held)
        figures[f"federation_{name}"] = federation
        figures[f"federation_{name}_low"], figures[f"federation_{name}_high"] = low, high
        figures[f"ensemble_{name}"] = _mean_of(metric, ensemble)
        figures[f"personalized_{name}"] = _mean_of(metric, (tests.get(pair, {}) for pair in held))

    figures["noise"] = _noise(everywhere or {pair: tests.get(pair, {}) for pair in held})
    figures["fa_as_printed"] = figures["federation_accuracy"] * len(latest) / 2
    figures["disagreement"] = _disagreement(everywhere, "accuracy")
    figures["balanced_disagreement"] = _disagreement(everywhere, "balanced-accuracy")
    of_tasks = everywhere or {pair: tests.get(pair, {}) for pair in held}
    by_task = _by_task(of_tasks, OF_TASK)
    figures["accuracy_over_tasks"] = mean(by_task.values())
    figures["accuracy_within_tasks"] = mean(_by_task(of_tasks, IN_TASK).values())
    accuracies = {pair: metrics.get("accuracy", nan) for pair, metrics in tests.items()}
    matrix = {pair: accuracy for pair, accuracy in accuracies.items() if isfinite(accuracy)}
    figures["origin_accuracy"] = mean(a for (model, where), a in matrix.items() if model == where)
    figures["pooled_federation_accuracy"] = _pooled(everywhere.values())
    figures["accuracy_after_visit"] = mean(_after_visit(visits, versions).values())
    return Round(
        number=number,
        trained=frozenset(event.hospital for event in visits),
        tests=tests,
        matrix=matrix,
        by_task=by_task,
        held=held,
        figures=figures,
        visits=[
            _row(number, version, tested, visits)
            for version, tested in versions.items()
            if cross is True
        ],
        seconds=seconds,
    )


def summarise(
    strategy: str,
    events: Sequence[Event],
    rounds: Sequence[Round],
    wall_seconds: float,
    error: str,
    resumed: int = 0,
    classes: Sequence[str] = (),
    *,
    timed: bool = False,
    tasks: Sequence[int] = (),
    own_streams: bool = False,
    enrolment: Mapping[str, Sequence[str]] | None = None,
) -> Summary:
    """The figures of a run, from all its events and its finished rounds.

    With `timed` also those over time; with `tasks`, of which task each round of the run is (with
    `own_streams` at most hospitals), also those over tasks; with `enrolment`, who was planned to
    take part in which task, that plan.
    """
    evaluated = [each for each in rounds if each.matrix]
    last = evaluated[-1] if evaluated else measure_round(0, [], cross=False)
    hospitals = took_part(events)
    visits = [event for event in events if _is_visit(event)]
    models = sorted({event.lineage for event in visits})
    tested = [row for each in evaluated for row in each.visits]
    seconds = {
        phase: sum(filter(isfinite, (e.metrics.get(f"seconds-{phase}", 0.0) for e in events)))
        for phase in PHASES
    }
    seconds["wait"] = sum(event.seconds for event in events) - sum(seconds.values())
    failures = [
        {
            key: getattr(event, key)
            for key in ("round", "hop", "verb", "hospital", "lineage", "outcome", "reason")
        }
        for event in events
        if event.outcome != "ok"
    ]
    by_task = {each.number: each.by_task for each in evaluated}
    over_tasks = measure_over_tasks(tasks, by_task, own_streams) if any(tasks) else {}
    status = "completed with failures" if failures else "completed"
    of_last = [event for event in events if event.round == last.number]
    rows = assess(last.tests, last.held, of_last, was_handed_on(events), classes)
    pooled = pool(rows)
    first = headline(rows, last.figures, last.number)
    balanced = {pair: metrics.get("balanced-accuracy", nan) for pair, metrics in last.tests.items()}
    return Summary(
        strategy=strategy,
        status="failed" if error else status,
        error=error,
        rounds=rounds[-1].number if rounds else 0,
        hospitals=hospitals,
        models=models,
        classes=list(classes),
        headline=first,
        worth=judge_run(
            first,
            figure_everywhere(rows, last.figures),
            rows,
            pooled,
            last.number,
            {hospital for _, hospital in last.held},
        ),
        assessments=rows,
        pooled=pooled,
        data=data_of(events, classes),
        **last.figures,
        standalone_balanced_accuracy=mean(
            row["balanced_accuracy"]["value"]
            for row in rows
            if row["kind"] == "standalone" and row["balanced_accuracy"]
        ),
        node_convergence=_convergence(hospitals, last),
        accuracy_matrix=[[last.matrix.get((m, h), nan) for h in hospitals] for m in models],
        balanced_accuracy_matrix=[[balanced.get((m, h), nan) for h in hospitals] for m in models],
        history={
            "round": [each.number for each in evaluated],
            **{name: [each.figures[name] for each in evaluated] for name in last.figures},
            "seconds": [each.seconds for each in evaluated],
            **{
                name: _over_rounds([each.at_holders(metric) for each in evaluated], hospitals)
                for name, metric in (("held", "accuracy"), ("held_balanced", "balanced-accuracy"))
            },
        },
        visits=tested,
        last_rounds=_last_rounds(tested),
        best_round=_best_round(evaluated),
        best={
            name: max(filter(isfinite, (each.figures[name] for each in evaluated)), default=nan)
            for name in last.figures
            if name.endswith("accuracy")
        },
        wall_seconds=wall_seconds,
        resumed=resumed,
        seconds=seconds,
        bytes_sent=sum(event.bytes_sent for event in events),
        bytes_received=sum(event.bytes_received for event in events),
        bytes_per_hop=mean(e.bytes_sent + e.bytes_received for e in visits if e.outcome == "ok"),
        participation=_participation(hospitals, visits),
        epsilon_spent={
            event.hospital: event.metrics["epsilon-spent"]
            for event in events
            if "epsilon-spent" in event.metrics
        },
        failures=failures,
        synthetic={
            event.hospital: {
                key: value for key, value in event.metrics.items() if _OF_SYNTHETIC.match(key)
            }
            for event in events
            if event.verb == "query.prepare" and "release-passed" in event.metrics
        },
        embeddings=embeddings_of(events, tasks),
        enrolment={name: [*states] for name, states in (enrolment or {}).items()},
        tasks=over_tasks,
        **{name: mean(over_tasks.get(name, ())) for name in ("forgetting", "backward_transfer")},
        over_time=measure_over_time(events, [each.number for each in evaluated]) if timed else {},
    )


def took_part(events: Iterable[Event]) -> list[str]:
    """Hospitals that answered at least once, sorted."""
    return sorted({event.hospital for event in events if event.outcome == "ok"})


def finished(visits: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of `Summary.visits` of models at the end of a visit."""
    return list({(row["round"], row["hop"], row["lineage"]): row for row in visits}.values())


def mean(values: Iterable[float]) -> float:
    """Mean of the finite values; NaN if there is none."""
    finite = list(filter(isfinite, values))
    return fmean(finite) if finite else nan


def _mean_of(metric: str, measured: Iterable[Metrics]) -> float:
    return mean(metrics.get(metric, nan) for metrics in measured)


def _sampled_mean(
    metric: str, tests: Tests, held: Iterable[tuple[str, str]]
) -> tuple[float, float, float]:
    """The mean of a metric over all models and hospitals, and its 95 % interval, from a sample.

    Each model m is tested where it is held, H[m] pairs that stand for themselves, and at k[m] of
    its other N[m] = N - H[m] hospitals, drawn without replacement; with a[m] and s[m] the mean and
    the standard deviation (k - 1) of these k[m] tests (Cochran, Sampling Techniques, 1977, 5.3-4)

        mean     1/(M·N) Σ (ΣH A[m, j] + N[m]·a[m])
        its se   1/(M·N) √ Σ N[m]²·(1 - k[m]/N[m])·s[m]²/k[m]

    and 1.96 se to both sides. It is about hospitals that were not drawn alone, not about images.
    """
    hospitals, held = {hospital for _, hospital in tests}, {*held}
    total = pairs = spread_ = 0.0
    known: dict[str, tuple[list[float], list[float]]] = {}
    for (model, hospital), metrics in tests.items():
        value = metrics.get(metric, nan)
        if isfinite(value):
            known.setdefault(model, ([], []))[(model, hospital) in held].append(value)
    for drawn, own in known.values():
        others = len(hospitals) - len(own)
        left = others - len(drawn)
        if left and len(drawn) < 2:
            return nan, nan, nan
        pairs += len(hospitals)
        total += sum(own) + (others * fmean(drawn) if drawn else 0.0)
        spread_ += others * left * variance(drawn) / len(drawn) if left else 0.0
    if not pairs:
        return nan, nan, nan
    estimate, half = total / pairs, Z * sqrt(spread_) / pairs
    return estimate, max(0.0, estimate - half), min(1.0, estimate + half)


def _noise(tests: Tests) -> float:
    """Of the mean of balanced accuracies (without any, of accuracies); NaN if these are exact."""
    for name in ("balanced-accuracy", "accuracy"):
        told = [metrics for metrics in tests.values() if name in metrics]
        if told:
            parts = [metrics.get(f"{name}-noise", 0.0) / len(told) for metrics in told]
            return hypot(*parts) or nan
    return nan


def _by_task(tests: Tests, begins: str) -> dict[int, float]:
    numbers = {
        int(found[1])
        for told in tests.values()
        for name in told
        if (found := re.fullmatch(rf"{begins}(\d{{1,6}})", name))
    }
    return {number: _mean_of(f"{begins}{number}", tests.values()) for number in numbers}


def _is_visit(event: Event) -> bool:
    return event.verb.partition(".")[0] == "train"


def _versions(events: Iterable[Event]) -> Versions:
    versions: Versions = {}
    for event in events:
        if event.verb == "evaluate":
            version = Version(event.hop, event.epochs, event.lineage)
            versions.setdefault(version, {})[event.hospital] = event.metrics
    return {version: versions[version] for version in sorted(versions)}


def _after_visit(visits: Sequence[Event], versions: Versions) -> dict[str, float]:
    """Accuracy, at each hospital, of the model that it trained last, right after that visit."""
    left = {(version.hop, version.lineage): tests for version, tests in versions.items()}
    accuracies = {}
    for last in {visit.hospital: visit for visit in visits}.values():
        # A model that was averaged with those of other hospitals is not what this visit left.
        alone = _trainers(visits, last.hop, last.lineage) == {last.hospital}
        tests = left.get((last.hop, last.lineage), {}) if alone else {}
        tested = tests.get(last.hospital, {}).get("accuracy", nan)
        accuracies[last.hospital] = last.metrics.get("accuracy-after-visit", tested)
    return accuracies


def _trainers(visits: Iterable[Event], hop: int, lineage: str) -> set[str]:
    return {visit.hospital for visit in visits if (visit.hop, visit.lineage) == (hop, lineage)}


def _row(
    number: int, version: Version, tests: Mapping[str, Metrics], visits: Iterable[Event]
) -> dict[str, Any]:
    """The row of `Summary.visits` about a version."""
    trainers = _trainers(visits, version.hop, version.lineage)
    return {
        "round": number,
        **version._asdict(),
        "hospital": trainers.pop() if len(trainers) == 1 else "",
        "global_accuracy": _pooled(tests.values()),
        "global_balanced_accuracy": _pooled_balanced(tests.values()),
        "own_accuracies": {h: tests[h].get("accuracy", nan) for h in sorted(tests)},
    }


def _pooled(tests: Iterable[Metrics]) -> float:
    """Accuracy on the images of all tests together."""
    measured = [test for test in tests if isfinite(test.get("accuracy", nan))]
    images = sum(test.get("num-examples", 0) for test in measured)
    correct = sum(test.get("num-examples", 0) * test["accuracy"] for test in measured)
    return correct / images if images else nan


def _pooled_balanced(tests: Iterable[Metrics]) -> float:
    """Balanced accuracy on the images of all tests together, from the counts of their classes."""
    images: dict[str, float] = {}
    right: dict[str, float] = {}
    for test in tests:
        for name in test:
            number = name.removeprefix("right-of-class-")
            if number != name and (size := test.get(f"images-of-class-{number}", 0)):
                images[number] = images.get(number, 0) + size
                right[number] = right.get(number, 0) + test[name]
    return mean(right[number] / images[number] for number in images)


def _last_rounds(visits: Sequence[dict[str, Any]]) -> dict[str, float]:
    before = visits[-1]["round"] - LAST_ROUNDS if visits else 0
    late = [row for row in finished(visits) if row["round"] > before]
    balanced = _mean_and_spread(row["global_balanced_accuracy"] for row in late)
    return {
        **_mean_and_spread(row["global_accuracy"] for row in late),
        **{f"balanced_{name}": figure for name, figure in balanced.items()},
    }


def _over_rounds(
    rounds: Sequence[Mapping[str, float]], hospitals: Iterable[str]
) -> dict[str, list[float]]:
    """A figure over the rounds, by hospital."""
    return {hospital: [each.get(hospital, nan) for each in rounds] for hospital in hospitals}


def _convergence(hospitals: Iterable[str], last: Round) -> dict[str, dict[str, float]]:
    at: dict[str, list[Metrics]] = {hospital: [] for hospital in hospitals}
    for (_, hospital), metrics in last.tests.items():
        at[hospital].append(metrics)
    return {hospital: _agreement(tests) for hospital, tests in at.items()}


def _agreement(tests: Sequence[Metrics]) -> dict[str, float]:
    """Mean and spread of what models are worth at a hospital."""
    balanced = _mean_and_spread(metrics.get("balanced-accuracy", nan) for metrics in tests)
    return {
        **_mean_and_spread(metrics.get("accuracy", nan) for metrics in tests),
        **{f"balanced_{name}": figure for name, figure in balanced.items()},
    }


def _mean_and_spread(values: Iterable[float]) -> dict[str, float]:
    finite = [*filter(isfinite, values)]
    return {"mean": mean(finite), "std": spread(finite)}


def spread(values: Iterable[float]) -> float:
    """Standard deviation (N - 1) of the finite values; NaN if there are fewer than two."""
    finite = list(filter(isfinite, values))
    return stdev(finite) if len(finite) > 1 else nan


def _disagreement(tests: Tests, metric: str) -> float:
    """Standard deviation of all models at a hospital, mean over the hospitals."""
    at: dict[str, list[float]] = {}
    for (_, hospital), metrics in tests.items():
        at.setdefault(hospital, []).append(metrics.get(metric, nan))
    return mean(map(spread, at.values()))


def _best_round(evaluated: Sequence[Round]) -> int | None:
    for name in ("federation_balanced_accuracy", "personalized_balanced_accuracy"):
        measured = [each for each in evaluated if isfinite(each.figures[name])]
        if measured:
            return max(measured, key=lambda each: each.figures[name]).number
    return None


def _participation(
    hospitals: Collection[str], visits: Iterable[Event]
) -> dict[str, dict[str, Any]]:
    """Of each hospital; visits of others, which never answered, are left out."""
    own: dict[str, list[Event]] = {hospital: [] for hospital in hospitals}
    for event in visits:
        own.setdefault(event.hospital, []).append(event)
    return {hospital: _part_taken(own[hospital]) for hospital in hospitals}


def _part_taken(visits: Sequence[Event]) -> dict[str, Any]:
    done = [event.round for event in visits if event.outcome == "ok"]
    missed = [event.round for event in visits if event.outcome != "ok"]
    return {"visits": len(done), "visited": sorted(set(done)), "missed": sorted(set(missed))}
