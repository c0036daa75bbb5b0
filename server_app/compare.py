"""A comparison of methods over their runs, as text and as a CSV file.

uv run fedhandoff compare ~/fedhandoff/runs --csv table.csv --html table.html
"""

import csv
import textwrap
from collections.abc import Iterator, Sequence
from math import isfinite, nan
from pathlib import Path

from pages.verdicts.methods import APART, count_pairs
from server_app.comparison import COLUMNS, COSTS, MORE, OVER_TASKS, Column, Comparison, Method
from server_app.measures import mean, spread
from strategies.protocol.files import replacing
from strategies.protocol.text import inert

WIDTH = 80  # of a line of text
MOST_HOSPITALS, MOST_PAIRS = 4, 21  # limits of the terminal: columns of a table, and its lines
HEADER = ("method", "minus", "figure", "hospital", "mean", "std", "low", "high", "count")


def write_csv(path: Path, comparison: Comparison) -> None:
    """Write all figures and differences as a table."""
    with replacing(path) as draft, draft.open("w", encoding="utf-8", newline="") as file:
        rows = [HEADER, *records(comparison)]
        csv.writer(file).writerows(map(inert, row) for row in rows)


def records(comparison: Comparison) -> Iterator[list[object]]:
    """The rows of the CSV file, with the columns `HEADER`.

    `minus` is empty in rows of a single method. `count` is the number of runs, or of seeds in a
    difference.
    """
    for column in COLUMNS + MORE + COSTS:
        for hospital in ["", *comparison.hospitals]:
            for method in comparison.methods:
                if values := method.values(column, hospital):
                    own = [mean(values), spread(values), nan, nan, len(values)]
                    yield [method.name, "", column.name, hospital, *map(_number, own)]
            for each in comparison.differences(column, hospital):
                if figure := each.figure:
                    names = [each.first.name, each.second.name, column.name, hospital]
                    std, ends = spread(each.by_seed.values()), (figure["low"], figure["high"])
                    yield [*names, *map(_number, [figure["value"], std, *ends, len(each.by_seed)])]


def _number(value: float) -> object:
    return value if isfinite(value) else ""


def text(comparison: Comparison) -> str:
    """The comparison for a terminal."""
    parts = [*map(_wrap, comparison.conclusions)]
    parts += [*_tables(comparison)] if comparison.methods else ["There is no run to compare."]
    if noise := comparison.noise:
        parts.append(_wrap(noise))
    if unlike := comparison.different_settings:
        lines = [_wrap(f"  {kind}: {key} – {values}", "     ") for kind, key, values in unlike]
        parts.append("\n".join([APART, *lines]))
    if comparison.left_out:
        lines = [f"  {path} {reason}" for path, reason in comparison.left_out.items()]
        parts.append("\n".join(["Left out:", *lines]))
    return "\n\n".join([*parts, _wrap(comparison.about)] if comparison.methods else parts)


def _tables(comparison: Comparison) -> Iterator[str]:
    methods, headline, hospitals = comparison.methods, COLUMNS[0], comparison.hospitals
    yield "\n".join(_wrap(method.title) for method in methods)
    yield _overview(methods, COLUMNS + COSTS)
    if with_tasks := [m for m in methods if any(map(m.values, OVER_TASKS))]:
        yield _overview(with_tasks, OVER_TASKS)
    title = " ".join(headline.heading)
    if len(hospitals) <= MOST_HOSPITALS:
        rows = [[m.name, *(m.cell(headline, hospital) for hospital in hospitals)] for m in methods]
        heads = ["", *(hospital[:13] for hospital in hospitals)]
        yield f"{title}, by hospital:\n{_align([heads, *rows])}"
    differences = comparison.differences(headline)
    if len(differences) > MOST_PAIRS:
        yield f"{title}: {len(differences)} pairs of methods; --csv and --html write all of them."
    elif differences:
        yield f"{title}, differences:\n{_align([each.cells for each in differences])}"
    if note := count_pairs(sum(each.has_interval for each in differences)):
        yield _wrap(note)


def _overview(methods: Sequence[Method], columns: Sequence[Column]) -> str:
    heads = [["", *(column.heading[line] for column in columns)] for line in (0, 1)]
    return _align(heads + [[m.name, *map(m.cell, columns)] for m in methods])


def _align(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned lines; a name that is too long for its line has a line of its own."""
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


def _wrap(line: str, hanging: str = "") -> str:
    return textwrap.fill(line, WIDTH, subsequent_indent=hanging)
