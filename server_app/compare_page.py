"""The comparison of methods as an HTML page, in the look of a run's report."""

from collections.abc import Sequence
from math import isfinite, log10, nan
from typing import Any

from pages.page import capital, render
from pages.plots import SERIES, Axis, Lane, Line, Picture, Span, chart, spans
from server_app.compare_words import (
    ABOUT,
    APART,
    cell,
    conclusions,
    interval,
    made_of,
    names,
    several,
    verdict,
)
from server_app.comparison import COSTS, FIGURES, MORE, Comparison, Difference, Figure, Method
from server_app.measures import mean, spread

MOST_ROWS = 60  # of a picture
SIGNED = Axis(-1, 1, (-1, -0.5, 0, 0.5, 1))
DASHED = {
    "accuracy": "always the most frequent class",
    "balanced-accuracy": "always the same answer, or chance",
    "auroc": "chance",
}


def page(comparison: Comparison) -> str:
    """Make the page."""
    methods = comparison.methods
    measured = [each for each in FIGURES + MORE if any(m.values(each) for m in methods)]
    return render(
        "comparison",
        f"{len(methods)} methods compared",
        conclusions=[*conclusions(comparison)],
        about=ABOUT,
        apart=APART,
        noised=comparison.noised,
        unlike=comparison.unlike,
        left_out=[[each.path, each.reason] for each in comparison.left_out],
        methods=[made_of(method) for method in methods],
        figures=[_figure(comparison, each) for each in measured],
        costs_head=["", *(" ".join(each.heading) for each in COSTS)],
        costs=[[m.name, *(cell(m.values(f), f.digits) for f in COSTS)] for m in methods],
    )


def _figure(comparison: Comparison, compared: Figure) -> dict[str, Any]:
    """A figure: of each method, at each hospital, and the differences."""
    methods, hospitals = comparison.methods, comparison.hospitals if compared.metric else []
    first, second = compared.heading
    words = f"balanced accuracy, {first}" if second == "balanced" else f"{second}, {first}"
    title = capital(words)
    lanes = [Lane(m.name, [_around(m.values(compared))], m.constant(compared)) for m in methods]
    axis, marked = SIGNED if compared.signed else None, _marked(compared, methods)
    drawn = spans(f"{title} by method", lanes, marked=marked, axis=axis)
    differences = comparison.differences(compared)
    sure = [each for each in differences if isfinite(each.interval[0])]
    return {
        "title": title,
        "means": drawn if len(methods) <= MOST_ROWS else None,
        "curves": _curves(title, compared, methods),
        "head": ["method", "all", *hospitals],
        "cells": [
            [m.name, *(cell(m.values(compared, h), compared.digits) for h in ["", *hospitals])]
            for m in methods
        ],
        "differences": _drawn(title, sure) if 0 < len(sure) <= MOST_ROWS else None,
        "several": several(sure),
        "pairs_head": ["methods", "over", "difference (95 % interval)", "verdict"],
        "pairs": [[*names(e), interval(e, compared.digits), verdict(e)] for e in differences],
    }


def _marked(compared: Figure, methods: Sequence[Method]) -> str:
    """What the dashed line is, for the key; empty if there is none."""
    known = {f"{same:.2f}" for m in methods if isfinite(same := m.constant(compared))}
    return f"{DASHED[compared.metric]}: {', '.join(sorted(known))}" if known else ""


def _curves(title: str, compared: Figure, methods: Sequence[Method]) -> Picture | None:
    """The figure over the rounds, if there is more than one and the methods have colours."""
    curves = {m.name: curve for m in methods if len(curve := m.curve(compared)) > 1}
    if not 0 < len(curves) <= SERIES or compared.signed:
        return None
    lines = [Line(name, [*curve], [*curve.values()]) for name, curve in curves.items()]
    constants = {round(same, 2) for m in methods if isfinite(same := m.constant(compared))}
    level = constants.pop() if len(constants) == 1 else nan
    return chart(f"{title}, by round", lines, level)


def _around(values: Sequence[float]) -> Span:
    middle, deviation = mean(values), spread(values)
    return Span(middle, middle - deviation, middle + deviation, values)


def _drawn(title: str, differences: Sequence[Difference]) -> Picture:
    """The differences, on an axis with 0 in its middle whose end has one digit."""
    most = max(abs(end) for each in differences for end in each.interval) or 1.0
    unit = 10.0 ** int(log10(most) // 1)
    end = unit * next(step for step in (1, 2, 3, 4, 5, 6, 8, 10) if step * unit >= most)
    lanes = [
        Lane(f"{names(each)[0]}: {verdict(each)}", [Span(each.mean, *each.interval)], 0.0)
        for each in differences
    ]
    axis = Axis(-end, end, (-end, -end / 2, 0, end / 2, end))
    return spans(f"Differences in {title}", lanes, axis=axis)
