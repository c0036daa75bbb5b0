"""Figures of models as cells of tables, and as pictures."""

from collections.abc import Sequence
from math import nan

from learning.intervals import Figure, number
from pages import plots
from pages.figures import MEANS, Assessment, size
from pages.page import Marked
from pages.plots import Line, Picture
from pages.verdicts.model import compare_with_own

NO_BREAK = "\N{NO-BREAK SPACE}"
CLASS = ("images", "right", "share right")
ONE_VS_REST = ("sensitivity", "specificity")
# Heads of the further figures of a model, beside the balanced accuracy
MORE = ("accuracy", "share of the largest class", *MEANS.values())


def compared_cell(row: Assessment) -> object:
    """The cell with the comparison of a model with the hospital's own."""
    judgement, words = compare_with_own(row)
    text = words.replace(" ", NO_BREAK)
    return Marked(text, judgement) if judgement in ("good", "bad") else text


def figure_cell(figure: Figure | None, *, signed: bool = False) -> str:
    """A figure with its interval, without line breaks in the interval."""
    if figure is None:
        return "–"
    value, _, within = number(figure, signed).partition(" ")
    return f"{value} {within.replace(' ', NO_BREAK)}".strip()


def size_cell(row: Assessment) -> str:
    """The number of images, and below it the number of patients."""
    return size(row).replace(" ", NO_BREAK).replace(f"{NO_BREAK}of", " of")


def more_cells(row: Assessment) -> list[object]:
    """Cells of the further figures of a model, under `MORE`."""
    largest = row["largest_class"]
    of_largest = f"{largest['share']:.3f} ({largest['name']})" if largest else "not reported"
    return [figure_cell(row["accuracy"]), of_largest, *(figure_cell(row[key]) for key in MEANS)]


def whole_number(count: float | None) -> str:
    """A count; with noise it may have a decimal."""
    return "–" if count is None else f"{count:.1f}".removesuffix(".0")


def class_cells(row: Assessment) -> list[object]:
    """Cells of one class of a row, under `CLASS`."""
    if row["images"] is None:
        return ["none, or too few patients to tell", None, None]
    return [whole_number(row["images"]), whole_number(row["right"]), figure_cell(row["recall"])]


def one_vs_rest_cells(row: Assessment) -> list[object]:
    """Cells of one class of a row against all other classes, under `ONE_VS_REST`."""
    return [figure_cell(row[key]) if row["images"] is not None else None for key in ONE_VS_REST]


def distinct_classes(classes: Sequence[str]) -> list[bool]:
    """Whether to show each class against all others; of two classes, one mirrors the other."""
    return [len(classes) != 2 or place == 1 for place in range(len(classes))]


def confusion(
    classes: Sequence[str], counts: Sequence[Sequence[float | None]]
) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of the confusion matrix; rows are true classes."""
    rows = [
        [name, *("none reported" if n is None else whole_number(n) for n in row)]
        for name, row in zip(classes, counts, strict=True)
    ]
    return ["the image shows ↓, the answer is →", *classes], rows


def reliability(name: str, bins: Sequence[Assessment]) -> Picture:
    """A reliability plot: the share of right answers at each probability."""
    xs = [each["confidence"] for each in bins]
    ys = [each["right"]["value"] if each["right"] else nan for each in bins]
    pairs = ", ".join(f"{x:.3f}: {y:.3f}" for x, y in zip(xs, ys, strict=True))
    return plots.square(Line(name, xs, ys), f"Share right at each probability: {pairs}")
