"""What may be said of a run, in words: of what hospitals hold, then of every model everywhere.

The log, the report and the comparison show these sentences as they are. What may be said of one
model at one hospital, `pages.verdicts` judges.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from math import isfinite

from pages.figures import RARELY, Row, compared, is_noised, number, size
from pages.verdicts import (
    GRAVITY,
    few_in_all,
    few_of_a_class,
    graver,
    judge,
    judge_all,
    mean_chance,
    objection,
    pair,
    worst,
)
from server_app import noised
from server_app.assessments import difference, everywhere_of, mean_over_hospitals
from server_app.summary import Summary
from strategies.protocol.names import join_names

OWN = "the hospitals' own models"  # before the first hand-off
ALIKE = 1.2  # times the share of each class if all have as many images: then none is the largest


def sentences(
    headline: Row | None,
    everywhere: Row | None,
    rows: Sequence[Row],
    pooled: Sequence[Row],
    round_: int,
    holders: Collection[str],
) -> list[dict[str, str]]:
    """`Summary.worth`, from other parts of the summary.

    Args:
        headline: `Summary.headline`.
        everywhere: Of `assessments.everywhere_of`.
        rows: `Summary.assessments`.
        pooled: `Summary.pooled`.
        round_: The last evaluated one.
        holders: The hospitals that hold a model after it.
    """
    if headline is None:
        return [_said("run", "open", "No model was tested, or no hospital tells of it.")]
    tests = [row for row in rows if row["kind"] == "model" and row["balanced_accuracy"]]
    held = [row for row in tests if row["held"]]
    found = []
    if held:
        whose = "hospitals, the model that the hospital holds"
        silent = sorted({*holders} - {row["hospital"] for row in held})
        found.append(_beside_chance("At", whose, headline, held, silent))
    if everywhere:
        whose = "tested pairs of model and hospital, the model"
        found.append(_beside_chance("Everywhere: in", whose, everywhere, tests, ()))
    own = held or tests
    if is_noised(tests):
        of_noise = noised.sentences(own, pooled, round_)
        return found + [_said(*said, **place) for *said, place in of_noise]
    learnt = judge_all(own) == "good"
    found += _largest(own)
    if headline["low"] is not None:
        found += _alone(own, round_, learnt)
        found += [_said("run", *each) for each in (*few_in_all(headline), *few_of_a_class(own))]
        found += [*_classes(pooled, learnt), *sorted(_hospitals(rows), key=_gravest_first)]
    return found


def _said(about: str, judgement: str, text: str, **place: str) -> dict[str, str]:
    named = {"hospital": "", "class": "", "model": "", **place}
    return {"about": about, **named, "judgement": judgement, "text": text}


def _beside_chance(
    where: str, whose: str, mean: Row, rows: Sequence[Row], silent: Sequence[str]
) -> dict[str, str]:
    """How many models are shown to know more than a constant answer, their mean, and the worst."""
    judgement, same, least = judge_all(rows), mean_chance(rows), worst(rows)
    shown = sum(judge(row) == "good" for row in rows)
    text = f"{where} {shown} of {len(rows) + len(silent)} {whose} is shown to be better than chance"
    if is_noised(rows):
        text += " by figures with noise"
    if judgement == "note" and not shown:
        text = (
            f"{where} {len(rows)} {whose} was tested; whether it is better than chance is not known"
        )
    text += f": balanced accuracy {number(mean)}"
    if len(rows) > 1:
        of_all = "estimated for all pairs" if "sampled" in mean else "on average"
        text += f" {of_all}; worst {pair(least)}"
    if isfinite(same):
        text += f". Always the same answer gives {same:.3f}"
    if silent:
        text += f". No figures from {join_names(silent)}"
        judgement = graver(judgement, "open")
    return _said("run", judgement, f"{text}.", hospital=least["hospital"], model=least["model"])


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
    balanced = mean_chance(told)
    if surely > share and share < ALIKE * balanced:
        return  # no class is so frequent that its share says anything
    if surely > share:
        text = f"Accuracy {shown} is better than always answering {answer} ({share:.3f})."
        yield _said("run", "note", text)
    else:
        text = f"Accuracy {shown} is no better than always answering {answer} ({share:.3f})."
        yield _said("run", "bad", text)


def _alone(tests: Sequence[Row], round_: int, learnt: bool) -> Iterator[dict[str, str]]:
    """Whether hospitals gain on their own models before the first hand-off."""
    rows = [row for row in tests if row["gain"]]
    if not rows:
        return
    whose = "the model that a hospital holds" if rows[0]["held"] else "a model"
    gain, places = mean_over_hospitals(rows, "gain"), len({row["hospital"] for row in rows})
    lowest = min(rows, key=lambda row: float(row["gain"]["value"]))
    where = f"at {lowest['hospital']}"
    if places > 1:
        shown = number(lowest["gain"], signed=True)
        where = f"mean over {places} hospitals; lowest {shown} {where}"
    beside = (
        f"{number(gain, signed=True)} in balanced accuracy, {whose} after round {round_} beside "
        f"the hospital's own before the first hand-off, {where}"
    )
    judgement, text = {
        "better": ("good", f"Better than {OWN}"),
        "worse": ("bad", f"Worse than {OWN}"),
        "not shown": ("open", f"Not shown to be better than {OWN}"),
    }[compared(gain)]
    if not learnt or any(row["compared"] == "worse" for row in rows):
        judgement = graver(judgement, "note")
    place = {"hospital": lowest["hospital"], "model": lowest["model"]}
    yield _said("run", judgement, f"{text}: {beside}.", **place)


def with_baseline(summary: Summary, baseline: Summary) -> list[dict[str, str]]:
    """`Summary.worth` with whether the models are better than those of a baseline.

    That takes the place of the comparison with models that were trained for one visit. The tests of
    the two runs count as independent, which makes the interval rather too wide.

    Args:
        summary: Of the run.
        baseline: Of the same run by the method of that name.
    """
    found = []
    held = _held(summary)
    for where, ours, theirs in (
        ("At home", _mean(held), _mean(_held(baseline))),
        ("Everywhere", _everywhere(summary), _everywhere(baseline)),
    ):
        if not (ours and theirs) or None in (ours["low"], theirs["low"]):
            continue
        gain = difference(ours, theirs)
        judgement, text = {
            "better": ("good", f"{where} better than"),
            "worse": ("bad", f"{where} worse than"),
            "not shown": ("open", f"{where} not shown to be better than"),
        }[compared(gain)]
        text += (
            f" {baseline.strategy}, where each hospital trains its own model alone for as long: "
            f"balanced accuracy {number(ours)} instead of {number(theirs)}, "
            f"a difference of {number(gain, signed=True)}."
        )
        if judge_all(held) != "good":
            judgement = graver(judgement, "note")
        found.append(_said("run", judgement, text))
    said = [each for each in summary.worth if not (found and OWN in each["text"])]
    after = sum(each["about"] == "run" for each in said)
    return [*said[:after], *found, *said[after:]]


def _held(summary: Summary) -> list[Row]:
    return [row for row in summary.assessments if row["held"] and row["balanced_accuracy"]]


def _mean(tests: Sequence[Row]) -> Row | None:
    return mean_over_hospitals(tests, "balanced_accuracy") if tests else None


def _everywhere(summary: Summary) -> Row | None:
    return everywhere_of(summary.assessments, vars(summary))


def _classes(pooled: Sequence[Row], learnt: bool) -> Iterator[dict[str, str]]:
    """Classes that no model finds, or that all find rarely; with what thresholds would do.

    Models that have learnt nothing find each class rarely, as is said already.
    """
    models = [row for row in pooled if row["kind"] == "model"]
    several = len(models) > 1
    for each in zip(*(row["classes"] for row in models), strict=True):
        told = [row for row in each if row["recall"] and row["recall"]["low"] is not None]
        if not told or len(told) < len(models):
            continue
        best = max(told, key=lambda row: float(row["recall"]["value"]))
        name, images = best["name"], size(best)
        if best["recall"]["value"] == 0:
            most = max(row["recall"]["high"] for row in told)
            none = "No model finds" if several else "The model does not find"
            text = f"{none} '{name}': 0 of {images} (at most {most:.0%} of such images)."
        elif learnt and best["recall"]["high"] < RARELY:
            share = number(best["recall"])
            who, finder = ("All models miss", "the best") if several else ("The model misses", "it")
            text = f"{who} most of '{name}': {finder} finds {share} of {images}."
        else:
            continue
        yield _said("class", "bad", text + _operating(told), **{"class": name})


def _operating(told: Sequence[Row]) -> str:
    """What a class would gain from another operating point than the most probable class."""
    rows = [row for row in told if row["sensitivity"] and row["specificity"]]
    if not rows:
        return ""
    best = max(rows, key=lambda r: float(r["sensitivity"]["value"] + r["specificity"]["value"]))
    which = "the best model" if len(told) > 1 else "it"
    return (
        f" At a threshold of its own, chosen on training images, {which} has a sensitivity "
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
        if against := objection(row):
            text += f" {against}"
            judgement = graver(judgement, judge(row))
        if missed := [
            f"'{each['name']}'"
            for each in row["classes"]
            if each["right"] == 0 and each["recall"] and (each["recall"]["high"] or 1.0) < RARELY
        ]:
            text += f" It finds no image of {join_names(missed)}."
            judgement = "bad"
        yield _said("hospital", judgement, text, hospital=hospital, model=row["model"])


def _gravest_first(said: dict[str, str]) -> tuple[int, str]:
    return -GRAVITY.index(said["judgement"]), said["hospital"]


def texts(worth: Iterable[dict[str, str]], *about: str) -> list[str]:
    """The sentences about some things."""
    return [each["text"] for each in worth if each["about"] in about]
