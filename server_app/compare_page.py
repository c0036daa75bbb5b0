"""The comparison of methods as an HTML page, in the look of a run's report."""

from collections.abc import Iterator, Sequence
from math import isfinite, log10, nan

from pages.page import document, figure, heading, notice, paragraph, section, table
from pages.plots import SERIES, Axis, Line, Row, Span, chart, spans
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


def page(comparison: Comparison) -> str:
    """Make the page."""
    methods = comparison.methods
    title = f"{len(methods)} methods compared"
    parts = [heading(title, 1), *map(paragraph, conclusions(comparison))]
    parts.append(paragraph(ABOUT, soft=True))
    if comparison.noised:
        parts.append(notice("amber", paragraph(comparison.noised)))
    if comparison.unlike:
        parts.append(notice("amber", paragraph(APART), table(["", "", ""], comparison.unlike)))
    if comparison.left_out:
        rows = [[each.path, each.reason] for each in comparison.left_out]
        parts.append(notice("amber", paragraph("Left out:"), table(["", ""], rows)))
    parts.append(table([""], [[made_of(method)] for method in methods], about="Methods"))
    measured = [each for each in FIGURES + MORE if any(m.values(each) for m in methods)]
    parts += [section(_title(each), *_about(comparison, each)) for each in measured]
    parts.append(section("Costs", _overview(methods, COSTS)))
    return document(title, *parts, contents=[*map(_title, measured), "Costs"])


def _title(compared: Figure) -> str:
    first, second = compared.heading
    words = f"balanced accuracy, {first}" if second == "balanced" else f"{second}, {first}"
    return words[:1].upper() + words[1:]


def _overview(methods: Sequence[Method], figures: Sequence[Figure]) -> str:
    head = ["", *(" ".join(each.heading) for each in figures)]
    rows = [[m.name, *(cell(m.values(f), f.digits) for f in figures)] for m in methods]
    return table(head, rows, about="Costs")


def _about(comparison: Comparison, compared: Figure) -> Iterator[str]:
    """A figure: of each method, at each hospital, and the differences."""
    methods, hospitals = comparison.methods, comparison.hospitals if compared.metric else []
    title = _title(compared)
    if len(methods) <= MOST_ROWS:
        rows = [Row(m.name, [_around(m.values(compared))], m.constant(compared)) for m in methods]
        axis = SIGNED if compared.signed else None
        yield figure(
            "Each method's mean over its runs, and one standard deviation to both sides. Grey: "
            "single runs.",
            spans(f"{title} by method", rows, marked=_marked(compared, methods), axis=axis),
        )
    yield from _curves(compared, methods)
    cells = [
        [m.name, *(cell(m.values(compared, h), compared.digits) for h in ["", *hospitals])]
        for m in methods
    ]
    yield table(["", "all", *hospitals], cells, about=f"{title} by method and hospital")
    differences = comparison.differences(compared)
    shown = [each for each in differences if isfinite(each.interval[0])]
    if 0 < len(shown) <= MOST_ROWS:
        pairs = [
            Row(f"{names(each)[0]}: {verdict(each)}", [Span(each.mean, *each.interval)], 0.0)
            for each in shown
        ]
        yield figure(
            "Differences of pairs of methods with 95 % intervals. On the dashed line "
            f"two are equal. {several(shown)}",
            spans(f"Differences in {title}", pairs, axis=_symmetrical(shown)),
        )
    if differences:
        lines = [[*names(e), interval(e, compared.digits), verdict(e)] for e in differences]
        yield table([""] * 4, lines, about=f"Differences in {title}")


def _marked(compared: Figure, methods: Sequence[Method]) -> str:
    """What the dashed line is, for the key; empty if there is none."""
    known = {f"{same:.2f}" for m in methods if isfinite(same := m.constant(compared))}
    words = {
        "accuracy": "always the most frequent class",
        "balanced-accuracy": "always the same answer, or chance",
        "auroc": "chance",
    }
    return f"{words[compared.metric]}: {', '.join(sorted(known))}" if known else ""


def _curves(compared: Figure, methods: Sequence[Method]) -> Iterator[str]:
    """The figure over the rounds, if there is more than one and the methods have colours."""
    curves = {m.name: curve for m in methods if len(curve := m.curve(compared)) > 1}
    if not 0 < len(curves) <= SERIES or compared.signed:
        return
    lines = [Line(name, [*curve], [*curve.values()]) for name, curve in curves.items()]
    constants = {round(same, 2) for m in methods if isfinite(same := m.constant(compared))}
    level = constants.pop() if len(constants) == 1 else nan
    yield figure(
        "After each round, mean over a method's runs.",
        f'<div class="panels">{chart(f"{_title(compared)}, by round", lines, level)}</div>\n',
    )


def _around(values: Sequence[float]) -> Span:
    middle, deviation = mean(values), spread(values)
    return Span(middle, middle - deviation, middle + deviation, values)


def _symmetrical(differences: Sequence[Difference]) -> Axis:
    """An axis with 0 in its middle that holds all intervals, with an end of one digit."""
    most = max(abs(end) for each in differences for end in each.interval) or 1.0
    unit = 10.0 ** int(log10(most) // 1)
    end = unit * next(step for step in (1, 2, 3, 4, 5, 6, 8, 10) if step * unit >= most)
    return Axis(-end, end, (-end, -end / 2, 0, end / 2, end))
