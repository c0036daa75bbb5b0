"""What a run measured: pure functions from its events to its figures.

With A[m, j] the accuracy of model m on the n[j] test images of hospital j, M models, N hospitals:

    federation     1/(M·N) ΣΣ A[m, j]               what any model is worth anywhere
    pooled         ΣΣ n[j]·A[m, j] / (M·Σ n[j])     the same, every image counting alike
    personalized   1/N Σ A[held by j, j]            what j has in hand, after the hand-off
    after visit    1/N Σ A[trained by j, j]         what j had in hand before it handed on
    ensemble       1/N Σ A[mean of all models, j]   what they are worth together (last round)
    disagreement   1/N Σ std of A[., j] (M - 1)     how much the models differ

Means are taken over what was measured; a figure without any measurement is NaN.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import fmean, stdev
from typing import Any

from strategies.events import Event

Tests = dict[tuple[str, str], Mapping[str, float]]  # metrics by (model, hospital)

METRICS = ("accuracy", "balanced-accuracy", "auroc")
PHASES = ("prepare", "train", "evaluate", "serialise")
# What a hospital says about itself before the first hop; the rest is about its synthetic images.
_NO_FIGURES = {"num-train", "num-test", "release-passed", *(f"seconds-{phase}" for phase in PHASES)}


@dataclass(frozen=True)
class Round:
    """What one round came to.

    Attributes:
        number: The round, from 1.
        trained: Hospitals that trained a model.
        matrix: Accuracy by (model, hospital); empty if the round was not evaluated.
        held: Accuracy at each hospital of the model that it holds after the round.
        figures: Means over the round, under their names in `Summary`.
    """

    number: int
    trained: frozenset[str]
    matrix: dict[tuple[str, str], float]
    held: dict[str, float]
    figures: dict[str, float]


@dataclass(frozen=True)
class Summary:
    """The contents of summary.json, where NaN is null.

    Accuracies are fractions in [0, 1], of the last evaluated round, and defined at the top of this
    file. Figures over all models exist only if `evaluate.cross` is set.

    Attributes:
        strategy: Its name.
        status: `completed`, `completed with failures` (of a hospital, at some time) or `failed`.
        error: Why the run failed; empty if it did not.
        rounds: Rounds finished.
        hospitals: Those that ever answered, sorted.
        models: Lineages that were to be trained, sorted.
        federation_accuracy: With `federation_balanced_accuracy` and `federation_auroc` beside it.
        ensemble_accuracy: The same of the mean probability of all models (`evaluate.ensemble`).
        pooled_federation_accuracy: The same, every image counting alike.
        disagreement: With `balanced_disagreement`, of the balanced accuracy.
        personalized_accuracy: With `personalized_balanced_accuracy` and `personalized_auroc`.
        accuracy_after_visit: Of the last model that each hospital trained in the round.
        train_loss: Mean over the visits of the round.
        node_convergence: Per hospital, `mean` and `std` (N - 1) of all models tested there.
        accuracy_matrix: A; rows as in `models`, columns as in `hospitals`.
        history: The figures above as lists over the evaluated rounds, whose numbers are in `round`;
            `held` lists the personalized accuracy of each hospital.
        best_round: The first one with the highest federation accuracy (without one: personalized
            accuracy). It is chosen on test data, as papers do, and so flatters the method.
        wall_seconds: From the start of the run to its end.
        seconds: Hospital-seconds: what hospitals reported to have spent on each of `PHASES`, and as
            `wait` all other time between a message to them and their answer.
        bytes_sent: To all hospitals together.
        bytes_received: From all hospitals together.
        bytes_per_hop: Mean over successful visits of the bytes to and from the hospital.
        participation: Per hospital the number of its `visits`, the rounds in which it `visited` a
            model, and the rounds in which it `missed` a visit that was asked of it.
        failures: Where, at what and why hospitals failed.
        synthetic: Per hospital that has made synthetic images, what it measured of them.
    """

    strategy: str
    status: str
    error: str
    rounds: int
    hospitals: list[str]
    models: list[str]
    federation_accuracy: float
    federation_balanced_accuracy: float
    federation_auroc: float
    ensemble_accuracy: float
    ensemble_balanced_accuracy: float
    ensemble_auroc: float
    pooled_federation_accuracy: float
    disagreement: float
    balanced_disagreement: float
    personalized_accuracy: float
    personalized_balanced_accuracy: float
    personalized_auroc: float
    accuracy_after_visit: float
    train_loss: float
    node_convergence: dict[str, dict[str, float]]
    accuracy_matrix: list[list[float]]
    history: dict[str, Any]
    best_round: int | None
    wall_seconds: float
    seconds: dict[str, float]
    bytes_sent: int
    bytes_received: int
    bytes_per_hop: float
    participation: dict[str, dict[str, Any]]
    failures: list[dict[str, Any]]
    synthetic: dict[str, dict[str, float]]


def measure_round(number: int, events: Iterable[Event], cross: bool) -> Round:
    """Measure one round by its events; `cross` tells whether every model was tested everywhere."""
    events = [event for event in events if event.outcome == "ok"]
    visits = [event for event in events if _is_visit(event)]
    tests = {(e.lineage, e.hospital): e.metrics for e in events if e.verb == "evaluate"}
    held = {(e.lineage, e.hospital) for e in events if e.verb == "hand-off"}
    ensemble = [event.metrics for event in events if event.verb == "ensemble"]

    figures = {"train_loss": mean(event.metrics.get("train-loss", nan) for event in visits)}
    for metric in METRICS:
        measured = {pair: metrics.get(metric, nan) for pair, metrics in tests.items()}
        name = metric.replace("-", "_")
        figures[f"federation_{name}"] = mean(measured.values()) if cross else nan
        figures[f"ensemble_{name}"] = mean(metrics.get(metric, nan) for metrics in ensemble)
        figures[f"personalized_{name}"] = mean(measured.get(pair, nan) for pair in held)

    figures["disagreement"] = _disagreement(tests, "accuracy") if cross else nan
    balanced = _disagreement(tests, "balanced-accuracy") if cross else nan
    figures["balanced_disagreement"] = balanced
    accuracies = {pair: metrics.get("accuracy", nan) for pair, metrics in tests.items()}
    matrix = {pair: accuracy for pair, accuracy in accuracies.items() if isfinite(accuracy)}
    images = {pair: tests[pair].get("num-examples", 0) for pair in matrix}
    correct = sum(images[pair] * accuracy for pair, accuracy in matrix.items())
    pooled = correct / sum(images.values()) if any(images.values()) else nan
    figures["pooled_federation_accuracy"] = pooled if cross else nan
    figures["accuracy_after_visit"] = mean(_after_visit(visits, matrix).values())
    return Round(
        number=number,
        trained=frozenset(event.hospital for event in visits),
        matrix=matrix,
        held={hospital: matrix[model, hospital] for model, hospital in held & matrix.keys()},
        figures=figures,
    )


def summarise(
    strategy: str, events: Sequence[Event], rounds: Sequence[Round], wall_seconds: float, error: str
) -> Summary:
    """Sum up a run: all its events, and the measures of its finished rounds."""
    evaluated = [each for each in rounds if each.matrix]
    last = evaluated[-1] if evaluated else measure_round(0, [], cross=False)
    hospitals = took_part(events)
    visits = [event for event in events if _is_visit(event)]
    models = sorted({event.lineage for event in visits})
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
    status = "completed with failures" if failures else "completed"
    return Summary(
        strategy=strategy,
        status="failed" if error else status,
        error=error,
        rounds=rounds[-1].number if rounds else 0,
        hospitals=hospitals,
        models=models,
        **last.figures,
        node_convergence={hospital: _convergence(hospital, last) for hospital in hospitals},
        accuracy_matrix=[[last.matrix.get((m, h), nan) for h in hospitals] for m in models],
        history={
            "round": [each.number for each in evaluated],
            **{name: [each.figures[name] for each in evaluated] for name in last.figures},
            "held": {h: [each.held.get(h, nan) for each in evaluated] for h in hospitals},
        },
        best_round=_best_round(evaluated),
        wall_seconds=wall_seconds,
        seconds=seconds,
        bytes_sent=sum(event.bytes_sent for event in events),
        bytes_received=sum(event.bytes_received for event in events),
        bytes_per_hop=mean(e.bytes_sent + e.bytes_received for e in visits if e.outcome == "ok"),
        participation={hospital: _participation(hospital, visits) for hospital in hospitals},
        failures=failures,
        synthetic={
            event.hospital: {
                key: value for key, value in event.metrics.items() if key not in _NO_FIGURES
            }
            for event in events
            if event.verb == "query.prepare" and "release-passed" in event.metrics
        },
    )


def took_part(events: Iterable[Event]) -> list[str]:
    """Hospitals that did anything that was asked of them, sorted."""
    return sorted({event.hospital for event in events if event.outcome == "ok"})


def mean(values: Iterable[float]) -> float:
    """Mean of the finite values; NaN if there is none."""
    finite = list(filter(isfinite, values))
    return fmean(finite) if finite else nan


def _is_visit(event: Event) -> bool:
    return event.verb.partition(".")[0] == "train"


def _after_visit(visits: Sequence[Event], matrix: dict[tuple[str, str], float]) -> dict[str, float]:
    """Accuracy at each hospital of the model that it trained last, right after it did."""
    accuracies = {}
    for last in {visit.hospital: visit for visit in visits}.values():
        # The matrix is taken at the end of the round: it shows what this visit left only if nobody
        # trained the model at the same time (and had it averaged) or after it.
        others = [v for v in visits if v.lineage == last.lineage and v.hop >= last.hop]
        in_matrix = matrix.get((last.lineage, last.hospital), nan) if others == [last] else nan
        accuracies[last.hospital] = last.metrics.get("accuracy-after-visit", in_matrix)
    return accuracies


def _convergence(hospital: str, last: Round) -> dict[str, float]:
    accuracies = [accuracy for (_, where), accuracy in last.matrix.items() if where == hospital]
    return {"mean": mean(accuracies), "std": spread(accuracies)}


def spread(values: Iterable[float]) -> float:
    """Standard deviation (N - 1) of the finite values; NaN if there are fewer than two."""
    finite = list(filter(isfinite, values))
    return stdev(finite) if len(finite) > 1 else nan


def _disagreement(tests: Tests, metric: str) -> float:
    """How much all models differ at a hospital, mean over the hospitals."""
    at: dict[str, list[float]] = {}
    for (_, hospital), metrics in tests.items():
        at.setdefault(hospital, []).append(metrics.get(metric, nan))
    return mean(map(spread, at.values()))


def _best_round(evaluated: Sequence[Round]) -> int | None:
    for name in ("federation_accuracy", "personalized_accuracy"):
        measured = [each for each in evaluated if isfinite(each.figures[name])]
        if measured:
            return max(measured, key=lambda each: each.figures[name]).number
    return None


def _participation(hospital: str, visits: Sequence[Event]) -> dict[str, Any]:
    own = [event for event in visits if event.hospital == hospital]
    done = [event.round for event in own if event.outcome == "ok"]
    missed = [event.round for event in own if event.outcome != "ok"]
    return {"visits": len(done), "visited": sorted(set(done)), "missed": sorted(set(missed))}
