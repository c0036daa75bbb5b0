"""The command that compares methods over their runs, its text and its CSV file.

uv run python -m server_app compare ~/fedhandoff/runs --csv table.csv --html table.html
"""

import argparse
import csv
import sys
import textwrap
from collections.abc import Iterator, Sequence
from math import isfinite, nan
from pathlib import Path
from typing import Any

from server_app.comparison import (
    COSTS,
    FIGURES,
    MORE,
    OVER_TASKS,
    SEEDS,
    Comparison,
    Difference,
    Figure,
    Method,
    compared,
    listed,
)
from server_app.measures import mean, spread
from strategies.protocol.text import inert

WIDTH = 80  # of a line of text
MOST_HOSPITALS, MOST_PAIRS = 4, 21  # in the terminal: what fits into a line, and on a page
AT_HOME, EVERYWHERE = FIGURES[2], FIGURES[0]  # what the conclusion is about
COLUMNS = ("method", "minus", "figure", "hospital", "mean", "std", "low", "high", "count")
ABOUT = (
    "Mean ± standard deviation over runs. At home: the model that a hospital holds after the "
    "hand-off. Everywhere: every model at every hospital. Differences: mean over the seeds that "
    "both methods have, with a 95 % interval from three seeds on (Student's t: hospitals of one "
    "seed share their models and are no independent repetitions, and a bootstrap of so few seeds "
    "is too narrow). It says how far other seeds would move the difference, not other hospitals "
    "or patients. Of 20 such intervals one misses."
)
APART = "Not alike. Methods with other data or another split are not compared in pairs."


def add_command(commands: Any) -> None:
    """Add `compare` to the commands of `python -m server_app`."""
    about = "compare methods over their runs: figures, differences with intervals, costs"
    parser = commands.add_parser("compare", help=about, description=about)
    parser.set_defaults(command=_command)
    parser.add_argument(
        "folders", nargs="+", type=Path, help="result directories, or folders with such below"
    )
    parser.add_argument("--csv", type=Path, help="write all figures and differences to this file")
    parser.add_argument("--html", type=Path, help="write a page with pictures to this file")


def _command(arguments: argparse.Namespace) -> None:
    comparison = compared(arguments.folders)
    print(text(comparison))
    if arguments.csv:
        with arguments.csv.expanduser().open("w", encoding="utf-8", newline="") as file:
            rows = [COLUMNS, *records(comparison)]
            csv.writer(file).writerows(map(inert, row) for row in rows)
    if arguments.html:
        from server_app.compare_page import page  # it imports this file

        arguments.html.expanduser().write_text(page(comparison), encoding="utf-8")
    sys.exit(not comparison.methods)


def records(comparison: Comparison) -> Iterator[list[object]]:
    """The rows of the CSV file: `COLUMNS`; `minus` is empty if a row is no difference.

    `count` is of the runs, or the seeds, behind a figure.
    """
    for figure in FIGURES + MORE + COSTS:
        for hospital in ["", *comparison.hospitals]:
            for method in comparison.methods:
                if values := method.values(figure, hospital):
                    own = [mean(values), spread(values), nan, nan, len(values)]
                    yield [method.name, "", figure.name, hospital, *map(_number, own)]
            for each in comparison.differences(figure, hospital):
                if each.by_seed:
                    own = [each.mean, spread(each.by_seed.values()), *each.interval]
                    names = [each.first.name, each.second.name, figure.name, hospital]
                    yield [*names, *map(_number, [*own, len(each.by_seed)])]


def _number(value: float) -> object:
    return value if isfinite(value) else ""


def cell(values: Sequence[float], digits: int) -> str:
    """Mean and standard deviation, as far as they exist; of costs the mean alone."""
    if not values:
        return "–"
    deviation = f"±{spread(values):.{digits}f}" if len(values) > 1 and digits > 1 else ""
    return f"{mean(values):.{digits}f}{deviation}"


def interval(difference: Difference, digits: int) -> str:
    """A difference and its interval, if there are seeds enough for one."""
    if not difference.by_seed:
        return "–"
    low, high = (f"{end:+.{digits}f}" for end in difference.interval)
    within = f" [{low}, {high}]" if len(difference.by_seed) >= SEEDS else ""
    return f"{difference.mean:+.{digits}f}{within}"


def conclusions(comparison: Comparison) -> Iterator[str]:
    """A sentence about the models that hospitals hold, and one about all models everywhere."""
    yield from _conclusion(comparison, AT_HOME, "At home, with the model that a hospital holds")
    yield from _conclusion(comparison, EVERYWHERE, "Everywhere, every model at every hospital")


def _conclusion(comparison: Comparison, figure: Figure, where: str) -> Iterator[str]:
    """Which of the methods that have the same images is highest, and above which this is shown."""
    differences = [each for each in comparison.differences(figure) if each.by_seed]
    if not differences:
        return
    methods = {method.name: method for each in differences for method in (each.first, each.second)}
    best = max(methods.values(), key=lambda method: mean(method.values(figure)))
    value, constant = mean(best.values(figure)), best.constant(figure)
    text = f"{where}: {listed([best.name])} has the highest balanced accuracy ({value:.3f})"
    if value <= constant:
        text += f", which is no more than always the same answer reaches ({constant:.3f})"
    by_verdict: dict[str, list[str]] = {}
    for each in differences:
        if best in (each.first, each.second):
            other = each.second if each.first is best else each.first
            kind = "few" if len(each.by_seed) < SEEDS else verdict(each)
            by_verdict.setdefault(kind, []).append(other.name)
    above = by_verdict.pop(f"{best.name} is higher", [])
    few = by_verdict.pop("few", [])
    rest = [name for names in by_verdict.values() for name in names]
    parts = [f"shown to be above {listed(above)}"] * bool(above)
    parts += [f"not shown to differ from {listed(rest)}"] * bool(rest)
    parts += [f"not to be compared with {listed(few)} ({SEEDS} seeds are needed)"] * bool(few)
    yield f"{text}; {'; '.join(parts)}."


def several(differences: Sequence[Difference]) -> str:
    """What it means that many pairs are compared at once; nothing for one pair."""
    count = sum(len(each.by_seed) >= SEEDS for each in differences)
    if count < 2:
        return ""
    return (
        f"{count} pairs are compared at once: if no method differed, {count / 20:.1f} of these "
        "intervals would leave out 0 by chance."
    )


def made_of(method: Method) -> str:
    """What a method is, and of how many runs."""
    runs = method.runs.values()
    seeds, folds = ({key[place] for key in method.runs} for place in (0, 1))
    seed = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, sorted(seeds)))}"
    parts = [f"{len(runs)} run{'s' * (len(runs) > 1)}, {seed}"]
    if len(folds) > 1:
        parts.append(f"{len(folds)} folds")
    if broken := sum(run.status != "completed" for run in runs):
        parts.append(f"{broken} with failures of hospitals")
    return f"{method.name} ({', '.join(parts)})"


def text(comparison: Comparison) -> str:
    """The comparison for a terminal."""
    parts = [_wrapped(each, "") for each in conclusions(comparison)]
    parts += [*_tables(comparison)] if comparison.methods else ["There is no run to compare."]
    if comparison.noised:
        parts.append(_wrapped(comparison.noised, ""))
    if unlike := comparison.unlike:
        lines = [_wrapped(f"{kind}: {key} – {values}") for kind, key, values in unlike]
        parts.append("\n".join([APART, *lines]))
    if comparison.left_out:
        lines = [f"  {each.path} {each.reason}" for each in comparison.left_out]
        parts.append("\n".join(["Left out:", *lines]))
    return "\n\n".join([*parts, _wrapped(ABOUT, "")] if comparison.methods else parts)


def _tables(comparison: Comparison) -> Iterator[str]:
    methods, headline, hospitals = comparison.methods, FIGURES[0], comparison.hospitals
    yield "\n".join(_wrapped(made_of(method), "") for method in methods)
    yield _overview(methods, FIGURES + COSTS)
    if with_tasks := [m for m in methods if any(map(m.values, OVER_TASKS))]:
        yield _overview(with_tasks, OVER_TASKS)
    title = " ".join(headline.heading)
    if len(hospitals) <= MOST_HOSPITALS:
        rows = [["", *(hospital[:13] for hospital in hospitals)]]
        for method in methods:
            values = (method.values(headline, hospital) for hospital in hospitals)
            rows.append([method.name, *(cell(each, headline.digits) for each in values)])
        yield f"{title}, by hospital:\n{_aligned(rows)}"
    differences = comparison.differences(headline)
    if len(differences) > MOST_PAIRS:
        yield f"{title}: {len(differences)} pairs of methods; --csv and --html write all of them."
    elif differences:
        rows = [
            [*names(each), interval(each, headline.digits), verdict(each)] for each in differences
        ]
        yield f"{title}, differences:\n{_aligned(rows)}"
        if note := several(differences):
            yield _wrapped(note, "")


def _overview(methods: Sequence[Method], figures: Sequence[Figure]) -> str:
    return _aligned(
        [["", *(figure.heading[line] for figure in figures)] for line in (0, 1)]
        + [[m.name, *(cell(m.values(f), f.digits) for f in figures)] for m in methods]
    )


def names(difference: Difference) -> list[str]:
    """Which methods, and over how many seeds."""
    seeds = len(difference.by_seed)
    pair = f"{difference.first.name} − {difference.second.name}"
    return [pair, f"{seeds} seed{'s' * (seeds != 1)}"]


def verdict(difference: Difference) -> str:
    """What may be said of a difference: one is higher only if the interval leaves out 0."""
    low, high = difference.interval
    if not difference.by_seed:
        return "not measured, or no seed in common"
    if (count := len(difference.by_seed)) < SEEDS:
        return f"{count} seed{'s' * (count > 1)}: too few to say"
    if low <= 0 <= high:
        return "no difference shown"
    return f"{(difference.first if low > 0 else difference.second).name} is higher"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows below one another; a name for which a line has no room stands above its figures."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][1:]
    room = WIDTH - sum(width + 2 for width in widths)
    first = max((len(name) for name, *_ in rows if len(name) <= room), default=0)
    lines = []
    for name, *cells in rows:
        if len(name) > room:
            lines.append(name)
            name = ""
        padded = map(str.ljust, [name, *cells], [first, *widths])
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _wrapped(line: str, indent: str = "  ") -> str:
    return textwrap.fill(
        line, WIDTH, initial_indent=indent, subsequent_indent=indent + "   " * bool(indent)
    )
