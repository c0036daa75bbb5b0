"""Figures of models for people: as cells of tables, and as pictures."""

from collections.abc import Sequence
from math import nan

from pages import plots
from pages.figures import Assessment, Figure, is_noised, number, size
from pages.page import Marked, table
from pages.plots import Line, Span
from pages.verdicts.model import objection

NO_BREAK = "\N{NO-BREAK SPACE}"
COMPARED = {
    "better": Marked("better", "good"),
    "worse": Marked("worse", "bad"),
    "not shown": f"not{NO_BREAK}shown",
}
OF_CLASS = ("images", "right", "share right", "sensitivity", "specificity")


def compared_cell(row: Assessment) -> object:
    """Whether a model is better than the hospital's own, without praise if it is at chance.

    Noise hides what exact figures show, so that those say it.
    """
    if row["compared"] in ("", "not shown") and is_noised([row]):
        return "exact figures say"
    against = row["compared"] == "better" and objection(row)
    return (
        f"better,{NO_BREAK}not above{NO_BREAK}chance"
        if against
        else COMPARED.get(row["compared"], "–")
    )


def interval(told: Figure | None, *, signed: bool = False) -> str:
    """A figure with its interval, which stays on one line."""
    if told is None:
        return "–"
    value, _, within = number(told, signed).partition(" ")
    return f"{value} {within.replace(' ', NO_BREAK)}".strip()


def tested(row: Assessment) -> str:
    """How many images, and below them patients."""
    return size(row).replace(" ", NO_BREAK).replace(f"{NO_BREAK}of", " of")


def commonest(largest: Assessment | None) -> str:
    """The share of the class with most images, and its name."""
    return f"{largest['share']:.3f} ({largest['name']})" if largest else "not told"


def whole(count: float | None) -> str:
    """A count; one that is told with noise may have a decimal."""
    return "–" if count is None else f"{count:.1f}".removesuffix(".0")


def span(told: Figure | None) -> Span:
    """A figure with its interval, for a picture."""
    if told is None:
        return Span(nan)
    low, high = (nan if end is None else end for end in (told["low"], told["high"]))
    return Span(told["value"], low, high)


def class_row(name: str, told: Assessment) -> list[object]:
    """Cells of one class, under `OF_CLASS`.

    Args:
        name: What the row is about, such as the hospital.
        told: Of the row's `classes`.
    """
    if told["images"] is None:
        return [name, "none, or too few patients to tell", None, None, None, None]
    figures = (interval(told[key]) for key in ("recall", "sensitivity", "specificity"))
    return [name, whole(told["images"]), whole(told["right"]), *figures]


def confusion(classes: Sequence[str], counts: Sequence[Sequence[float | None]]) -> str:
    """The table of what is taken for what; rows are what images show."""
    rows = [
        [name, *("not told" if n is None else whole(n) for n in row)]
        for name, row in zip(classes, counts, strict=True)
    ]
    return table(["the image shows ↓, the answer is →", *classes], rows, about="Confusion counts")


def reliability(name: str, bins: Sequence[Assessment]) -> str:
    """A picture of how far probabilities can be believed."""
    xs = [each["confidence"] for each in bins]
    ys = [each["right"]["value"] if each["right"] else nan for each in bins]
    return plots.reliability(Line(name, xs, ys))
