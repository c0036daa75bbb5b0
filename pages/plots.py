"""The pictures of the pages: the shapes of an SVG, in the colours of the style sheet.

The axis of lines fits their values, but spans at least a fifth of the range, so that small changes
look small. The axis of intervals goes from 0 to 1. A dashed line is chance: the figure of a
constant answer, or of guessing. Lines differ not only in colour but also in dashes and marks; where
lines overlap, the lower one is wider.

Each picture has a name and a description in words, for people who do not see it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, nan
from typing import Any

from learning.intervals import Figure, number

NUMBERED = 12  # most columns with numbers in the cells
BLOCK = 20  # most steps beside each other
LEVEL = 6  # most columns with horizontal names
SERIES = 8  # number of colours in style.py
DASHES = ("", "5 3", "1 3", "8 3 1 3")
MARKED = 40  # most points of a line with marks
WIDTH, HEIGHT = 340, 180  # size of a chart, in pixels of a narrow screen
SMALL = (160, 88)  # size of a small chart
NAME = 17  # height of a row's name in `spans`, in pixels
RADIUS = 5  # room for half a mark at the ends of an axis, in pixels

Cell = tuple[str, Mapping[str, object]]  # a small text, and the attributes of its HTML element
Table = tuple[Sequence[str], Sequence[tuple[str, Sequence[Cell]]]]  # columns, and named rows


@dataclass(frozen=True)
class Shape:
    """An element of an SVG."""

    tag: str
    attributes: Mapping[str, object]
    text: str = ""


@dataclass(frozen=True)
class Picture:
    """A picture."""

    size: Mapping[str, object]  # attributes of the SVG
    about: str  # the name and a description, in words
    shapes: Sequence[Shape]  # the elements of the SVG
    key: Sequence[tuple[Sequence[Shape], str]] = ()  # for each line or mark a sample and its name


@dataclass(frozen=True)
class Cells:
    """Tables of cells below each other."""

    about: str  # a description, in words
    look: str  # classes of the style sheet
    tables: Sequence[Table]
    levels: Sequence[str] = ()  # places of dashes on the scale of a heat map, in percent
    below: str = ""  # the meaning of a dashed frame; empty if there is none


@dataclass(frozen=True)
class Line:
    """A figure over time: `ys` in [0, 1], NaN = not measured; `dots` are the indices of marks."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    dots: Sequence[int] | None = None


@dataclass(frozen=True)
class Axis:
    """The range of an axis, and its ticks."""

    low: float = 0.0
    high: float = 1.0
    ticks: Sequence[float] = (0, 0.25, 0.5, 0.75, 1)

    @classmethod
    def fit(cls, values: Iterable[float]) -> "Axis":
        """The axis that shares need: four steps of 0.05, 0.1 or 0.25."""
        known = [min(max(value, 0.0), 1.0) for value in values if isfinite(value)] or [0.0, 1.0]
        for parts in (20, 10, 4):
            first, last = floor(min(known) * parts + 1e-9), ceil(max(known) * parts - 1e-9)
            if last - first <= 4:
                break
        first = min(max(0, first - (4 - last + first) // 2), parts - 4)
        ticks = [tick / parts for tick in range(first, first + 5)]
        return cls(ticks[0], ticks[-1], ticks)

    def share(self, value: float) -> float:
        """The place of a value, in percent of the axis."""
        return 100 * (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)


def chart(
    title: str,
    lines: Sequence[Line],
    chance: float = nan,
    across: str = "round",
    begins: Sequence[int] = (),
    dashed: str = "chance",
) -> Picture:
    """Lines with a key below.

    `chance` is the value of the dashed line, and `dashed` its name; NaN = none. `across` names the
    horizontal axis. `begins` has the first round of each task.
    """
    top = 26 if begins else 8
    drawn = [line for line in lines if any(map(isfinite, line.ys))]
    axis = Axis.fit([chance, *(y for line in drawn for y in line.ys)])
    area = _Area(WIDTH, HEIGHT, (30, 8, top, 34), _ends(lines), axis)
    parts = [*area.axes(), *area.level(chance), *area.borders(begins)]
    widths = [4.5, 2.8, 1.6, 1.2]
    for place, line in enumerate(drawn):
        width = widths[min(place, 3)] if len(drawn) > 1 else 1.8
        parts += area.line(line, place, width)
    parts.append(_text(area.left + area.width / 2, HEIGHT - 4, across, "middle"))
    marked = f"{dashed}: {chance:.3f}" if isfinite(chance) else ""
    tasks = [f"task {k} begins with round {first}" for k, first in enumerate(begins, 1)]
    words = [_line_in_words(line, across) for line in drawn]
    about = "; ".join([*words, *tasks, *([marked] if marked else [])])
    key = _key([line.name for line in drawn], marked)
    return Picture(_box(WIDTH, HEIGHT), _description(title, about), parts, key)


def charts_by_name(
    lines: Sequence[Line], chances: Mapping[str, float], behind: Line | None = None
) -> list[Picture]:
    """Small charts on one axis, one for each line, which has the name of a hospital.

    `chances` has the dashed line of each hospital; `behind` is a thin grey line in all charts.
    """
    values = [y for line in (*lines, behind) if line for y in line.ys]
    axis = Axis.fit([*values, *chances.values()])
    axis = Axis(axis.low, axis.high, axis.ticks[::2])
    return [_small_chart(line, behind, chances.get(line.name, nan), axis) for line in lines]


def _small_chart(line: Line, behind: Line | None, chance: float, axis: Axis) -> Picture:
    width, height = SMALL
    area = _Area(width, height, (24, 6, 22, 14), _ends([line]), axis)
    measured = [y for y in line.ys if isfinite(y)]
    parts = [_text(0, 11, _shorten(line.name), css="name"), *area.axes()]
    parts.append(_text(width, 11, f"{measured[-1]:.3f}" if measured else "–", "end"))
    parts += area.level(chance)
    if behind is not None:
        grey = {"class": "line", "stroke": "var(--soft)", "opacity": ".5"}
        parts.append(Shape("path", {**grey, "d": area.path(behind)}))
    last = [k for k, y in enumerate(line.ys) if isfinite(y)][-1:]
    dots = last if line.dots is None else line.dots
    parts += area.line(Line(line.name, line.xs, line.ys, dots), 0, 1.6)
    return Picture(_box(width, height), _line_in_words(line), parts)


def square(line: Line, about: str) -> Picture:
    """A line over shares, both axes from 0 to 1, with the diagonal; `about` describes it."""
    side = SMALL[0]
    area = _Area(side, side, (26, 6, 18, 16), (0, 1), Axis(ticks=(0, 0.5, 1)))
    diagonal = {"class": "chance", "d": area.path(Line("", (0, 1), (0, 1)))}
    parts = [_text(0, 11, _shorten(line.name, 24), css="name"), *area.axes()]
    parts += [Shape("path", diagonal), *area.line(line, 0, 1.8)]
    return Picture(_box(side, side), _description(line.name, about), parts)


@dataclass(frozen=True)
class Lane:
    """One or more figures side by side; the place of the dashed line, and values behind them."""

    name: str
    figures: Sequence[Figure | None]
    mark: float = nan
    dots: Sequence[float] = ()


def spans(
    title: str,
    rows: Sequence[Lane],
    names: Sequence[str] = (),
    marked: str = "",
    axis: Axis | None = None,
) -> Picture:
    """Figures with their intervals, one below the other, on one axis.

    All rows have equally many figures. Their `names`, and `marked`, the meaning of the dashed line,
    are in the key; `marked` only if there is such a line. By default the axis goes from 0 to 1.
    """
    axis, y = axis or Axis(), 4.0
    parts: list[Shape] = []
    each = max((len(row.figures) for row in rows), default=1)
    step = 24 + 11 * each
    height = len(rows) * step + 22
    for tick in axis.ticks:
        x = axis.share(tick)
        at = f"{x:.1f}%"
        parts.append(_stroke("axis", (at, at), (0, height - 18)))
        anchor = "start" if x < 4 else "end" if x > 96 else "middle"
        parts.append(_text(at, height - 4, f"{tick:g}", anchor))
    for place, row in enumerate(rows):
        if isfinite(row.mark):
            at = f"{axis.share(row.mark):.1f}%"
            parts.append(_stroke("chance", (at, at), (place * step + NAME, (place + 1) * step)))
        parts.append(_text(0, y + 9, _shorten(row.name, 48), css="name"))
        for k, figure in enumerate(row.figures):
            parts += _span(figure, row.dots, axis, k, y + 21 + 11 * k)
        y += step
    about = _description(title, "; ".join(map(_lane_in_words, rows)))
    key = _key(names, marked if any(isfinite(row.mark) for row in rows) else "", dots=True)
    return Picture(_high(height), about, parts, key)


def bars(title: str, rows: Sequence[tuple[str, float, str]]) -> Picture:
    """Bars from zero, each with its name and its value in words above it."""
    most = max((value for _, value, _ in rows), default=0) or 1
    parts = []
    for place, (name, value, text) in enumerate(rows):
        y = 32 * place
        parts.append(_text(0, y + 11, f"{name} · {text}", css="name"))
        size = {"y": y + 15, "width": f"{100 * max(value, 0) / most:.1f}%", "height": 8}
        parts.append(Shape("rect", {"class": "f1", "x": 0, **size}))
    about = _description(title, "; ".join(f"{name}: {text}" for name, _, text in rows))
    return Picture(_high(32 * len(rows)), about, parts)


def heat(
    about: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    levels: Sequence[float],
    below: str,
) -> Cells:
    """A table of shares from 0 to 1; higher shares have darker cells.

    Tables with many columns hide the numbers, but screen readers read them.

    A cell that is not above the level of its column has a dashed frame, whose meaning is `below`.
    """
    look = "heat"
    if len(columns) > LEVEL:
        look += " upright" if len(columns) <= NUMBERED else " dense upright"
    cells = [
        (name, [_heat(value, level) for value, level in zip(row, levels, strict=True)])
        for name, row in zip(rows, values, strict=True)
    ]
    known = [f"{100 * level:.1f}" for level in sorted({*levels}) if isfinite(level)]
    table = [*map(_shorten, columns)], cells
    return Cells(about, look, [table], known, below if known else "")


def steps(
    about: str, rows: Mapping[str, Sequence[tuple[str, str]]], titles: Sequence[str]
) -> Cells:
    """The course of a run: rows of small cells, one for each step.

    A row has for every step a mark of one or two letters and a class of the style sheet; both may
    be empty. Long rows are cut into blocks below each other.
    """
    tables: list[Table] = []
    for first in range(0, len(titles), BLOCK):
        block = slice(first, first + BLOCK)
        cells = [
            (name, [(mark, {"class": kind} if kind else {}) for mark, kind in row[block]])
            for name, row in rows.items()
        ]
        tables.append((titles[block], cells))
    return Cells(about, "steps", tables)


class _Area:
    """The area of a chart's lines; `margins` are left, right, top and bottom."""

    def __init__(
        self,
        width: int,
        height: int,
        margins: tuple[int, int, int, int],
        xs: tuple[float, float],
        axis: Axis,
    ) -> None:
        self.left, right, self.top, bottom = margins
        self.width, self.height = width - self.left - right, height - self.top - bottom
        self.first, self.last = xs
        self.axis = axis

    def x(self, value: float) -> float:
        span = self.last - self.first
        return self.left + self.width * ((value - self.first) / span if span else 0.5)

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - self.axis.share(value) / 100)

    def axes(self) -> list[Shape]:
        parts = []
        for tick in self.axis.ticks:
            parts += self._horizontal("axis", tick)
            parts.append(_text(self.left - 4, self.y(tick) + 4, f"{tick:g}", "end"))
        bottom = self.top + self.height + 13
        for end in dict.fromkeys((self.first, self.last)):
            only = self.first == self.last
            anchor = "middle" if only else "end" if end == self.last else "start"
            parts.append(_text(self.x(end), bottom, f"{end:g}", anchor))
        return parts

    def level(self, value: float) -> list[Shape]:
        return self._horizontal("chance", value) if isfinite(value) else []

    def _horizontal(self, look: str, value: float) -> list[Shape]:
        y = f"{self.y(value):.1f}"
        return [_stroke(look, (self.left, self.left + self.width), (y, y))]

    def borders(self, begins: Sequence[int]) -> list[Shape]:
        """Vertical lines between tasks, with the tasks' numbers above."""
        bottom = self.top + self.height
        parts = [_text(self.left - 4, 11, "task", "end")] if begins else []
        for task, first in enumerate(begins, 1):
            if first > self.last:
                break
            x = self.x(max(first - 0.5, self.first))
            if first > self.first:
                parts.append(_stroke("border", (f"{x:.1f}",) * 2, (2, bottom)))
            parts.append(_text(round(x) + 3, 11, f"{task}"))
        return parts

    def path(self, line: Line) -> str:
        """A path with gaps at missing values."""
        parts, pen = [], "M"
        for x, y in zip(line.xs, line.ys, strict=True):
            if isfinite(y):
                parts.append(f"{pen}{self.x(x):.1f} {self.y(y):.1f}")
            pen = "L" if isfinite(y) else "M"
        return "".join(parts)

    def line(self, line: Line, place: int, width: float) -> list[Shape]:
        look = {"class": f"line s{place % SERIES + 1}", "style": f"stroke-width:{width}"}
        parts = [Shape("path", {**look, **_dash(place), "d": self.path(line)})]
        dots = line.dots if line.dots is not None else range(len(line.xs))
        if line.dots is not None or len(line.xs) <= MARKED:
            points = [(line.xs[k], line.ys[k]) for k in dots if isfinite(line.ys[k])]
            parts += [_mark(self.x(x), self.y(y), place) for x, y in points]
        return parts


def _box(width: int, height: int) -> dict[str, object]:
    return {"viewBox": f"0 0 {width} {height}"}


def _high(height: int) -> dict[str, object]:
    return {"height": height, "style": f"height:{height}px;padding:0 {RADIUS}px"}


def _description(title: str, about: str) -> str:
    return f"{title}. {about}" if about else title


def _key(names: Sequence[str], marked: str, *, dots: bool = False) -> list[tuple[list[Shape], str]]:
    """A sample and a name for each line or mark."""
    ends = (1, 25), (6, 6)
    key = []
    for place, name in enumerate(names):
        sample = _stroke(f"line s{place % SERIES + 1}", *ends, **({} if dots else _dash(place)))
        key.append(([sample, _mark(13, 6, place)] if dots else [sample], name))
    return key + ([([_stroke("chance", *ends)], marked)] if marked else [])


def _dash(place: int) -> dict[str, Any]:
    dash = DASHES[_look(place)]
    return {"stroke-dasharray": dash} if dash else {}


def _look(place: int) -> int:
    """The index of the dash and the mark; a repeated colour has another one."""
    return (place + place // SERIES) % len(DASHES)


def _mark(x: float | str, y: float, place: int) -> Shape:
    """A filled circle, a hollow one, a square or a rhombus; `x` may be in percent."""
    colour, look = place % SERIES + 1, _look(place)
    x, y_ = x if isinstance(x, str) else f"{x:.1f}", f"{y:.1f}"
    if look in (0, 1):
        filled = f"f{colour}" if look == 0 else f"hollow s{colour}"
        return Shape("circle", {"class": filled, "cx": x, "cy": y_, "r": (2.6, 3.4)[look]})
    shape = "square" if look == 2 else "rhombus"
    return Shape("rect", {"class": f"f{colour} {shape}", "x": x, "y": y_, "width": 5, "height": 5})


def _span(
    figure: Figure | None, dots: Sequence[float], axis: Axis, place: int, y: float
) -> list[Shape]:
    if figure is None or not isfinite(figure["value"]):
        return [_text(0, y + 4, "not measured, or not reported")]
    parts, high = [], f"{y:.1f}"
    if isfinite(figure["low"]) and isfinite(figure["high"]):
        first, last = (f"{axis.share(end):.1f}%" for end in (figure["low"], figure["high"]))
        parts.append(_stroke(f"line s{place % SERIES + 1}", (first, last), (high, high)))
    for dot in dots:
        at = {"cx": f"{axis.share(dot):.1f}%", "cy": high, "r": 2.5}
        parts.append(Shape("circle", {"class": "single", **at}))
    return [*parts, _mark(f"{axis.share(figure['value']):.1f}%", y, place)]


def _stroke(look: str, xs: Sequence[object], ys: Sequence[object], **more: object) -> Shape:
    (x1, x2), (y1, y2) = xs, ys
    return Shape("line", {"class": look, "x1": x1, "x2": x2, "y1": y1, "y2": y2, **more})


def _lane_in_words(row: Lane) -> str:
    mark = f", the dashed line is at {row.mark:.3f}" if isfinite(row.mark) else ""
    known = (number(f) if f and isfinite(f["value"]) else "not measured" for f in row.figures)
    return f"{row.name}: {', '.join(known)}{mark}"


def _heat(value: float, level: float) -> Cell:
    if not isfinite(value):
        return "–", {"class": "none"}
    # Classes of dark and medium cells, which need other colours of letters.
    kinds = ["deep"] if value > 0.72 else ["mid"] if value > 0.56 else []
    if value <= level:
        kinds.append("poor")
    look = {"class": " ".join(kinds)} if kinds else {}
    return f"{value:.3f}", {**look, "style": f"--v:{100 * value:.0f}"}


def _ends(lines: Sequence[Line]) -> tuple[int, int]:
    xs = [x for line in lines for x in line.xs] or [0.0]
    return floor(min(xs)), ceil(max(xs))


def _line_in_words(line: Line, across: str = "round") -> str:
    """The first, the lowest, the highest and the last value."""
    measured = [(y, x) for x, y in zip(line.xs, line.ys, strict=True) if isfinite(y)]
    if not measured:
        return f"{line.name}: not measured"
    (first, _), (last, end) = measured[0], measured[-1]
    low, high = min(measured)[0], max(measured)[0]
    between = f", between {low:.3f} and {high:.3f}" if len(measured) > 2 else ""
    start = f"{first:.3f} at first, " if len(measured) > 1 else ""
    place = f"round {end:g}" if across == "round" else f"{end:g} {across}"
    return f"{line.name}: {start}{last:.3f} after {place}{between}"


def _text(x: float | str, y: float, text: str, anchor: str = "start", css: str = "") -> Shape:
    look = {"class": css} if css else {}
    end = {"text-anchor": anchor} if anchor != "start" else {}
    at = x if isinstance(x, str) else f"{x:g}"
    return Shape("text", {"x": at, "y": f"{y:.0f}", **look, **end}, text)


def _shorten(name: str, longest: int = 18) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
