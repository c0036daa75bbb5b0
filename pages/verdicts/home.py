"""What may be said of the models that a hospital has at home; its own eyes alone see it."""

from collections.abc import Collection, Iterator, Sequence

from pages.figures import Assessment, is_noised, number
from pages.page import capital
from pages.verdicts.model import (
    Verdict,
    compare_largest_class,
    describe,
    few_images,
    gravest,
    is_useful,
    missed_classes,
    objection,
    pair,
    unfound_classes,
    verdict,
    worst,
)
from strategies.protocol.names import join_names

AS_LONG = "trained alone as long"  # instead of its name: the hospital's own model
BESIDE = {"better": "better", "worse": "worse", "not shown": "not shown to be better or worse"}


def best_model(rows: Sequence[Assessment]) -> Assessment | None:
    """The model, or their mean, with the highest balanced accuracy."""
    measured = [row for row in rows if row["kind"] != "standalone" and row["balanced_accuracy"]]
    return max(measured, key=lambda row: float(row["balanced_accuracy"]["value"]), default=None)


def own_model(rows: Sequence[Assessment]) -> Assessment | None:
    """The hospital's own model, with which others are compared."""
    return next((row for row in rows if row["kind"] == "standalone"), None)


def own_name(own: Assessment | None) -> str:
    """Which model of the hospital's own it is, in a sentence."""
    return AS_LONG if own and own["model"] == AS_LONG else "before the first hand-off"


def model_name(row: Assessment) -> str:
    """An assessment's model in a sentence."""
    return "the mean of all models" if row["kind"] == "ensemble" else f"'{row['model']}'"


def is_own_better(best: Assessment, own: Assessment | None) -> bool:
    """Whether the model that the hospital trained alone as long is shown to be better."""
    return best["compared"] == "worse" and own_name(own) == AS_LONG


def advise(site: str, best: Assessment, rows: Sequence[Assessment]) -> str:
    """Which model to use, and why, with what speaks against it."""
    own, name, figure = own_model(rows), model_name(best), number(best["balanced_accuracy"])
    if is_own_better(best, own):
        text = f"{site}'s own, {AS_LONG}: the best of the others, {name} (balanced accuracy "
        text += f"{figure}), is worse here."
    elif not is_useful(best):
        return (
            f"None is advised: the best, {name} (balanced accuracy {figure}), is worse than "
            f"{site}'s own {own_name(own)}, or not shown to know more than a constant answer. The "
            "commands below are for looking into it."
        )
    else:
        text = f"{capital(name)}: it has the highest balanced accuracy here, {figure}."
        if sum(row["kind"] != "standalone" for row in rows) > 1:
            text += (
                " It was chosen by the images that it was tested on, so that it is probably a "
                "little worse on new ones; intervals that overlap say that another one may be as "
                "good."
            )
    return f"{text} No model is a medical device: nobody has approved one for diagnosis."


def judge_home(
    site: str, rows: Sequence[Assessment], own_lineages: Collection[str]
) -> Iterator[Verdict]:
    """What may be said; the first sentence is whether what was handed on is better here.

    Args:
        site: The hospital.
        rows: Its assessments.
        own_lineages: The models in which no other hospital had a part.
    """
    best, own = best_model(rows), own_model(rows)
    if best is None:
        text = f"No model of this run has figures at {site}: see below for the reason."
        yield verdict("open", text)
        return
    if is_noised(rows):
        yield verdict(
            "open",
            f"{site} told these figures with noise, and without classes of few patients. Exact "
            "figures say what is better here: give the hospital's images (--data-dir).",
        )
        return
    models = [row for row in rows if row["kind"] == "model"]
    others = [row for row in models if row is not best]
    at_chance = [row for row in others if row["balanced_accuracy"] and objection(row)]
    handed = [row for row in models if row["model"] not in own_lineages]
    first = _judge_handed_on(site, handed, own)
    if at_chance or objection(best):
        first["judgement"] = gravest(first["judgement"], "note")
    yield first
    name = f"the hospital's own {own_name(own)}"
    of_best = describe(best, f"The best here is {model_name(best)}, with", own, name)
    yield of_best | {"judgement": gravest(of_best["judgement"], "note")}  # what is chosen flatters
    yield from compare_largest_class([best])
    if at_chance:
        count = f"{len(at_chance)} of {len(others)} other models"
        text = f"Not shown to be better than chance here: {count}; worst {pair(worst(at_chance))}."
        yield verdict("bad", text)
    yield from few_images(best | best["balanced_accuracy"], [best])
    yield from missed_classes([best], capital(model_name(best)), learnt=True)
    for row in others:
        if unfound := unfound_classes(row):
            yield verdict(
                "bad", f"{capital(model_name(row))} finds no image of {join_names(unfound)}."
            )


def _judge_handed_on(site: str, handed: Sequence[Assessment], own: Assessment | None) -> Verdict:
    """Whether models that others trained are better here than the hospital's own was."""
    if not handed:
        text = f"Every model here was trained at {site} alone: nothing was handed on."
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
        text = f"Nothing is known of {own_one}, so that nobody can say whether {those}"
        return verdict("open", f"{text} {'is' if one else 'are'} better here.")
    judgement = "bad" if "worse" in named else "good" if "better" in named else "open"
    for words, names in named.items():
        if len(names) == len(handed):
            verb = "is" if one else "are" if judgement == "open" else "are all"
            return verdict(judgement, f"{capital(those)} {verb} {words} {where}.")
    said = [
        f"{len(names)} {'is' if len(names) == 1 else 'are'} {words} ({join_names(names)})"
        for words, names in named.items()
    ]
    return verdict(judgement, f"Of {those}, {', '.join(said)} {where}.")
