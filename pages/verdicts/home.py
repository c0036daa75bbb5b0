"""What may be said of the models that a hospital has at home; its own eyes alone see it."""

from collections.abc import Collection, Iterator, Sequence

from pages.figures import Assessment, is_noised
from pages.verdicts.model import (
    Verdict,
    beside_largest_class,
    describe,
    few_images,
    gravest,
    missed_classes,
    objection,
    pair,
    unfound_classes,
    verdict,
    worst,
)
from strategies.protocol.names import join_names

AS_LONG = "trained alone as long"  # instead of its name: the hospital's own model


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
    first = _handed_on(site, handed, own)
    if at_chance or objection(best):
        first["judgement"] = gravest(first["judgement"], "note")
    yield first
    name = f"the hospital's own {own_name(own)}"
    of_best = describe(best, f"The best here is {model_name(best)}, with", own, name)
    yield of_best | {"judgement": gravest(of_best["judgement"], "note")}  # what is chosen flatters
    yield from beside_largest_class([best])
    if at_chance:
        count = f"{len(at_chance)} of {len(others)} other models"
        text = f"Not shown to be better than chance here: {count}; worst {pair(worst(at_chance))}."
        yield verdict("bad", text)
    yield from few_images(best | best["balanced_accuracy"], [best])
    yield from missed_classes([best], _upper(model_name(best)), learnt=True)
    for row in others:
        if unfound := unfound_classes(row):
            yield verdict(
                "bad", f"{_upper(model_name(row))} finds no image of {join_names(unfound)}."
            )


def _handed_on(site: str, handed: Sequence[Assessment], own: Assessment | None) -> Verdict:
    """Whether models that others trained are better here than the hospital's own was."""
    if not handed:
        return verdict(
            "note", f"Every model here was trained at {site} alone: nothing was handed on."
        )
    whose = f"{site}'s own"
    count = len(handed)
    found = {
        word: [model_name(row) for row in handed if row["compared"] == word]
        for word in ("better", "worse", "not shown")
    }
    those = "the one model that was" if count == 1 else f"the {count} models that were"
    better, worse, unclear = found.values()
    if not any(found.values()):
        text = (
            f"Nothing is known of {whose} model {own_name(own)}, so that nobody can say whether "
            f"{those} handed on {'is' if count == 1 else 'are'} better here."
        )
        return verdict("open", text)
    where = f"here, on {whose} test images, than {whose} model {own_name(own)}"
    for names, word, judgement in ((better, "better", "good"), (worse, "worse", "bad")):
        if len(names) == count:
            verb = "is" if count == 1 else "are all"
            return verdict(judgement, f"{_upper(those)} handed on {verb} {word} {where}.")
    if len(unclear) == count:
        none = f"{_upper(those)} handed on is not"
        none = none if count == 1 else f"None of {those} handed on is"
        return verdict("open", f"{none} shown to be better or worse {where}.")
    parts = [
        f"{len(names)} {'is' if len(names) == 1 else 'are'} {word} ({join_names(names)})"
        for word, names in zip(
            ("better", "worse", "not shown to be either"), found.values(), strict=True
        )
        if names
    ]
    judgement = "bad" if worse else "good" if better else "open"
    return verdict(judgement, f"Of {those} handed on, {', '.join(parts)} {where}.")


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
