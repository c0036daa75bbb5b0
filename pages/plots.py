"""The pictures of the pages, drawn as SVG in the colours of their style sheet.

Every picture of accuracies has the same axis, 0 to 1: two of them can be compared, and what does
not change looks as if it does not. A dashed line is chance: what a model reaches that always gives
the same answer, or that guesses. Colour never says anything alone: lines differ in dashes and marks
too, and where lines lie on one another the lower one is wider.

Each picture names itself and says in a sentence what it shows, for people who do not see it. Every
text is escaped here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, nan

from pages.page import boxed, escaped

NUMBERED = 12  # more columns than this leave no room for numbers in the cells
BLOCK = 20  # steps beside each other
LEVEL = 6  # more columns than this have upright names
SERIES = 8  # colours, of style.py
DASHES = ("", "5 3", "1 3", "8 3 1 3")
MARKED = 40  # a line of more points has no marks
WIDTH, HEIGHT = 340, 180  # of a chart, in pixels of a narrow screen
SMALL = (160, 88)  # of one of many


@dataclass(frozen=True)
class Line:
    """A figure over time: `ys` in [0, 1], NaN where it was not measured; `dots` are indices."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    dots: Sequence[int] | None = None


@dataclass(frozen=True)
class Span:
    """A value with the ends of what it may be, NaN if nobody knows; and what it is the mean of."""

    value: float
    low: float = nan
    high: float = nan
    dots: Sequence[float] = ()


@dataclass(frozen=True)
class Axis:
    """From where to where a picture goes, and what is written at it."""

    low: float = 0.0
    high: float = 1.0
    ticks: Sequence[float] = (0, 0.25, 0.5, 0.75, 1)

    def share(self, value: float) -> float:
        """Where a value is, in percent of the axis."""
        return 100 * (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)


def image(size: str, title: str, about: str, *parts: str) -> str:
    """A picture: its size as attributes, its name and what it shows."""
    text = f"{title}. {about}" if about else title
    return f'<svg role="img" {size} aria-label="{escaped(text)}">{"".join(parts)}</svg>\n'


def chart(
    title: str,
    lines: Sequence[Line],
    chance: float = nan,
    across: str = "round",
    begins: Sequence[int] = (),
) -> str:
    """Lines over the rounds, or what `across` says, on the axis from 0 to 1; their key below.

    `begins` has the first round of each task.
    """
    top = 26 if begins else 8
    area = _Area(WIDTH, HEIGHT, left=30, right=8, top=top, bottom=34, xs=_ends(lines))
    drawn = [line for line in lines if any(map(isfinite, line.ys))]
    parts = [area.axes((0, 0.25, 0.5, 0.75, 1)), area.level(chance), area.borders(begins)]
    widths = [4.5, 2.8, 1.6, 1.2]
    for place, line in enumerate(drawn):
        width = widths[min(place, 3)] if len(drawn) > 1 else 1.8
        parts.append(area.line(line, place, width))
    parts.append(_text(area.left + area.width / 2, HEIGHT - 4, across, "middle"))
    marked = f"chance: {chance:.2f}" if isfinite(chance) else ""
    tasks = [f"task {k} begins with round {first}" for k, first in enumerate(begins, 1)]
    about = "; ".join([*map(_in_words, drawn), *tasks, *([marked] if marked else [])])
    picture = image(f'viewBox="0 0 {WIDTH} {HEIGHT}"', title, about, *parts)
    return f"<div>{picture}{key([line.name for line in drawn], marked)}</div>\n"


def small(line: Line, behind: Line | None, chance: float = nan) -> str:
    """One of many charts, each of one hospital; `behind` is thin and grey in all of them."""
    width, height = SMALL
    ends = _ends([line])
    area = _Area(width, height, left=24, right=6, top=22, bottom=14, xs=ends)
    parts = [_text(0, 11, _short(line.name), css="name"), area.axes((0, 0.5, 1))]
    measured = [y for y in line.ys if isfinite(y)]
    parts.append(_text(width, 11, f"{measured[-1]:.2f}" if measured else "–", "end"))
    parts.append(area.level(chance))
    if behind is not None:
        parts.append(
            f'<path class="line" stroke="var(--soft)" opacity=".5" d="{area.path(behind)}"/>'
        )
    last = [k for k, y in enumerate(line.ys) if isfinite(y)][-1:]
    dots = last if line.dots is None else line.dots
    parts.append(area.line(Line(line.name, line.xs, line.ys, dots), 0, 1.6))
    about = _in_words(Line("accuracy", line.xs, line.ys))
    return image(f'viewBox="0 0 {width} {height}"', line.name, about, *parts)


def reliability(line: Line) -> str:
    """The share that is right over the probability that a model gives, both from 0 to 1."""
    side = SMALL[0]
    area = _Area(side, side, left=26, right=6, top=18, bottom=16, xs=(0, 1))
    diagonal = area.path(Line("", (0, 1), (0, 1)))
    parts = [_text(0, 11, _short(line.name, 24), css="name"), area.axes((0, 0.5, 1))]
    parts += [f'<path class="chance" d="{diagonal}"/>', area.line(line, 0, 1.8)]
    pairs = [f"{x:.2f}: {y:.2f}" for x, y in zip(line.xs, line.ys, strict=True)]
    about = f"Share right at each probability: {', '.join(pairs)}"
    return image(f'viewBox="0 0 {side} {side}"', line.name, about, *parts)


@dataclass(frozen=True)
class Row:
    """One or more values side by side, and where the dashed line is in their row."""

    name: str
    spans: Sequence[Span]
    mark: float = nan


def spans(
    title: str,
    rows: Sequence[Row],
    names: Sequence[str] = (),
    marked: str = "",
    axis: Axis | None = None,
) -> str:
    """Values with their intervals, one below the other, on one axis.

    Args:
        title: What it shows.
        rows: As many values in each.
        names: Of the values of a row, for the key.
        marked: What the dashed line says, for the key.
        axis: By default from 0 to 1.
    """
    axis, parts, y = axis or Axis(), [], 4.0
    each = max((len(row.spans) for row in rows), default=1)
    step = 24 + 11 * each
    height = len(rows) * step + 22
    for tick in axis.ticks:
        x = axis.share(tick)
        parts.append(_upright("axis", x, 0, height - 18))
        anchor = "start" if x < 4 else "end" if x > 96 else "middle"
        parts.append(_text(f"{x:.1f}%", height - 4, f"{tick:g}", anchor))
    for place, row in enumerate(rows):
        if isfinite(row.mark):
            parts.append(_upright("chance", axis.share(row.mark), place * step, (place + 1) * step))
        parts.append(_text(0, y + 9, _short(row.name, 48), css="name"))
        parts += [_span(span, axis, k, y + 21 + 11 * k) for k, span in enumerate(row.spans)]
        y += step
    about = "; ".join(map(_row_in_words, rows))
    drawn = image(f'height="{height}" style="height:{height}px"', title, about, *parts)
    return drawn + key(names, marked, dots=True) if names or marked else drawn


def bars(title: str, rows: Sequence[tuple[str, float, str]]) -> str:
    """Bars from zero, each with its name and its value in words above it."""
    most = max((value for _, value, _ in rows), default=0) or 1
    parts = []
    for place, (name, value, text) in enumerate(rows):
        y = 32 * place
        parts.append(_text(0, y + 11, f"{name} · {text}", css="name"))
        share = 100 * max(value, 0) / most
        parts.append(f'<rect class="f1" x="0" y="{y + 15}" width="{share:.1f}%" height="8"/>')
    height = 32 * len(rows)
    about = "; ".join(f"{name}: {text}" for name, _, text in rows)
    return image(f'height="{height}" style="height:{height}px"', title, about, *parts)


def key(names: Sequence[str], marked: str = "", *, dots: bool = False) -> str:
    """Which line, or which mark, is which."""
    items = []
    for place, name in enumerate(names):
        dash = "" if dots else _dashed(place)
        line = f'<line class="line s{place % SERIES + 1}" x1="1" x2="25" y1="6" y2="6"{dash}/>'
        items.append((line + (_mark(13, 6, place) if dots else ""), name))
    if marked:
        items.append(('<line class="chance" x1="1" x2="25" y1="6" y2="6"/>', marked))
    marks = "".join(
        f'<li><svg viewBox="0 0 26 12" aria-hidden="true">{sample}</svg>{escaped(name)}</li>'
        for sample, name in items
    )
    return f'<ul class="key">{marks}</ul>\n'


def _dashed(place: int) -> str:
    dash = DASHES[_look(place)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def heat(
    about: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    levels: Sequence[float],
    below: str,
) -> str:
    """A table of shares whose cells are the darker the higher they are, from 0 to 1.

    The numbers are there for whoever has the page read aloud, also where there are too many columns
    to show them.

    Args:
        about: What it shows.
        rows: Their names.
        columns: Their names.
        values: Of each row.
        levels: Of each column: a cell that is not above it has a dashed frame.
        below: What that frame says.
    """
    look = " dense" if len(columns) > NUMBERED else ""
    look += " upright" if len(columns) > LEVEL else ""
    head = "".join(f'<th scope="col">{escaped(_short(name))}</th>' for name in columns)
    body = "".join(
        f'<tr><th scope="row">{escaped(name)}</th>{"".join(map(_heat, row, levels))}</tr>\n'
        for name, row in zip(rows, values, strict=True)
    )
    table = (
        f'<table class="cells heat{look}">\n<thead><tr><th></th>{head}</tr></thead>\n'
        f"<tbody>\n{body}</tbody>\n</table>\n"
    )
    known = sorted({level for level in levels if isfinite(level)})
    marks = "".join(f'<i style="left:{100 * level:.1f}%"></i>' for level in known)
    note = f" · dashed: {escaped(below)}" if known else ""
    scale = f'<span>0</span><span class="bar">{marks}</span><span>1{note}</span>'
    return boxed(table, about) + f'<p class="scale">{scale}</p>\n'


def steps(about: str, rows: Mapping[str, Sequence[tuple[str, str]]], titles: Sequence[str]) -> str:
    """What happened step by step: a row of small cells, each with a mark and a kind.

    Long rows are cut into blocks below each other.

    Args:
        about: What it shows.
        rows: By name, of every step a mark of one or two letters and a class of the style sheet;
            both may be empty.
        titles: Of the steps.
    """
    blocks = []
    for first in range(0, len(titles), BLOCK):
        some = slice(first, first + BLOCK)
        head = "".join(f'<th scope="col">{escaped(title)}</th>' for title in titles[some])
        body = "".join(
            f'<tr><th scope="row">{escaped(name)}</th>{"".join(map(_step, cells[some]))}</tr>\n'
            for name, cells in rows.items()
        )
        blocks.append(
            f'<table class="cells steps">\n<thead><tr><th></th>{head}</tr></thead>\n'
            f"<tbody>\n{body}</tbody>\n</table>\n"
        )
    return boxed("".join(blocks), about)


class _Area:
    """Where the lines of a chart are."""

    def __init__(
        self,
        width: int,
        height: int,
        *,
        left: int,
        right: int,
        top: int,
        bottom: int,
        xs: tuple[float, float],
    ) -> None:
        self.left, self.top = left, top
        self.width, self.height = width - left - right, height - top - bottom
        self.first, self.last = xs

    def x(self, value: float) -> float:
        span = self.last - self.first
        return self.left + self.width * ((value - self.first) / span if span else 0.5)

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - min(max(value, 0), 1))

    def axes(self, ticks: Iterable[float]) -> str:
        parts, end = [], self.left + self.width
        for tick in ticks:
            y = self.y(tick)
            parts.append(
                f'<line class="axis" x1="{self.left}" x2="{end}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
            parts.append(_text(self.left - 4, y + 4, f"{tick:g}", "end"))
        bottom = self.top + self.height + 13
        for number in dict.fromkeys((self.first, self.last)):
            anchor = (
                "middle" if self.first == self.last else "end" if number == self.last else "start"
            )
            parts.append(_text(self.x(number), bottom, f"{number:g}", anchor))
        return "".join(parts)

    def level(self, value: float) -> str:
        if not isfinite(value):
            return ""
        y, end = self.y(value), self.left + self.width
        return f'<line class="chance" x1="{self.left}" x2="{end}" y1="{y:.1f}" y2="{y:.1f}"/>'

    def borders(self, begins: Sequence[int]) -> str:
        """Upright lines between tasks, each of which has its number above it."""
        bottom = self.top + self.height
        parts = [_text(self.left - 4, 11, "task", "end")] if begins else []
        for number, first in enumerate(begins, 1):
            if first > self.last:
                break
            x = self.x(max(first - 0.5, self.first))
            if first > self.first:
                line = f'<line class="border" x1="{x:.1f}" x2="{x:.1f}" y1="2" y2="{bottom}"/>'
                parts.append(line)
            parts.append(_text(round(x) + 3, 11, f"{number}"))
        return "".join(parts)

    def path(self, line: Line) -> str:
        """A path that has gaps where nothing was measured."""
        parts, pen = [], "M"
        for x, y in zip(line.xs, line.ys, strict=True):
            if isfinite(y):
                parts.append(f"{pen}{self.x(x):.1f} {self.y(y):.1f}")
            pen = "L" if isfinite(y) else "M"
        return "".join(parts)

    def line(self, line: Line, place: int, width: float) -> str:
        parts = [
            f'<path class="line s{place % SERIES + 1}" style="stroke-width:{width}"'
            f'{_dashed(place)} d="{self.path(line)}"/>'
        ]
        dots = line.dots if line.dots is not None else range(len(line.xs))
        if line.dots is not None or len(line.xs) <= MARKED:
            points = [(line.xs[k], line.ys[k]) for k in dots if isfinite(line.ys[k])]
            parts += [_mark(self.x(x), self.y(y), place) for x, y in points]
        return "".join(parts)


def _look(place: int) -> int:
    """Which of four dashes and marks: where colours begin anew, they meet another one."""
    return (place + place // SERIES) % len(DASHES)


def _mark(x: float | str, y: float, place: int) -> str:
    """A filled circle, a hollow one, a square or a rhombus; `x` may be in percent."""
    colour, look = place % SERIES + 1, _look(place)
    at = x if isinstance(x, str) else f"{x:.1f}"
    if look in (0, 1):
        filled = f"f{colour}" if look == 0 else f"hollow s{colour}"
        return f'<circle class="{filled}" cx="{at}" cy="{y:.1f}" r="{(2.6, 3.4)[look]}"/>'
    shape = "square" if look == 2 else "rhombus"
    return f'<rect class="f{colour} {shape}" x="{at}" y="{y:.1f}" width="5" height="5"/>'


def _span(span: Span, axis: Axis, place: int, y: float) -> str:
    if not isfinite(span.value):
        return _text(0, y + 4, "not measured, or not told")
    line = ""
    if isfinite(span.low) and isfinite(span.high):
        low, high = axis.share(span.low), axis.share(span.high)
        line = (
            f'<line class="line s{place % SERIES + 1}" x1="{low:.1f}%" x2="{high:.1f}%" '
            f'y1="{y:.1f}" y2="{y:.1f}"/>'
        )
    single = "".join(
        f'<circle class="single" cx="{axis.share(dot):.1f}%" cy="{y:.1f}" r="2.5"/>'
        for dot in span.dots
    )
    return line + single + _mark(f"{axis.share(span.value):.1f}%", y, place)


def _upright(look: str, x: float, top: float, bottom: float) -> str:
    return f'<line class="{look}" x1="{x:.1f}%" x2="{x:.1f}%" y1="{top}" y2="{bottom}"/>'


def _row_in_words(row: Row) -> str:
    mark = f", the dashed line is at {row.mark:.2f}" if isfinite(row.mark) else ""
    return f"{row.name}: {', '.join(map(_span_in_words, row.spans))}{mark}"


def _span_in_words(span: Span) -> str:
    if not isfinite(span.value):
        return "not measured"
    within = f" ({span.low:.2f} to {span.high:.2f})" if isfinite(span.low) else ""
    return f"{span.value:.2f}{within}"


def _heat(value: float, level: float) -> str:
    if not isfinite(value):
        return '<td class="none">–</td>'
    # From where on letters are black, or white: the middle is read best in other colours if dark.
    kinds = ["deep"] if value > 0.72 else ["mid"] if value > 0.56 else []
    if value <= level:
        kinds.append("poor")
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    return f'<td{kind} style="--v:{100 * value:.0f}">{value:.2f}</td>'


def _step(cell: tuple[str, str]) -> str:
    mark, kind = cell
    return f'<td class="{kind}">{escaped(mark)}</td>' if kind else f"<td>{escaped(mark)}</td>"


def _ends(lines: Sequence[Line]) -> tuple[int, int]:
    xs = [x for line in lines for x in line.xs] or [0.0]
    return floor(min(xs)), ceil(max(xs))


def _in_words(line: Line) -> str:
    """The first, the lowest, the highest and the last value."""
    measured = [(y, x) for x, y in zip(line.xs, line.ys, strict=True) if isfinite(y)]
    if not measured:
        return f"{line.name}: not measured"
    (first, _), (last, end) = measured[0], measured[-1]
    low, high = min(measured)[0], max(measured)[0]
    between = f", between {low:.2f} and {high:.2f}" if len(measured) > 2 else ""
    start = f"{first:.2f} at first, " if len(measured) > 1 else ""
    return f"{line.name}: {start}{last:.2f} after round {end:g}{between}"


def _text(x: float | str, y: float, text: str, anchor: str = "start", css: str = "") -> str:
    at = x if isinstance(x, str) else f"{x:g}"
    look = f' class="{css}"' if css else ""
    end = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{at}" y="{y:.0f}"{look}{end}>{escaped(text)}</text>'


def _short(name: str, longest: int = 18) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
