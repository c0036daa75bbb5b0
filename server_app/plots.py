"""The pictures of the report: each function draws a summary as an SVG for a page."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import wraps
from io import StringIO
from typing import Any, TypeVar, cast

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import QuadMesh
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from server_app.summary import Summary

# Inches. All pictures are as wide as the page, and their axes begin at the same place.
LEFT, SIDE, RIGHT = 1.2, 5.0, 1.3  # room for names, the longest axes, room for a legend
LONGEST = 18  # letters of a name that fit into that room
NUMBERED = 12  # more columns than this leave no room for numbers in the cells
NAMED = 10  # more lines than this cannot be told apart

GREY, PALE, BLUE, RED = "#999999", "#e8e8e8", "#2f6690", "#c8553d"
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small, searchable, in the font of the page
    "svg.hashsalt": "fedhandoff",  # the same run gives the same page
    "text.parse_math": False,  # a hospital may have a $ in its name
    "font.size": 8.5,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "xtick.color": GREY,
    "xtick.labelcolor": "black",
    "ytick.color": GREY,
    "ytick.labelcolor": "black",
    "legend.frameon": False,
}


DrawnT = TypeVar("DrawnT")


def picture(draw: Callable[[Axes, DrawnT], None]) -> Callable[[DrawnT], str]:
    """Turn a function that draws on axes, and sets their size, into one that returns an SVG."""

    @wraps(draw)
    def as_svg(drawn_from: DrawnT) -> str:
        file = StringIO()
        with mpl.rc_context(STYLE):
            figure = Figure()
            draw(figure.add_axes((0, 0, 1, 1)), drawn_from)
            drawn = figure.get_tightbbox()
            page = Bbox.from_extents(-LEFT, drawn.y0 - 0.1, SIDE + RIGHT, drawn.y1 + 0.1)
            unsigned = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            figure.savefig(file, format="svg", bbox_inches=page, metadata=unsigned)
        svg = file.getvalue()
        return svg[svg.index("<svg") :]

    return as_svg


@picture
def matrix(axes: Axes, summary: Summary) -> None:
    """Accuracy of every model (row) at every hospital (column); below, mean ± std of a column."""
    accuracies = np.array(summary.accuracy_matrix)  # [M, N]
    # Only the light half of the colours: black numbers stay readable on them.
    colours = ListedColormap(mpl.colormaps["Blues"](np.linspace(0.05, 0.65, 256)))
    mesh, height = _cells(axes, accuracies, (0.6, 0.32), cmap=colours.with_extremes(bad=PALE))
    _name(axes.yaxis, summary.models)
    _name(axes.xaxis, summary.hospitals, rotation=45, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    if len(summary.hospitals) <= NUMBERED:
        for (row, column), accuracy in np.ndenumerate(accuracies):
            text = f"{accuracy:.2f}" if np.isfinite(accuracy) else ""
            axes.text(column, row, text, ha="center", va="center")
    else:
        _figure(axes).colorbar(mesh, cax=axes.inset_axes((1.03, 0, 0.02, 1)))
    if len(summary.models) > 1:
        below = axes.inset_axes((0, -1.4 / height, 1, 1.2 / height), xlim=axes.get_xlim())
        convergence = [summary.node_convergence[hospital] for hospital in summary.hospitals]
        means, stds = ([each[key] for each in convergence] for key in ("mean", "std"))
        below.errorbar(range(len(means)), means, stds, fmt="o", color=BLUE, ms=4, elinewidth=1)
        below.set_xticks([])
        below.set_ylabel("mean ± std")


@picture
def progress(axes: Axes, summary: Summary) -> None:
    """Federation, personalised and after-visit accuracy over the rounds."""
    history = summary.history
    lines = {
        "after visit": history["accuracy_after_visit"],
        "personalised": history["personalized_accuracy"],
        "federation": history["federation_accuracy"],
    }
    _lines(axes, history["round"], lines)


@picture
def hospitals(axes: Axes, summary: Summary) -> None:
    """Accuracy over the rounds of the model that each hospital holds, on its own test images."""
    rounds, lines = summary.history["round"], summary.history["held"]
    if len(lines) > NAMED:
        axes.plot(rounds, np.transpose(list(lines.values())), color="#cccccc", linewidth=0.6)
        lines = {"mean of all": summary.history["personalized_accuracy"]}
    _lines(axes, rounds, lines)


@picture
def oscillation(axes: Axes, summary: Summary) -> None:
    """Global accuracy of one model over its visits, coloured by the hospital just visited."""
    _figure(axes).set_size_inches(SIDE, 2.4)
    named = len(summary.hospitals) <= NAMED
    colours = {h: f"C{k}" if named else BLUE for k, h in enumerate(summary.hospitals)}
    _visits(axes, summary.visits, [row["global_accuracy"] for row in summary.visits], colours)
    _count_rounds(axes)
    axes.set_ylabel("accuracy")
    if named:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


@picture
def own(axes: Axes, summary: Summary) -> None:
    """Accuracy at each hospital over all visits, with dots after its own."""
    height = 1 / len(summary.hospitals)
    _figure(axes).set_size_inches(SIDE, 0.8 / height)
    axes.set_axis_off()
    axes.yaxis.set_major_locator(MaxNLocator(3))
    for place, hospital in enumerate(summary.hospitals):
        bounds = (0, 1 - (place + 0.8) * height, 1, 0.8 * height)
        row = axes.inset_axes(bounds, sharex=axes, sharey=axes)
        accuracies = [visit["own_accuracies"].get(hospital, np.nan) for visit in summary.visits]
        _visits(row, summary.visits, accuracies, {hospital: f"C{place}"})
        row.text(1.03, 0.5, _short(hospital), transform=row.transAxes, va="center")
        row.tick_params(labelbottom=hospital == summary.hospitals[-1])
    _count_rounds(row)


@picture
def participation(axes: Axes, summary: Summary) -> None:
    """Who trained a model in which round (blue), and who missed a visit (red, crossed)."""
    took_part = [summary.participation[hospital] for hospital in summary.hospitals]
    last = max(number for each in took_part for number in each["visited"] + each["missed"])
    grid = np.full((len(took_part), 1 + last), np.nan)  # [N, 1 + R]: nothing happens in round 0
    for row, each in zip(grid, took_part, strict=True):
        row[each["visited"]] = 0
        row[each["missed"]] = 1
    colours = ListedColormap([BLUE, RED]).with_extremes(bad=PALE)
    _cells(axes, grid, (0.3, 0.2), cmap=colours, vmin=0, vmax=1)
    _name(axes.yaxis, summary.hospitals)
    rows, columns = np.nonzero(grid == 1)
    axes.plot(columns, rows, "x", color="white", ms=4, mew=1)
    _count_rounds(axes)
    axes.set_xlim(left=0.5)


@picture
def seconds(axes: Axes, summary: Summary) -> None:
    """What the hospitals' time was spent on."""
    phases, spent = list(summary.seconds), list(summary.seconds.values())
    _figure(axes).set_size_inches(SIDE, 0.24 * len(phases))
    bars = axes.barh(range(len(phases)), spent, height=0.6, color=BLUE)
    total = sum(spent) or 1.0
    axes.bar_label(bars, [f"{duration(each)} · {each / total:.0%}" for each in spent], padding=4)
    _name(axes.yaxis, phases)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def duration(seconds: float) -> str:
    """A time for people to read."""
    return f"{seconds:.1f} s" if seconds < 120 else str(timedelta(seconds=round(seconds)))


def _cells(
    axes: Axes, values: NDArray[np.float64], largest: tuple[float, float], **style: Any
) -> tuple[QuadMesh, float]:
    """Colour a table of values [rows, columns], row 0 on top; return it and its height in inches.

    `largest` is the width and height of a cell in inches; cells are smaller if `SIDE` would be
    exceeded.
    """
    rows, columns = values.shape
    width, height = (min(cell * n, SIDE) for cell, n in zip(largest, (columns, rows), strict=True))
    _figure(axes).set_size_inches(width, height)
    edges = np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5
    mesh = axes.pcolormesh(*edges, values, edgecolors="white", linewidth=0.5, **style)
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return mesh, height


def _name(axis: Axis, names: Sequence[str], **style: Any) -> None:
    """Write the names of rows or columns, as large as fits."""
    room = SIDE * 72 / len(names)  # points
    size = min(STYLE["font.size"], 0.75 * room)
    axis.set_ticks(range(len(names)), [_short(name) for name in names], fontsize=size, **style)


def _lines(axes: Axes, rounds: Sequence[int], lines: Mapping[str, Sequence[float]]) -> None:
    """Draw accuracies over rounds, each with its name."""
    _figure(axes).set_size_inches(SIDE, 2.0)
    for name, accuracies in lines.items():
        if np.isfinite(accuracies).any():
            axes.plot(rounds, accuracies, "o-", ms=3, linewidth=1.2, label=_short(name))
    _count_rounds(axes)
    axes.set_ylabel("accuracy")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def _visits(
    axes: Axes,
    visits: Sequence[Mapping[str, Any]],
    accuracies: Sequence[float],
    colours: Mapping[str, str],
) -> None:
    """Draw accuracies over visits, with dots at the end of those to the hospitals in `colours`."""
    hops = max(row["hop"] for row in visits)
    epochs = max(row["epochs"] for row in visits)
    left = [(epochs - row["epochs"]) / max(epochs, 1) for row in visits]  # share of the visit
    times = [v["round"] - 1 + (v["hop"] - e) / hops for v, e in zip(visits, left, strict=True)]
    axes.plot(times, accuracies, color=GREY, linewidth=0.6)
    for hospital, colour in colours.items():
        ends = [k for k, row in enumerate(visits) if row["hospital"] == hospital and not left[k]]
        x, y = [times[k] for k in ends], [accuracies[k] for k in ends]
        axes.plot(x, y, "o", ms=2.5, color=colour, label=_short(hospital))


def _count_rounds(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("round")


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _figure(axes: Axes) -> Figure:
    return cast(Figure, axes.get_figure(root=True))
