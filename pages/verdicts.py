"""What may be said of models, from their figures at hospitals: the one place that judges.

Rows are those of `pages.figures.row_of`. The server's log and report and a hospital's own report
show these sentences as they are. A figure is above another one only if its whole 95 % interval is.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite, nan
from typing import Any

from pages.figures import Row, is_noised, number, size

Sentence = tuple[str, str]  # its judgement (pages.page.judged), and the text
GRAVITY = ("good", "note", "open", "bad")  # judgements, the most favourable first
WIDE = 0.1  # half an interval above which test images are called few
FEW = 30  # patients of a class (images, if none are named) below which they are called few
NAMED = 6  # classes of few test images that are named


def chance(row: Row) -> float:
    """The balanced accuracy of always the same answer.

    NaN if nobody knows of how many classes, or of one alone: there the same answer is always right.
    """
    count = len(told_classes(row))
    return 1 / count if count > 1 else nan


def told_classes(row: Row) -> list[Any]:
    """The classes of which a hospital has test images, and says so."""
    return [each for each in row["classes"] if each["images"]]


def is_inverted(row: Row) -> bool:
    """Whether a model is surer of a class where it is not than where it is."""
    auroc = row["auroc"]
    return bool(auroc and auroc["high"] is not None and auroc["high"] < 0.5)


def judge(row: Row) -> str:
    """Whether a model knows more than a constant answer does.

    Returns:
        "good": it is shown to; "bad": it is inverted, or not above chance; "open": it is above,
        and its interval is not; "note": nobody knows how sure its figure is, or what chance is.
        A figure with noise is not above chance only if its interval is not.
    """
    figure, same = row["balanced_accuracy"], chance(row)
    most = figure["high"] if "noise" in figure else figure["value"]
    if is_inverted(row) or (most is not None and most <= same):
        return "bad"
    if figure["low"] is None or not isfinite(same):
        return "note"
    return "good" if figure["low"] > same else "open"


def graver(one: str, other: str) -> str:
    """The less favourable of two judgements."""
    return max(one, other, key=GRAVITY.index)


def judge_all(rows: Sequence[Row]) -> str:
    """The judgement of several: good only if that of each is."""
    found = {judge(row) for row in rows}
    if "bad" in found or (found == {"open"} and not is_noised(rows)):
        return "bad"
    return next((each for each in ("open", "note", "good") if each in found), "open")


def is_useful(row: Row) -> bool:
    """Whether a model may be more than a constant answer, and is not worse than the hospital's."""
    return judge(row) in ("good", "note") and row["compared"] != "worse"


def objection(row: Row) -> str:
    """What speaks against a model whatever it is compared with, as a sentence; or nothing."""
    if is_inverted(row):
        return f"It is inverted there: AUROC {number(row['auroc'])}, and guessing gives 0.5."
    if judge(row) in ("bad", "open"):
        return f"That is not shown to be better than chance ({chance(row):.3f})."
    return ""


def mean_chance(rows: Iterable[Row]) -> float:
    """The mean of `chance` over rows; NaN if nobody knows it of any."""
    known = [same for row in rows if isfinite(same := chance(row))]
    return sum(known) / len(known) if known else nan


def worst(rows: Sequence[Row]) -> Row:
    """The pair of model and hospital with the lowest figure, of those that `objection` is about.

    Hospitals differ in what chance is: the lowest figure of all may be far above its own.
    """
    return min(rows, key=lambda row: (not objection(row), row["balanced_accuracy"]["value"]))


def pair(row: Row) -> str:
    """A model at a hospital, with its figure."""
    text = f"{number(row['balanced_accuracy'])}, '{row['model']}' at {row['hospital']}"
    if is_inverted(row):
        return f"{text}, where it is inverted (AUROC {number(row['auroc'])})"
    return f"{text}, where chance is {chance(row):.3f}" if objection(row) else text


def few_in_all(figure: Row) -> Iterator[Sentence]:
    """Whether there are too few test images to see much.

    Args:
        figure: An estimate with the numbers of images and patients behind it.
    """
    if figure["low"] is not None and (half := (figure["high"] - figure["low"]) / 2) > WIDE:
        few = f"There are few test images ({size(figure)})"
        yield "open", f"{few}: differences below {half:.2f} do not show."


def few_of_a_class(rows: Iterable[Row]) -> Iterator[Sentence]:
    """Which classes have few test images at a hospital, and how much depends on each of them."""
    found = sorted(
        (
            (min(each["images"], each["patients"] or each["images"]), place, each, row)
            for row in rows
            for place, each in enumerate(told_classes(row))
        ),
        key=lambda few: few[:2],
    )
    few = [each for each in found if each[0] < FEW]
    if not few:
        return
    _, _, least, row = few[0]
    named = [f"{size(each)} of '{each['name']}' at {at['hospital']}" for *_, each, at in few]
    more = f" and {len(few) - NAMED} more" if len(few) > NAMED else ""
    text = f"Classes with few test images: {', '.join(named[:NAMED])}{more}."
    moves = 1 / least["images"] / len(told_classes(row))
    text += f" One image of '{least['name']}' moves the balanced accuracy there by {moves:.3f}"
    if least["recall"] and least["recall"]["low"] is not None:
        text += f"; the share that is right is {number(least['recall'])}"
    yield "note", f"{text}."
