"""Verdicts on a run: on the models that hospitals hold, then on every model everywhere."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import isfinite, isnan, log
from typing import Any

from learning.intervals import Figure, combine, number
from pages.figures import (
    Assessment,
    Headline,
    direction,
    is_noised,
    mean_over_hospitals,
    measured_rows,
)
from pages.verdicts.model import (
    COMPARED,
    GRAVITY,
    Verdict,
    compare_largest_class,
    describe,
    few_images,
    gravest_judgement,
    judge,
    judge_all,
    mean_chance,
    missed_classes,
    missing_classes,
    pair,
    unfound_classes,
    verdict,
    worst_pair,
)
from strategies.protocol.names import join_names
from strategies.protocol.text import amount

OWN = "the hospitals' own models"  # before the first hand-off
COMMAND = "uv run fedhandoff report --hospital NAME --to report.html"


def judge_run(
    headline: Headline | None,
    everywhere: Figure | None,
    rows: Sequence[Assessment],
    pooled: Sequence[Mapping[str, Any]],
    holders: Collection[str],
) -> list[Verdict]:
    """`Summary.worth`, from `Summary.headline`, `.assessments` (`rows`) and `.pooled`.

    `everywhere` is the federation's balanced accuracy, None if only held models were tested.
    `holders` are the hospitals that hold a model after the last evaluated round.
    """
    if headline is None:
        return [verdict("open", "No hospital reports the balanced accuracy of a model.")]
    tests = measured_rows(rows)
    held = [row for row in tests if row["held"]]
    own, noised = held or tests, is_noised(tests)
    learnt = judge_all(own) == "good"
    silent = sorted({*holders} - {row["hospital"] for row in held}) if held else []
    found = []
    if held:
        who = ", the model that the hospital holds"
        found.append(_compare_chance("At", "hospital", who, headline, held, silent))
    if everywhere:
        who = " of model and hospital, the model"
        found.append(_compare_chance("Everywhere: in", "tested pair", who, everywhere, tests, ()))
    found += [verdict("note", _noise(own), "noise")] if noised else compare_largest_class(own)
    if not noised and isnan(headline["low"]):
        return found
    found += _gain(own, headline["round"], learnt, noised)
    if silent:  # the figures of the others are no success of the run
        for each in found:
            each["judgement"] = gravest_judgement(each["judgement"], "note")
    found += () if noised else few_images(headline, own)
    models = [row for row in pooled if row["kind"] == "model"]
    found += missed_classes(models, "The model", learnt=learnt, noised=noised)
    return found + sorted(
        _judge_hospitals(rows),
        key=lambda row: (-GRAVITY.index(row["judgement"]), row["hospital"]),
    )


def judge_rewind(loss: float, classes: int) -> Iterator[Verdict]:
    """The warning that the last leg of a visit does not restore what the rewind leg undid.

    `loss` is the mean training loss of the last legs, NaN without a rewind leg. The loss of the
    same probability for all K `classes` is ln K.
    """
    if classes and loss > log(classes):
        yield verdict(
            "note",
            f"The last leg of FedRewind's visits has a mean training loss of {loss:.2f}, more than "
            f"the {log(classes):.2f} of the same probability for all classes. So a model does not "
            "relearn a hospital's images after the rewind leg. Use the base method alone, or let "
            "Adam's state travel (train.optimizer-state; docs/choose.md).",
        )


def _compare_chance(
    where: str,
    noun: str,
    who: str,
    mean: Figure,
    rows: Sequence[Assessment],
    silent: Sequence[str],
) -> Verdict:
    """The verdict on the models beside chance, with their mean and the worst pair."""
    judgement, same, least = judge_all(rows), mean_chance(rows), worst_pair(rows)
    shown = sum(judge(row) == "good" for row in rows)
    places = amount(len(rows) + len(silent), noun)
    text = f"{where} {shown} of {places}{who} is shown to be better than chance"
    if is_noised(rows):
        text += " by figures with noise"
    if judgement == "note" and not shown:
        places = amount(len(rows), noun)
        text = f"{where} {places}{who} was tested; whether it is better than chance is not known"
    text += f": balanced accuracy {number(mean)}"
    if len(rows) > 1:
        of_all = "on average"
        if "sampled" in mean:
            of_all = "estimated for all pairs"
            if isfinite(mean["low"]):
                of_all += " (its interval covers the choice of pairs alone)"
        text += f" {of_all}; the worst is {pair(least)}"
    if isfinite(same):
        text += f". A constant answer gives {same:.3f}"
    if silent:
        text += f". No figures from {join_names(silent)}"
        judgement = gravest_judgement(judgement, "open")
    return verdict(judgement, f"{text}.", hospital=least["hospital"], model=least["model"])


def _noise(rows: Sequence[Assessment]) -> str:
    """The remark on noise: its reason, the missing classes, and the command for exact figures."""
    missing = missing_classes(rows)
    left_out = (
        f"Of {len(rows[0]['classes'])} classes, a hospital's figures are about {missing}. It tests "
        "on too few patients of the others, or on none, so its figures do not show how well models "
        "know those. "
    )
    return (
        "Hospitals have put noise into their figures on purpose, so that the figures do not reveal "
        f"a model's answer for one patient. {left_out if missing else ''}Each hospital's own page "
        f"is exact. The hospital makes it with `{COMMAND}`."
    )


def _gain(
    tests: Sequence[Assessment], round_: int, learnt: bool, noised: bool
) -> Iterator[Verdict]:
    """The verdict on the gain over the hospitals' own models before the first hand-off."""
    rows = [row for row in tests if row["gain"]]
    if not rows:
        return
    gain, places = mean_over_hospitals(rows, "gain"), len({row["hospital"] for row in rows})
    every = len({row["hospital"] for row in tests})
    some = f"{places} of {every} hospitals" if places < every else amount(places, "hospital")
    partly = noised and missing_classes(rows)
    word = "" if partly else direction(gain)
    judgement = COMPARED.get(word, "open")
    if word in COMPARED:
        text = f"{word.capitalize()} than {OWN}{', also with noise' if noised else ''}"
    elif noised:
        text = f"Each hospital's exact page says whether models are better than {OWN}. With noise"
    else:
        text = f"Not shown to be better than {OWN}"
    if not learnt or places < every or any(row["compared"] == "worse" for row in rows):
        judgement = gravest_judgement(judgement, "note")
    lowest = min(rows, key=lambda row: float(row["gain"]["value"]))
    where = f"at {lowest['hospital']}"
    if places > 1:
        lowest_gain = number(lowest["gain"], signed=True)
        where = f"mean over {some}; lowest {lowest_gain} {where}"
    elif every > 1:
        where += f", {some}"
    noun = "the model that a hospital holds" if rows[0]["held"] else "a model"
    yield verdict(
        judgement,
        f"{text}: {number(gain, signed=True)} in balanced accuracy"
        f"{' of the reported classes' if partly else ''}, {noun} after round {round_} beside "
        f"the hospital's own before the first hand-off, {where}.",
        hospital=lowest["hospital"],
        model=lowest["model"],
    )


def _judge_hospitals(rows: Sequence[Assessment]) -> Iterator[Verdict]:
    """For each hospital the verdict on the model that it holds, beside its own."""
    alone = {row["hospital"]: row for row in rows if row["kind"] == "standalone"}
    for row in rows:
        if not (row["held"] and row["balanced_accuracy"]):
            continue
        subject, name = f"{row['hospital']} holds a model with", "its own before the first hand-off"
        described = describe(row, subject, alone.get(row["hospital"]), name)
        if (unfound := unfound_classes(row)) and not is_noised([row]):
            text = f"{described['text']} It finds no image of {join_names(unfound)}."
            described |= {"judgement": "bad", "text": text}
        yield described


def add_baseline(
    worth: Sequence[Verdict],
    strategy: str,
    tests: Mapping[str, Sequence[Sequence[Assessment]]],
    epochs: Sequence[Mapping[str, float]],
    members: Collection[str],
) -> list[Verdict]:
    """`Summary.worth` with verdicts on the comparison with a baseline's models.

    They replace the comparison with models that were trained for one visit. The means are over
    hospitals with figures in both runs. Among hospitals that are shown to be worse than in the
    baseline, or among all if none is, the lowest difference is named. The tests of the two runs
    count as independent, which makes an interval too wide rather than too narrow.

    Args:
        worth: `Summary.worth` of the run.
        strategy: The strategy of the baseline.
        tests: Place in words -> assessments of models there, of the run and of the baseline.
        epochs: Hospital -> its epochs of training, in the run and in the baseline.
        members: The hospitals that should report figures in both runs.
    """
    found = []
    for where, of_runs in tests.items():
        ours, theirs = ({row["hospital"] for row in rows} for rows in of_runs)
        both = sorted(ours & theirs)
        kept = [[row for row in rows if row["hospital"] in both] for rows in of_runs]
        if not both or any(isnan(row["balanced_accuracy"]["low"]) for row in (*kept[0], *kept[1])):
            continue
        means, gain = _compare_runs(kept)
        at = {name: _compare_runs(kept, name)[1] for name in both}
        lowest = min(both, key=lambda name: (direction(at[name]) != "worse", at[name]["value"]))
        word = direction(gain)
        judgement = COMPARED.get(word, "open")
        silent = sorted({*members} - {*both})
        if silent or judge_all(kept[0]) != "good" or direction(at[lowest]) == "worse":
            judgement = gravest_judgement(judgement, "note")
        place = where if ours == theirs else f"{where} (of {join_names(both)})"
        is_long = all(epochs[0].get(name) == epochs[1].get(name) for name in both)
        time = " for as long" if is_long else ", some for longer or shorter than here"
        text = (
            f"{place} {word if word in COMPARED else 'not shown to be better'} than {strategy}, "
            f"where each hospital trains its own model alone{time}: balanced accuracy "
            f"{number(means[0])} instead of {number(means[1])}, a difference of "
            f"{number(gain, signed=True)}"
        )
        if len(both) > 1:
            text += f"; the worst is {number(at[lowest], signed=True)} at {lowest}"
        if silent:
            text += f". At least one of the runs has no figures from {join_names(silent)}"
        found.append(verdict(judgement, f"{text}.", hospital=lowest))
    others = [each for each in worth if not (found and OWN in each["text"])]
    after = sum(each["about"] == "run" for each in others)
    return [*others[:after], *found, *others[after:]]


def _compare_runs(
    of_runs: Iterable[Sequence[Assessment]], hospital: str = ""
) -> tuple[list[Figure], Figure]:
    """The mean balanced accuracies of two runs, over all hospitals or at one; their difference."""
    means = [
        mean_over_hospitals(
            [row for row in rows if hospital in ("", row["hospital"])], "balanced_accuracy"
        )
        for rows in of_runs
    ]
    return means, combine([1, -1], means)


def texts(worth: Iterable[Verdict], *about: str) -> list[str]:
    """The sentences about some subjects."""
    return [each["text"] for each in worth if each["about"] in about]
