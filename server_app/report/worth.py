"""The section for a clinician: better than training alone or not, where, which class, how sure.

The sentences are those of `Summary.worth`; this file adds the figures.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite, nan
from typing import Any

from learning.intervals import Figure, Z
from pages import plots
from pages.figures import MEANS, Assessment, measured_rows, size
from pages.figures_view import (
    CLASS,
    MORE,
    ONE_VS_REST,
    class_cells,
    compared_cell,
    confusion,
    distinct_classes,
    figure_cell,
    more_cells,
    one_vs_rest_cells,
    reliability,
    size_cell,
)
from pages.page import value_text
from pages.plots import Lane
from pages.verdicts.model import chance, mean_chance, tested_classes, worst_pair
from server_app.assessments import figure_everywhere
from server_app.summary import Summary

CHANCE = "chance: a constant answer"
EACH = 12  # with more hospitals, long tables are folded and list only models that hospitals hold
SAID = 8  # most sentences that are not folded
FOLDED = 6  # most hospitals in tables of classes that are not folded
MODELS = {"ensemble": "mean of all models", "standalone": "its own, before the first hand-off"}


def figures(summary: Summary, chances: Mapping[str, float]) -> dict[str, Any]:
    """Return the section's values; `chances` as in method.py."""
    own = {row["hospital"]: row for row in _rows_of_kind(summary, "model") if row["held"]}
    alone = {row["hospital"]: row for row in _rows_of_kind(summary, "standalone")}
    rows, many = summary.assessments, len(summary.hospitals) > EACH
    if many:
        rows = [row for row in rows if row["held"] or row["kind"] != "model"]
    return {
        "sentences": {about: _sentences(summary, about) for about in ("run", "hospital", "class")},
        "headline": _headline(summary),
        **_comparison_with_own(own, alone, chances),
        **_class_values(summary, own),
        "held_alone": many,
        "head": ["balanced accuracy", *MORE, "images"],
        "everywhere": [[row["hospital"], *_cells(row)] for row in rows],
        "together": list(map(_cells, summary.pooled)),
        "means": " and ".join(MEANS.values()),
        "confusions": [
            (hospital, confusion(summary.classes, row["confusion"]))
            for hospital, row in own.items()
            if row["confusion"]
        ],
        "reliability": [
            reliability(h, bins) for h, row in own.items() if (bins := row["calibration"])
        ],
    }


def _sentences(summary: Summary, about: str) -> dict[str, list[Any]]:
    """The summary's sentences about the run, its hospitals or its classes."""
    verdicts = [row for row in summary.worth if row["about"] == about]
    return {"first": verdicts[:SAID], "more": verdicts[SAID:]}


def _headline(summary: Summary) -> dict[str, Any] | None:
    """The means of held models and of all models everywhere, each with the worst model."""
    first = summary.headline
    if first is None:
        return None
    value, _, within = figure_cell(first).partition(" ")
    tests = _rows_of_kind(summary, "model")
    held = [row for row in tests if row["held"]]
    everywhere = figure_everywhere(summary.assessments, vars(summary))
    lanes = [*_mean_and_worst("the models that hospitals hold", first, held)] if held else []
    lanes += _mean_and_worst("every model at every hospital", everywhere, tests)
    return {
        "value": value,
        "within": within,
        "size": size(first),
        "round": first["round"],
        "chance": value_text(same) if isfinite(same := mean_chance(held or tests)) else "",
        "interval": isfinite(first["low"]),
        "worst": len(tests) > 1,
        "noise": f"{Z * first['noise']:.3f}" if "noise" in first else "",
        "drawn": plots.spans("Balanced accuracy of the run", lanes, marked=CHANCE),
    }


def _mean_and_worst(name: str, mean: Figure | None, tests: Sequence[Assessment]) -> Iterator[Lane]:
    """The mean over models at hospitals, and the worst one."""
    if mean is None:
        return
    yield Lane(f"Mean of {name}", [mean], mean_chance(tests))
    if len(tests) > 1:
        least = worst_pair(tests)
        label = f"Worst: '{least['model']}' at {least['hospital']}"
        yield Lane(label, [least["balanced_accuracy"]], chance(least))


def _comparison_with_own(
    own: Mapping[str, Assessment], alone: Mapping[str, Assessment], chances: Mapping[str, float]
) -> dict[str, Any]:
    """Each hospital's own model before the first hand-off, and its model after the run."""
    names = ["the model that it holds after the run"]
    if alone:
        names.insert(0, "the hospital's own model, before the first hand-off")
    lanes, gains = [], []
    for hospital, row in own.items():
        after = row["balanced_accuracy"]
        before = alone[hospital]["balanced_accuracy"] if hospital in alone else None
        lanes.append(Lane(hospital, [before, after] if alone else [after], chances[hospital]))
        cells = [*map(figure_cell, (before, after)), figure_cell(row["gain"], signed=True)]
        gains.append([hospital, *cells, compared_cell(row), size_cell(row)])
    return {
        "held": plots.spans("Balanced accuracy by hospital", lanes, names, CHANCE) if own else None,
        "compares": bool(alone) or any(row["gain"] for row in own.values()),
        "gains": gains,
        "many": len(gains) > EACH,
    }


def _class_values(summary: Summary, own: Mapping[str, Assessment]) -> dict[str, Any]:
    """The share right of each class at each hospital."""
    classes = summary.classes if any(map(tested_classes, own.values())) else []
    of_class = [{h: row["classes"][k] for h, row in own.items()} for k in range(len(classes))]
    recalls = [[each["recall"] for each in at.values()] for at in of_class]
    shares = [[figure["value"] if figure else nan for figure in row] for row in recalls]
    halves = [0.5] * len(own)
    known = any(isfinite(share) for row in shares for share in row)
    drawn = plots.heat("Share right", classes, list(own), shares, halves, "half or less")
    return {
        "shares": drawn if known else None,
        "classes_folded": len(classes) > 3 or len(own) > FOLDED,
        "by_class": [
            _class(*each) for each in zip(classes, of_class, distinct_classes(classes), strict=True)
        ],
    }


def _class(name: str, at: Mapping[str, Assessment], against: bool) -> dict[str, Any]:
    """The share right of one class at each hospital; `against` adds it against all others."""
    lanes = [Lane(hospital, [row["recall"]]) for hospital, row in at.items()]
    drawn = plots.spans(f"Share of class {name} that is right, by hospital", lanes)
    more = ONE_VS_REST if against else ()
    return {
        "name": name,
        "drawn": drawn if any(row["recall"] for row in at.values()) else None,
        "head": ["hospital", *CLASS, *more],
        "rows": [
            [hospital, *class_cells(row), *(one_vs_rest_cells(row) if against else ())]
            for hospital, row in at.items()
        ],
    }


def _cells(row: Assessment) -> list[object]:
    return [
        MODELS.get(row["kind"], row["model"]),
        figure_cell(row["balanced_accuracy"]),
        *more_cells(row),
        size_cell(row),
    ]


def _rows_of_kind(summary: Summary, kind: str) -> list[Assessment]:
    """The rows of a kind with a balanced accuracy, sorted by hospital."""
    rows = measured_rows(summary.assessments, kind)
    return sorted(rows, key=lambda row: str(row["hospital"]))
