"""What may be said of a run, in words: whether models have learnt anything, for whom, which class.

The one place that judges. The log, the report and the comparison show these sentences as they are.
A figure is above another one only if its whole 95 % interval is.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite, nan
from typing import Any

from pages.figures import RARELY, WIDE, Row, compared, number, size
from server_app.assessments import mean_over_hospitals
from strategies.protocol.names import some

ALIKE = 1.2  # times the share of each class if all have as many images: then none is the largest


def sentences(
    headline: Row | None,
    rows: Sequence[Row],
    pooled: Sequence[Row],
    round_: int,
    *,
    planned: bool = False,
) -> list[dict[str, str]]:
    """`Summary.worth`, from other parts of the summary.

    Args:
        headline: `Summary.headline`.
        rows: `Summary.assessments`.
        pooled: `Summary.pooled`.
        round_: The last evaluated one.
        planned: Not every hospital was to take part in every round.
    """
    if headline is None:
        return [_said("run", "open", "No model was tested, or no hospital tells of it.")]
    tests = [row for row in rows if row["kind"] == "model" and row["balanced_accuracy"]]
    if headline["figure"].startswith("personalized"):
        tests = [row for row in tests if row["held"]]
    found = [_learnt(headline, tests, planned), *_largest(tests)]
    if headline["low"] is not None:
        learnt = found[0]["judgement"] == "good"
        found += [*_alone(tests, round_), *_few(headline)]
        found += [*_classes(pooled, learnt), *_hospitals(rows)]
    return found


def _said(about: str, judgement: str, text: str, **place: str) -> dict[str, str]:
    named = {"hospital": "", "class": "", "model": "", **place}
    return {"about": about, **named, "judgement": judgement, "text": text}


def _learnt(headline: Row, tests: Sequence[Row], planned: bool) -> dict[str, str]:
    """Whether the models know more than a constant answer does."""
    whose = (
        "every model at every hospital" + " that was active" * planned
        if headline["figure"].startswith("federation")
        else "the model that each hospital holds"
    )
    measured = f"balanced accuracy {number(headline)}, {whose}"
    if not isfinite(same_answer := chance(tests)):
        return _said("run", "note", f"Measured: {measured}.")
    same = f"{same_answer:.3f} is what always the same answer gives"
    if headline["low"] is None:
        text = f"Measured: {measured}; {same}. How sure that is was not measured."
        return _said("run", "note", text)
    if headline["low"] > same_answer:
        return _said(
            "run", "good", f"The models have learnt to tell classes apart: {measured}; {same}."
        )
    text = f"It is not shown that the models have learnt anything: {measured}; {same}."
    return _said("run", "bad", text)


def _largest(tests: Sequence[Row]) -> Iterator[dict[str, str]]:
    """The accuracy beside the share of the largest class."""
    told = [row for row in tests if row["largest_class"] and row["accuracy"]]
    if not told:
        return
    share = sum(row["largest_class"]["share"] for row in told) / len(told)
    accuracy = mean_over_hospitals(told, "accuracy")
    names = {row["largest_class"]["name"] for row in told}
    answer = f"'{names.pop()}'" if len(names) == 1 else "each hospital's most frequent class"
    shown = number(accuracy)
    surely = accuracy["value"] if accuracy["low"] is None else accuracy["low"]
    balanced = sum(1 / len(_told(row)) for row in told) / len(told)
    if surely > share and share < ALIKE * balanced:
        return  # no class is so frequent that its share says anything
    if surely > share:
        text = f"Accuracy {shown} is better than always answering {answer} ({share:.3f})."
        yield _said("run", "note", text)
    else:
        text = f"Accuracy {shown} is no better than always answering {answer} ({share:.3f})."
        yield _said("run", "bad", text)


def _alone(tests: Sequence[Row], round_: int) -> Iterator[dict[str, str]]:
    """Whether hospitals gain on their own models before the first hand-off."""
    rows = [row for row in tests if row["held"] and row["gain"]]
    whose = "the model that a hospital holds"
    if not rows:
        rows = [row for row in tests if row["gain"]]
        whose = "a model"
    if not rows:
        return
    gain = mean_over_hospitals(rows, "gain")
    shown = number(gain, signed=True)
    places = len({row["hospital"] for row in rows})
    beside = (
        f"{shown} in balanced accuracy, {whose} after round {round_} beside the hospital's own "
        f"before the first hand-off, mean over {places} hospital{'s' * (places > 1)}"
    )
    said = {
        "better": ("good", f"Better than the hospitals' own models: {beside}."),
        "worse": ("bad", f"Worse than the hospitals' own models: {beside}."),
        "not shown": ("open", f"Not shown to be better than the hospitals' own models: {beside}."),
    }
    yield _said("run", *said[compared(gain)])


def _few(headline: Row) -> Iterator[dict[str, str]]:
    """Whether there are too few test images to see much."""
    half = (headline["high"] - headline["low"]) / 2
    if half > WIDE:
        few = f"There are few test images ({size(headline)})"
        text = f"{few}: differences below {half:.2f} do not show."
        yield _said("run", "open", text)


def _classes(pooled: Sequence[Row], learnt: bool) -> Iterator[dict[str, str]]:
    """Classes that no model finds, or that all find rarely; with what thresholds would do.

    Models that have learnt nothing find each class rarely, as is said already.
    """
    models = [row for row in pooled if row["kind"] == "model"]
    for each in zip(*(row["classes"] for row in models), strict=True):
        told = [row for row in each if row["recall"] and row["recall"]["low"] is not None]
        if not told or len(told) < len(models):
            continue
        best = max(told, key=lambda row: float(row["recall"]["value"]))
        name, images = best["name"], size(best)
        if best["recall"]["value"] == 0:
            most = max(row["recall"]["high"] for row in told)
            text = f"No model finds '{name}': 0 of {images} (at most {most:.0%} of such images)."
        elif learnt and best["recall"]["high"] < RARELY:
            share = number(best["recall"])
            text = f"All models miss most of '{name}': the best finds {share} of {images}."
        else:
            continue
        yield _said("class", "bad", text + _operating(told), **{"class": name})


def _operating(told: Sequence[Row]) -> str:
    """What a class would gain from another operating point than the most probable class."""
    rows = [row for row in told if row["sensitivity"] and row["specificity"]]
    if not rows:
        return ""
    best = max(rows, key=lambda r: float(r["sensitivity"]["value"] + r["specificity"]["value"]))
    return (
        " At a threshold of its own, chosen on training images, the best model has a sensitivity "
        f"of {number(best['sensitivity'])} and a specificity of {number(best['specificity'])}."
    )


def _hospitals(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    """For each hospital the model that it holds, beside its own."""
    alone = {row["hospital"]: row for row in rows if row["kind"] == "standalone"}
    words = {
        "better": ("good", "That is better"),
        "worse": ("bad", "That is worse"),
        "not shown": ("open", "A difference is not shown"),
    }
    for row in rows:
        if not (row["held"] and row["balanced_accuracy"]):
            continue
        hospital, judgement = row["hospital"], "note"
        text = f"{hospital} holds a model with balanced accuracy {number(row['balanced_accuracy'])}"
        text += f" on {size(row)}."
        own = alone.get(hospital)
        if own and own["balanced_accuracy"] and row["compared"]:
            judgement, verdict = words[row["compared"]]
            text += (
                f" {verdict}: its own before the first hand-off had "
                f"{number(own['balanced_accuracy'])}, the difference is "
                f"{number(row['gain'], signed=True)}."
            )
        if missed := [
            f"'{each['name']}'"
            for each in row["classes"]
            if each["right"] == 0 and each["recall"] and (each["recall"]["high"] or 1.0) < RARELY
        ]:
            text += f" It finds no image of {some(missed)}."
            judgement = "bad"
        yield _said("hospital", judgement, text, hospital=hospital, model=row["model"])


def chance(rows: Iterable[Row]) -> float:
    """The balanced accuracy of always the same answer, mean over rows; NaN if nobody can say.

    It is one over the number of classes that a hospital tests on.
    """
    chances = [1 / len(told) for row in rows if (told := _told(row))]
    return sum(chances) / len(chances) if chances else nan


def _told(row: Row) -> list[Any]:
    return [each for each in row["classes"] if each["images"]]


def texts(worth: Iterable[dict[str, str]], *about: str) -> list[str]:
    """The sentences about some things."""
    return [each["text"] for each in worth if each["about"] in about]
