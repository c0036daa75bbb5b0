"""Verdicts on a model at a hospital, from its assessment (pages/figures.py)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite, nan
from statistics import fmean
from typing import Any

from learning.intervals import number
from pages.figures import ROUNDING, Assessment, is_noised, mean_over_hospitals, percent, size
from strategies.protocol.names import join_names

# `judgement` (pages.page.JUDGED), `text`, the subject `about`, and the `hospital`, `model` and
# `class`; empty = none.
Verdict = dict[str, str]
GRAVITY = ("good", "note", "open", "bad")  # judgements, the most favourable first
COMPARED = {"better": "good", "worse": "bad"}  # the judgement of a direction; others are open
RARELY = 0.5  # share of a class's images below which a model finds the class rarely
WIDE = 0.1  # half width of an interval above which test images are called few
FEW = 30  # patients of a class (images, if none are named) below which they are called few
NAMED = 6  # most classes of few test images that are named
ALIKE = 1.2  # times the share in equal classes: below, no class counts as the largest


def verdict(
    judgement: str,
    text: str,
    about: str = "run",
    *,
    hospital: str = "",
    model: str = "",
    name: str = "",
) -> Verdict:
    """A row of `Summary.worth`; `name` is the name of a class."""
    place = {"about": about, "hospital": hospital, "class": name, "model": model}
    return {**place, "judgement": judgement, "text": text}


def gravest_judgement(*judgements: str) -> str:
    """The least favourable judgement."""
    return max(judgements, key=GRAVITY.index)


def chance(row: Assessment) -> float:
    """The balanced accuracy of a constant answer.

    NaN if the number of classes is unknown, or 1: then the constant answer is always right.
    """
    count = len(tested_classes(row))
    return 1 / count if count > 1 else nan


def mean_chance(rows: Iterable[Assessment]) -> float:
    """The mean balanced accuracy of constant answers; NaN if it is unknown for all assessments.

    Where one class is tested, the constant answer is always right.
    """
    known = [1 / count for row in rows if (count := len(tested_classes(row)))]
    return fmean(known) if known else nan  # exact: it is compared with means of figures


def tested_classes(row: Assessment) -> list[Any]:
    """The classes of which a hospital reports test images."""
    return [each for each in row["classes"] if each["images"]]


def missing_classes(rows: Sequence[Assessment]) -> str:
    """The number of classes that figures cover, if they leave out some; empty otherwise.

    Rows that report no class do not count: their details have not left.
    """
    counts = [count for row in rows if (count := len(tested_classes(row)))]
    if not counts or min(counts) == len(rows[0]["classes"]):
        return ""
    return f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{min(counts)}"


def is_inverted(row: Assessment) -> bool:
    """Whether the AUROC is shown to be below 0.5."""
    auroc = row["auroc"]
    return bool(auroc and auroc["high"] < 0.5)


def judge(row: Assessment) -> str:
    """The judgement of a model beside a constant answer.

    Returns:
        "good": its interval is above chance. "bad": the model is inverted, or its figure is not
        above chance; with noise, the upper end of its interval is not. "open": the figure is above
        chance, but its interval includes chance. "note": the interval or chance is unknown.
    """
    figure, same = row["balanced_accuracy"], chance(row)
    most = figure["high"] if "noise" in figure else figure["value"]
    if is_inverted(row) or most <= same:
        return "bad"
    if not (isfinite(figure["low"]) and isfinite(same)):
        return "note"
    return "good" if figure["low"] > same else "open"


def judge_all(rows: Sequence[Assessment]) -> str:
    """The judgement of several models: good only if each is good."""
    found = {judge(row) for row in rows}
    if "bad" in found or (found == {"open"} and not is_noised(rows)):
        return "bad"
    return next((each for each in ("open", "note", "good") if each in found), "open")


def is_useful(row: Assessment) -> bool:
    """Whether a model may be better than chance, and is not worse than the hospital's own.

    On the images of one class no model is better than the constant answer.
    """
    may_be_better = judge(row) in ("good", "note") and len(tested_classes(row)) != 1
    return may_be_better and row["compared"] != "worse"


def objection(row: Assessment) -> str:
    """The objection to a model beside chance, as a sentence; empty if there is none."""
    if is_inverted(row):
        return f"It is inverted there: AUROC {number(row['auroc'])}, and guessing gives 0.5."
    if judge(row) in ("bad", "open"):
        return f"The model is not shown to be better than chance ({chance(row):.3f})."
    return ""


def compare_with_own(row: Assessment) -> tuple[str, str]:
    """The judgement of a model beside the hospital's own, and the words for it.

    A model at chance is not praised. With noise, only a clear difference is judged.
    """
    word = row["compared"]
    if word not in COMPARED and is_noised([row]):
        return "open", "see the exact page"
    if word == "better" and objection(row):
        return "note", "better, not above chance"
    return COMPARED.get(word, "open"), word or "–"


def worst_pair(rows: Sequence[Assessment]) -> Assessment:
    """The pair of model and hospital with the lowest figure, first among pairs with an `objection`.

    Chance differs between hospitals: the lowest figure of all may be far above its own chance.
    """
    return min(rows, key=lambda row: (not objection(row), row["balanced_accuracy"]["value"]))


def pair(row: Assessment) -> str:
    """A model at a hospital, with its figure."""
    text = f"{number(row['balanced_accuracy'])}, '{row['model']}' at {row['hospital']}"
    if is_inverted(row):
        return f"{text}, where it is inverted (AUROC {number(row['auroc'])})"
    return f"{text}, where chance is {chance(row):.3f}" if objection(row) else text


def describe(row: Assessment, subject: str, own: Assessment | None, name: str) -> Verdict:
    """The verdict on a model at a hospital beside the hospital's own, which is called `name`."""
    noised = is_noised([row])
    some = missing_classes([row])
    classes = f" of {some} of {len(row['classes'])} classes" if some else ""
    text = f"{subject} balanced accuracy {number(row['balanced_accuracy'])}"
    text += f"{' with noise, on about' if noised else ' on'} {size(row)}{classes}."
    judgement = "note"
    own = own if own and own["balanced_accuracy"] else None
    if row["gain"] and (noised or own):
        judgement = COMPARED.get(row["compared"], "open")
        if judgement != "open":
            text += f" That is {row['compared']} than {name}"
        elif noised:
            text += f" Its exact page says whether that is better than {name}"
        else:
            text += f" That is not shown to be better or worse than {name}"
        if own and not noised:
            text += f", which had {number(own['balanced_accuracy'])}"
        with_noise = " with noise" if noised else ""
        text += f"; the difference{with_noise} is {number(row['gain'], signed=True)}."
    if not noised and (against := objection(row)):
        judgement, text = "bad", f"{text} {against}"
    return verdict(judgement, text, "hospital", hospital=row["hospital"], model=row["model"])


def unfound_classes(row: Assessment) -> list[str]:
    """The classes of which a model finds no image, in quotes."""
    found = [each for each in row["classes"] if each["recall"]]
    return [f"'{each['name']}'" for each in found if each["recall"]["value"] == 0]


def missed_classes(
    rows: Sequence[Mapping[str, Any]], name: str, *, learnt: bool, noised: bool = False
) -> Iterator[Verdict]:
    """Verdicts on classes that no model finds, or that all models find rarely.

    `name` is of a single model. `learnt`: the models are above chance; others find all rarely.
    """
    several = len(rows) > 1
    for each in zip(*(row["classes"] for row in rows), strict=True):
        known = [at for at in each if at["recall"] and isfinite(at["recall"]["high"])]
        if not known or len(known) < len(rows):
            continue
        best = max(known, key=lambda at: (at["recall"]["value"], at["recall"]["high"]))
        most = max(at["recall"]["high"] for at in known)
        if best["recall"]["value"] == 0 and not noised:
            finds = "No model finds an" if several else f"{name} finds no"
            share = f"0 of {size(best)} (at most {percent(most)} of such images)"
            text = f"{finds} image of '{best['name']}': {share}.{_operating_point(known)}"
        elif (most if noised else best["recall"]["high"]) < RARELY and (learnt or noised):
            misses, finder = (
                ("All models miss", "the best") if several else (f"{name} misses", "it")
            )
            text = f"{misses} most of '{best['name']}': {finder} finds {number(best['recall'])}"
            text += ", with noise." if noised else f" of {size(best)}.{_operating_point(known)}"
        else:
            continue
        yield verdict("bad", text, "class", name=best["name"])


def _operating_point(rows: Sequence[Mapping[str, Any]]) -> str:
    """The sentence on a class's own operating point; empty if it was not measured."""
    known = [at for at in rows if at["sensitivity"] and at["specificity"]]
    if not known:
        return ""
    best = max(known, key=lambda at: float(at["sensitivity"]["value"] + at["specificity"]["value"]))
    model = "the best model" if len(rows) > 1 else "it"
    return (
        f" At a threshold of its own, chosen on training images, {model} has a sensitivity of "
        f"{number(best['sensitivity'])} and a specificity of {number(best['specificity'])}."
    )


def compare_largest_class(rows: Sequence[Assessment]) -> Iterator[Verdict]:
    """The verdict on the accuracy of models beside the share of the largest class."""
    known = [row for row in rows if row["largest_class"] and row["accuracy"]]
    if not known:
        return
    share = fmean(row["largest_class"]["share"] for row in known)
    accuracy = mean_over_hospitals(known, "accuracy")
    names = {row["largest_class"]["name"] for row in known}
    answer = f"'{names.pop()}'" if len(names) == 1 else "each hospital's most frequent class"
    if accuracy["value"] < share + ROUNDING:
        judgement, beside = "bad", "no better"
    elif accuracy["low"] > share:
        judgement, beside = "note", "better"
    else:
        judgement, beside = "open", "not shown to be better"
    if judgement == "note" and share < ALIKE * mean_chance(known):
        return  # no class is frequent enough to matter
    text = f"Accuracy {number(accuracy)} is {beside} than always answering {answer} ({share:.3f})."
    yield verdict(judgement, text)


def few_images(figure: Mapping[str, Any], rows: Iterable[Assessment]) -> Iterator[Verdict]:
    """Verdicts on few test images, in all or of a class at a hospital.

    `figure` is the mean over `rows`, with the numbers of images and patients behind it.
    """
    if (width := figure["high"] - figure["low"]) > 2 * WIDE:
        few = f"There are few test images ({size(figure)})"
        yield verdict("open", f"{few}: the balanced accuracy has an interval {width:.2f} wide.")
    found = sorted(
        (
            (min(each["images"], each["patients"] or each["images"]), place, each, row)
            for row in rows
            for place, each in enumerate(tested_classes(row))
        ),
        key=lambda few: few[:2],
    )
    of_few = [each for each in found if each[0] < FEW]
    if not of_few:
        return
    _, _, least, row = of_few[0]
    at = " at {hospital}" if len({test["hospital"] for *_, test in found}) > 1 else ""
    named = [f"{size(each)} of '{each['name']}'{at.format_map(test)}" for *_, each, test in of_few]
    text = f"Classes with few test images: {join_names(named, NAMED)}."
    moves = 1 / least["images"] / len(tested_classes(row))
    place = at.format_map(row)
    text += f" One image of '{least['name']}' moves the balanced accuracy{place} by {moves:.3f}"
    if least["recall"] and isfinite(least["recall"]["low"]):
        text += f"; the share that is right is {number(least['recall'])}"
    yield verdict("note", f"{text}.")
