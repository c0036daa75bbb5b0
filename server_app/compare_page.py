"""The comparison of methods as an HTML page, in the look of a run's report."""

from collections.abc import Iterator, Sequence
from math import isfinite

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from server_app.compare import ABOUT, APART, cell, interval, made_of, names, verdict
from server_app.comparison import COSTS, FIGURES, MORE, Comparison, Difference, Figure, Method
from server_app.measures import mean, spread
from server_app.plots import BLUE, GREY, SIDE, picture
from strategies.protocol.page import document, heading, notice, paragraph, table

ROW = 0.24  # inches
MOST_ROWS = 60  # of a picture


def page(comparison: Comparison) -> str:
    """Make the page."""
    methods = comparison.methods
    title = f"{len(methods)} methods compared"
    parts = [heading(title, 1), paragraph(ABOUT)]
    if comparison.unlike:
        parts.append(notice("amber", paragraph(APART), table(["", "", ""], comparison.unlike)))
    if comparison.left_out:
        rows = [[each.path, each.reason] for each in comparison.left_out]
        parts.append(notice("amber", paragraph("Left out:"), table(["", ""], rows)))
    parts.append(table(["", ""], [[method.letter, made_of(method)] for method in methods]))
    measured = [figure for figure in FIGURES + MORE if any(m.values(figure) for m in methods)]
    for figure in measured:
        parts += _section(comparison, figure)
    parts += [heading("Costs"), _overview(methods, COSTS)]
    return document(title, *parts)


def _overview(methods: Sequence[Method], figures: Sequence[Figure]) -> str:
    head = ["", *(" ".join(figure.heading) for figure in figures)]
    rows = [[m.letter, *(cell(m.values(f), f.digits) for f in figures)] for m in methods]
    return table(head, rows)


def _section(comparison: Comparison, figure: Figure) -> Iterator[str]:
    """A figure: of each method, at each hospital, and the differences."""
    methods, hospitals = comparison.methods, comparison.hospitals if figure.metric else []
    yield heading(" ".join(figure.heading).capitalize())
    if len(methods) <= MOST_ROWS:
        yield paragraph("Blue: mean and standard deviation. Grey: single runs.")
        yield runs((methods, figure))
    rows = [
        [m.letter, *(cell(m.values(figure, h), figure.digits) for h in ["", *hospitals])]
        for m in methods
    ]
    yield table(["", "all", *hospitals], rows)
    differences = comparison.differences(figure)
    shown = [each for each in differences if isfinite(each.interval[0])]
    if 0 < len(shown) <= MOST_ROWS:
        yield paragraph("Differences with 95 % intervals. Grey: the interval has 0 in it.")
        yield intervals(shown)
    if differences:
        rows = [[*names(e), interval(e, figure.digits), verdict(e)] for e in differences]
        yield table([""] * 4, rows)


@picture
def runs(axes: Axes, drawn: tuple[Sequence[Method], Figure]) -> None:
    """A figure of each method: its runs, their mean and standard deviation."""
    methods, figure = drawn
    for row, method in enumerate(methods):
        values = method.values(figure)
        axes.plot(values, [row] * len(values), "o", color=GREY, ms=3, alpha=0.7)
        axes.errorbar(mean(values), row, xerr=np.nan_to_num(spread(values)), fmt="o", color=BLUE)
    _rows(axes, [method.letter for method in methods])


@picture
def intervals(axes: Axes, differences: Sequence[Difference]) -> None:
    """Differences of pairs of methods, and where they are equal."""
    axes.axvline(0, color=GREY, linewidth=0.8)
    for row, each in enumerate(differences):
        low, high = each.interval
        colour = GREY if low <= 0 <= high else BLUE
        axes.plot([low, high], [row, row], color=colour)
        axes.plot(each.mean, row, "o", color=colour, ms=4)
    _rows(axes, [names(each)[0] for each in differences])


def _rows(axes: Axes, labels: Sequence[str]) -> None:
    canvas = axes.get_figure(root=True)
    assert isinstance(canvas, Canvas)
    canvas.set_size_inches(SIDE, ROW * max(len(labels), 2))
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
