"""The test performance of models, by hospital and over the test images of all hospitals.

Hospitals measure the figures and their intervals (client_app/release/details.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from learning.intervals import Figure, combine
from pages.figures import (
    MEANS,
    Assessment,
    Headline,
    assessment,
    largest_class,
    mean_over_hospitals,
    measured_rows,
)
from server_app.measures import Round, sampled_figure
from strategies.engine.events import Event


def assess(last: Round, events: Sequence[Event], classes: Sequence[str]) -> list[Assessment]:
    """The rows of `Summary.assessments`, from the last evaluated round and all events.

    Unless models or images were handed on, models are not compared with the hospitals' own ones.
    """
    handed_on = was_handed_on(events)
    rows = []
    for (model, hospital), metrics in sorted(last.tests.items()):
        known = {k: v for k, v in metrics.items() if handed_on or not k.startswith("gain")}
        row = assessment("model", model, hospital, known, classes)
        rows.append(row | {"held": (model, hospital) in last.held_pairs})
    others = {("ensemble", hospital): metrics for hospital, metrics in last.ensemble.items()}
    others |= {
        (event.verb, event.hospital): event.metrics
        for event in events
        if event.round == last.number and event.verb == "standalone" and handed_on
    }
    for (kind, hospital), metrics in sorted(others.items()):
        model = hospital if kind == "standalone" else ""
        rows.append(assessment(kind, model, hospital, metrics, classes) | {"held": False})
    return rows


def was_handed_on(events: Iterable[Event]) -> bool:
    """Whether a model was trained at two hospitals, or synthetic images left one."""
    trained: dict[str, set[str]] = {}
    for event in events:
        if "release-passed" in event.metrics:
            return True
        if event.verb.startswith("train") and event.outcome == "ok":
            trained.setdefault(event.lineage, set()).add(event.hospital)
    return any(len(hospitals) > 1 for hospitals in trained.values())


def pool(rows: Iterable[Assessment]) -> list[Assessment]:
    """The rows of `Summary.pooled`."""
    of_model: dict[tuple[str, str], list[Assessment]] = {}
    for row in rows:
        if row["kind"] != "standalone":
            of_model.setdefault((row["kind"], row["model"]), []).append(row)
    return [_pool_model(kind, model, tests) for (kind, model), tests in of_model.items()]


def _pool_model(kind: str, model: str, tests: Sequence[Assessment]) -> Assessment:
    images = [row["images"] for row in tests]
    described = zip(*(row["classes"] for row in tests), strict=True)
    classes = [_pool_class(each, images) for each in described]
    recalls = [each["recall"] for each in classes if each["recall"]]
    balanced = combine([1 / len(recalls)] * len(recalls), recalls) if recalls else None
    confusions = [row["confusion"] for row in tests if row["confusion"]]
    return {
        "kind": kind,
        "model": model,
        "hospitals": [row["hospital"] for row in tests],
        "images": _sum(images),
        "patients": _patients(tests),
        "balanced_accuracy": balanced,
        "accuracy": _weighted_mean(tests, "accuracy", images),
        **{name: _weighted_mean(tests, name, [1.0] * len(tests)) for name in MEANS},
        "largest_class": largest_class(classes),
        "classes": classes,
        "confusion": [
            [_sum(cells) for cells in zip(*lines, strict=True)]
            for lines in zip(*confusions, strict=True)
        ],
    }


def _pool_class(each: Sequence[Assessment], images: Sequence[float | None]) -> Assessment:
    """One class over several hospitals, from its figures and all test images at each hospital."""
    known = [row for row in each if row["images"]]
    own = [row["images"] or 0.0 for row in each]
    # A hospital may claim more images of a class than in all.
    others = [max((total or 0.0) - mine, 0.0) for total, mine in zip(images, own, strict=True)]
    weights = {"recall": own, "sensitivity": own, "specificity": others}
    return {
        "name": each[0]["name"],
        "images": _sum(row["images"] for row in known),
        "patients": _patients(known) if known else None,
        "right": _sum(row["right"] for row in known),
        **{name: _weighted_mean(each, name, of_rows) for name, of_rows in weights.items()},
    }


def _weighted_mean(
    rows: Sequence[Assessment], name: str, weights: Sequence[float | None]
) -> Figure | None:
    """The weighted mean of a figure over hospitals; None if it was measured at none."""
    parts = [
        (weight or 0.0, row[name]) for row, weight in zip(rows, weights, strict=True) if row[name]
    ]
    total = sum(weight for weight, _ in parts)
    if not total:
        return None
    return combine([weight / total for weight, _ in parts], [figure for _, figure in parts])


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _patients(rows: Sequence[Assessment]) -> float | None:
    """The patients of several hospitals; where none are named, each image counts as one."""
    if all(row["patients"] is None for row in rows):
        return None
    return _sum(row["images"] if row["patients"] is None else row["patients"] for row in rows)


def headline(rows: Sequence[Assessment], last: Round) -> Headline | None:
    """`Summary.headline`: the mean over held models; without them, the federation's figure."""
    tests = measured_rows(rows)
    figure = "federation_balanced_accuracy"
    if held := [row for row in tests if row["held"]]:
        figure, tests = "personalized_balanced_accuracy", held
    if not tests or not isfinite(last.figures[figure]):
        return None
    at: dict[str, Assessment] = {}  # all models at a hospital were tested on the same images
    for row in tests:
        at.setdefault(row["hospital"], row)
    return {
        "figure": figure,
        **mean_over_hospitals(tests, "balanced_accuracy"),
        "hospitals": len(at),
        "models": len({row["model"] for row in tests}),
        "images": _sum(row["images"] for row in at.values()),
        "patients": _patients([*at.values()]),
        "round": last.number,
    }


def figure_everywhere(rows: Iterable[Assessment], figures: Mapping[str, Any]) -> Figure | None:
    """The federation's balanced accuracy; None if unknown, or if only held models were tested."""
    tests = measured_rows(rows)
    name = "federation_balanced_accuracy"
    if not isfinite(figures[name]) or all(row["held"] for row in tests):
        return None
    return sampled_figure(figures, name) or mean_over_hospitals(tests, "balanced_accuracy")
