"""Verdicts on the models that a hospital has at home; only the hospital sees them."""

from collections.abc import Collection, Iterator, Sequence

from learning.intervals import Figure, number
from pages.figures import ROUNDING, Assessment, direction, is_noised
from pages.page import capital
from pages.verdicts.model import (
    Verdict,
    compare_largest_class,
    describe,
    few_images,
    gravest_judgement,
    is_useful,
    missed_classes,
    objection,
    pair,
    unfound_classes,
    verdict,
    worst_pair,
)
from strategies.protocol.names import join_names

# Names of the hospital's own model, where it is no model before the first hand-off
ALL_ROUNDS = "trained alone for all rounds"
OWN_SUMS = "from its own sums alone"
FINISHED = (ALL_ROUNDS, OWN_SUMS)
ABOUT_GAIN = (
    "Differences in points of percent, with 95 % intervals over splits of the patients. Alone: a "
    "classifier of one department's images. Taking part: a classifier of the sums of all "
    "departments; for its own patients a department may count its own sums more. As by the default "
    "policy (sums.min-class-patients), a department's classes of few training patients add nothing "
    "to the sums of all. Nothing left this machine."
)
SAME = "no interval: the same on every split"
BESIDE = {"better": "better", "worse": "worse", "not shown": "not shown to be better or worse"}


def best_model(rows: Sequence[Assessment]) -> Assessment | None:
    """The model, or the ensemble, with the highest balanced accuracy."""
    measured = [row for row in rows if row["kind"] != "standalone" and row["balanced_accuracy"]]
    return max(measured, key=lambda row: float(row["balanced_accuracy"]["value"]), default=None)


def own_model(rows: Sequence[Assessment]) -> Assessment | None:
    """The hospital's own model, with which the others are compared."""
    return next((row for row in rows if row["kind"] == "standalone"), None)


def own_name(own: Assessment | None) -> str:
    """The words for the hospital's own model in a sentence."""
    return own["model"] if own and own["model"] in FINISHED else "before the first hand-off"


def model_name(row: Assessment) -> str:
    """The words for an assessment's model in a sentence."""
    return "the mean of the models at home" if row["kind"] == "ensemble" else f"'{row['model']}'"


def is_own_better(best: Assessment, own: Assessment | None) -> bool:
    """Whether the hospital's own model is finished, and is shown to be better."""
    return best["compared"] == "worse" and own_name(own) in FINISHED


def advise(site: str, best: Assessment, rows: Sequence[Assessment]) -> str:
    """The advice on the model to use, with the reason and the objections."""
    own, name, figure = own_model(rows), model_name(best), number(best["balanced_accuracy"])
    if is_own_better(best, own):
        text = f"{site}'s own, {own_name(own)}: the best of the others, {name} (balanced accuracy "
        text += f"{figure}), is worse here."
    elif not is_useful(best):
        return (
            f"None is advised: the best, {name} (balanced accuracy {figure}), is worse than "
            f"{site}'s own {own_name(own)}, or not shown to know more than a constant answer. Use "
            "the commands below only to examine it."
        )
    else:
        text = f"{capital(name)}: it has the highest balanced accuracy here, {figure}"
        alone = own and own["balanced_accuracy"]
        if alone and alone["value"] > best["balanced_accuracy"]["value"]:
            text += f", but for {site}'s own {own_name(own)} with {number(alone)}; neither is "
            text += "shown to be better"
        text += "."
        if is_noised(rows):
            text += " These figures have noise, so another model may be better (--data-dir tells)."
        if sum(row["kind"] != "standalone" for row in rows) > 1:
            text += (
                " It was chosen by its own test images, so it is probably a little worse on new "
                "images. If intervals overlap, another model may be as good."
            )
    return f"{text} No model is a medical device: nobody has approved one for diagnosis."


def judge_home(
    site: str, rows: Sequence[Assessment], own_lineages: Collection[str]
) -> Iterator[Verdict]:
    """The verdicts; the first compares the models that were handed on with the hospital's own.

    `own_lineages` are the models that no other hospital trained.
    """
    best, own = best_model(rows), own_model(rows)
    if best is None:
        text = f"No model of this run has a balanced accuracy at {site}: see below for the reason."
        yield verdict("open", text)
        return
    if is_noised(rows):
        yield verdict(
            "open",
            f"{site} reported these figures with noise, and without classes of few patients. For a "
            "comparison by exact figures, give the hospital's images (--data-dir).",
        )
        return
    models = [row for row in rows if row["kind"] == "model"]
    others = [row for row in models if row is not best]
    at_chance = [row for row in others if row["balanced_accuracy"] and objection(row)]
    handed = [row for row in models if row["model"] not in own_lineages]
    first = _judge_handed_on(site, handed, own)
    if at_chance or objection(best):
        first["judgement"] = gravest_judgement(first["judgement"], "note")
    yield first
    name = f"the hospital's own {own_name(own)}"
    of_best = describe(best, f"The best here after the run is {model_name(best)}, with", own, name)
    of_best["judgement"] = gravest_judgement(of_best["judgement"], "note")  # a choice flatters
    yield of_best
    yield from compare_largest_class([best])
    if at_chance:
        count, least = f"{len(at_chance)} of {len(others)} other models", worst_pair(at_chance)
        text = f"Not shown to be better than chance here: {count}; the worst is {pair(least)}."
        yield verdict("bad", text)
    yield from few_images(best | best["balanced_accuracy"], [best])
    yield from missed_classes([best], capital(model_name(best)), learnt=True)
    for row in others:
        if unfound := unfound_classes(row):
            yield verdict(
                "bad", f"{capital(model_name(row))} finds no image of {join_names(unfound)}."
            )


def _judge_handed_on(site: str, handed: Sequence[Assessment], own: Assessment | None) -> Verdict:
    """The comparison of the models that were handed on with the hospital's own."""
    if not handed:
        text = f"Every model here was trained at {site} alone: no model was handed on."
        return verdict("note", text)
    one, own_one = len(handed) == 1, f"{site}'s own model {own_name(own)}"
    those = f"the {'one model that was' if one else f'{len(handed)} models that were'} handed on"
    where = f"here, on {site}'s own test images, than {own_one}"
    named = {
        words: names
        for word, words in BESIDE.items()
        if (names := [model_name(row) for row in handed if row["compared"] == word])
    }
    if not named:
        text = f"There are no figures of {own_one}, with which {those} could be compared."
        return verdict("open", text)
    judgement = "bad" if "worse" in named else "open"
    if judgement == "open" and (better := named.get("better")):
        # Of 20 models one may be so by chance.
        judgement = "good" if len(better) == len(handed) else "note"
    for words, names in named.items():
        if len(names) == len(handed):
            verb = "is" if one else "are" if judgement == "open" else "are all"
            return verdict(judgement, f"{capital(those)} {verb} {words} {where}.")
    counts = [
        f"{len(names)} {'is' if len(names) == 1 else 'are'} {words} ({join_names(names)})"
        for words, names in named.items()
    ]
    return verdict(judgement, f"Of {those}, {', '.join(counts)} {where}.")


def judge_gain(home: Figure, elsewhere: Figure) -> str:
    """The change of balanced accuracy by taking part, for own patients and for those of others."""
    own, others = map(_change, (home, elsewhere))
    return (
        f"If a department takes part, on average its balanced accuracy for its own patients {own}. "
        f"For patients of other departments it {others}."
    )


def _change(difference: Figure) -> str:
    verbs = {"better": "rises", "worse": "falls"}
    unknown = "is not shown to change"
    value, interval = points(difference)
    if interval == SAME:
        return f"{unknown} ({value} points; {SAME})"
    verb = verbs.get(direction(difference), unknown)
    return f"{verb} ({value} points; 95 % interval {interval})"


def points(difference: Figure) -> tuple[str, str]:
    """A difference in points of percent, and its interval; an interval of no width is none."""
    value, low, high = (f"{100 * difference[each]:+.1f}" for each in ("value", "low", "high"))
    width = difference["high"] - difference["low"]
    return value, SAME if width < ROUNDING else f"{low} to {high}"
