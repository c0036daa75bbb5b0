"""The comparison of methods as an HTML page with the style of a run's report."""

from collections.abc import Sequence
from math import isfinite, log10, nan
from typing import Any

from pages.figures import deviation
from pages.page import capital, render
from pages.plots import SERIES, Axis, Lane, Line, Picture, chart, spans
from pages.verdicts.methods import APART, count_pairs
from server_app.comparison import (
    COLUMNS,
    COSTS,
    MORE,
    OVER_TASKS,
    Column,
    Comparison,
    Difference,
    Method,
)
from server_app.measures import mean, spread
from strategies.protocol.text import amount

MOST_ROWS = 60  # rows of a picture
SIGNED = Axis(-1, 1, (-1, -0.5, 0, 0.5, 1))


def page(comparison: Comparison) -> str:
    """Make the page."""
    methods = comparison.methods
    measured = [each for each in COLUMNS + MORE if any(m.values(each) for m in methods)]
    return render(
        "comparison",
        f"{amount(len(methods), 'method')} compared",
        conclusions=comparison.conclusions,
        about=comparison.about,
        repeated=comparison.most_runs > 1,
        apart=APART,
        noised=comparison.noise,
        unlike=comparison.different_settings,
        left_out=[*comparison.left_out.items()],
        methods=[method.title for method in methods],
        figures=[_figure(comparison, each) for each in measured],
        costs_head=["method", *(" ".join(each.heading) for each in COSTS)],
        costs=[[m.name, *map(m.cell, COSTS)] for m in methods],
    )


def _figure(comparison: Comparison, compared: Column) -> dict[str, Any]:
    """A figure by method and hospital, and its differences."""
    methods, hospitals = comparison.methods, comparison.hospitals if compared.metric else []
    first, second = compared.heading
    words = f"balanced accuracy, {first}" if second == "balanced" else f"{second}, {first}"
    title = capital(words)
    lanes = [
        Lane(m.name, [deviation(mean(v), spread(v))], m.constant(compared), v)
        for m, v in ((m, m.values(compared)) for m in methods)
    ]
    levels = sorted({f"{c:.3f}" for m in methods if isfinite(c := m.constant(compared))})
    marked = f"{compared.constant}: {', '.join(levels)}" if levels else ""
    axis = SIGNED if compared.signed else None
    drawn = spans(f"{title} by method", lanes, marked=marked, axis=axis)
    differences = comparison.differences(compared)
    sure = [each for each in differences if each.has_interval]
    return {
        "title": title,
        "means": drawn if len(methods) <= MOST_ROWS else None,
        "curves": None if compared.signed else _curves(title, compared, methods, levels),
        "head": ["method", "all", *hospitals],
        "cells": [
            [m.name, *(m.cell(compared, hospital) for hospital in ["", *hospitals])]
            for m in methods
        ],
        "differences": _difference_picture(title, sure) if 0 < len(sure) <= MOST_ROWS else None,
        "several": count_pairs(len(sure)),
        "pairs_head": ["methods", "over", "difference (95 % interval)", "verdict"],
        "pairs": [each.cells for each in differences],
    }


def _curves(
    title: str, compared: Column, methods: Sequence[Method], levels: Sequence[str]
) -> Picture | None:
    """The figure over the rounds, if there is more than one and the methods have colours."""
    curves = {m.name: curve for m in methods if len(curve := m.curve(compared)) > 1}
    if not 0 < len(curves) <= SERIES:
        return None
    lines = [Line(name, [*curve], [*curve.values()]) for name, curve in curves.items()]
    # With tasks the classes, and so the constant figure, change from round to round.
    is_constant = len(levels) == 1 and not any(m.values(OVER_TASKS[0]) for m in methods)
    level = float(levels[0]) if is_constant else nan
    return chart(f"{title}, by round", lines, level, dashed=compared.constant)


def _difference_picture(title: str, differences: Sequence[Difference]) -> Picture:
    """The differences, on an axis with 0 in its middle and ends of one digit."""
    figures = {
        f"{each.cells[0]}: {each.cells[-1]}": figure
        for each in differences
        if (figure := each.figure)
    }
    lanes = [Lane(name, [figure], 0.0) for name, figure in figures.items()]
    ends = [end for each in figures.values() for end in (each["low"], each["high"])]
    most = max(map(abs, ends)) or 1.0
    unit = 10.0 ** int(log10(most) // 1)
    end = unit * next(step for step in (1, 2, 3, 4, 5, 6, 8, 10) if step * unit >= most)
    axis = Axis(-end, end, (-end, -end / 2, 0, end / 2, end))
    return spans(f"Differences in {title}", lanes, axis=axis)
