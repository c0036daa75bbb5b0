"""What the models of a past run are worth at the hospital, and what may be said of that.

The figures that the hospital told have noise. Its own images are at hand, so it can have exact
ones: those that it would tell without a policy, as in a simulation (client_app.release.details).
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from client_app.afterwards.again import hospital_again
from client_app.afterwards.home import load_file
from client_app.afterwards.past_run import Figures, PastRun
from client_app.authority.policy import Policy
from client_app.release.details import Details, Said
from client_app.release.disclosure import Disclosure
from client_app.request import Clock, Inquiry
from client_app.run import run_folder
from learning.errors import DivergedError
from pages.figures import RARELY, Row, is_noised, number, row_of, size
from pages.verdicts import (
    Sentence,
    chance,
    few_in_all,
    few_of_a_class,
    graver,
    objection,
    pair,
    worst,
)
from strategies.protocol.names import join_names
from strategies.protocol.order import Order

AS_LONG = "trained alone as long"  # instead of its name: the hospital's own model


def told(past: PastRun) -> list[Row]:
    """What the hospital told of models, of their mean, and of its own before the first hand-off."""
    return [
        _row(about, past.site, figures, past.classes)
        for about, figures in past.released_figures().items()
        if "balanced-accuracy" in figures
    ]


def tested(past: PastRun, data_dir: Path, policy: Policy | None) -> list[Row]:
    """The same, exact: each model at home is tested again on the hospital's own test images.

    Args:
        past: The run.
        data_dir: The hospital's images, or its manifest, as in the run.
        policy: That of the run; None in a simulation.

    Raises:
        DataError: The images cannot be used, or are not those of the run.
        ModelError: A model cannot be loaded.
    """
    hospital = hospital_again(past, data_dir, policy)
    classes, device, store = hospital.data.classes, hospital.device, hospital.store
    order = Order(0, 0, past.site, list(classes), "plain", past.run)
    run = run_folder(store, past.run)
    disclosure = Disclosure(Inquiry("", order, Clock(math.inf), hospital, run, None))
    details = Details(disclosure)
    rows = []
    longer = past.alone.exists()
    said_alone = details.ask("", load_file(past.alone)[0].to(device)) if longer else None
    if alone := details.alone_figures(said_alone):
        rows.append(_row("standalone", past.site, alone, classes))
        rows[-1]["model"] = AS_LONG if longer else past.site
    said: list[Said] = []
    for lineage, file in past.files.items():
        said.append(details.ask("", load_file(file)[0].to(device)))
        rows += _judged(details, said[-1], lineage, classes)
    if len(said) > 1:
        mean, seen = (
            torch.stack([getattr(each, part) for each in said]).mean(0) for part in ("test", "seen")
        )
        rows += _judged(details, Said("", mean, seen), "ensemble", classes)
    return rows


def best_of(rows: Sequence[Row]) -> Row | None:
    """The model, or their mean, with the highest balanced accuracy."""
    measured = [row for row in rows if row["kind"] != "standalone" and row["balanced_accuracy"]]
    return max(measured, key=lambda row: float(row["balanced_accuracy"]["value"]), default=None)


def own_of(rows: Sequence[Row]) -> Row | None:
    """The hospital's own model, with which others are compared."""
    return next((row for row in rows if row["kind"] == "standalone"), None)


def which(own: Row | None) -> str:
    """Which model of the hospital's own it is, in a sentence."""
    return AS_LONG if own and own["model"] == AS_LONG else "before the first hand-off"


def name_of(row: Row) -> str:
    """A row's model in a sentence."""
    return "the mean of all models" if row["kind"] == "ensemble" else f"'{row['model']}'"


def sentences(past: PastRun, rows: Sequence[Row]) -> Iterator[Sentence]:
    """What may be said; the first sentence is whether what was handed on is better here."""
    alone = own_of(rows)
    best = best_of(rows)
    if best is None:
        yield "open", f"No model of this run has figures at {past.site}: see below for the reason."
        return
    if is_noised(rows):
        yield (
            "open",
            f"{past.site} told these figures with noise, and without classes of few patients. "
            "Exact figures say what is better here: give the hospital's images (--data-dir).",
        )
        return
    others = [row for row in rows if row["kind"] == "model" and row is not best]
    at_chance = [row for row in others if row["balanced_accuracy"] and objection(row)]
    judgement, text = _handed_on(past, rows)
    yield graver(judgement, "note") if at_chance or objection(best) else judgement, text
    yield from _best(best, alone)
    if at_chance:
        count = f"{len(at_chance)} of {len(others)} other models"
        least = f"worst {pair(worst(at_chance))}"
        yield "bad", f"Not shown to be better than chance here: {count}; {least}."
    yield from few_in_all(best | best["balanced_accuracy"])
    yield from few_of_a_class([best])
    yield from _classes(best)
    for row in others:
        if lost := _lost(row):
            yield "bad", f"{_upper(name_of(row))} finds no image of {join_names(lost)}."


def _handed_on(past: PastRun, rows: Sequence[Row]) -> Sentence:
    """Whether models that others trained are better here than the hospital's own was."""
    handed = [row for row in rows if row["kind"] == "model" and _was_elsewhere(past, row["model"])]
    own = f"{past.site}'s own model {which(own_of(rows))}"
    if not handed:
        return "note", f"Every model here was trained at {past.site} alone: nothing was handed on."
    count = len(handed)
    found = {
        word: [name_of(row) for row in handed if row["compared"] == word]
        for word in ("better", "worse", "not shown")
    }
    those = "the one model that was" if count == 1 else f"the {count} models that were"
    if not any(found.values()):
        why = f"Nothing is known of {own}, so that nobody can say whether {those} handed on"
        return "open", f"{why} {'is' if count == 1 else 'are'} better here."
    better, worse, open_ = (found[word] for word in found)
    where = f"here, on {past.site}'s own test images, than {own}"
    for names, word, judgement in ((better, "better", "good"), (worse, "worse", "bad")):
        if len(names) == count:
            verb = "is" if count == 1 else "are all"
            return judgement, f"{_upper(those)} handed on {verb} {word} {where}."
    if len(open_) == count:
        none = (
            f"{_upper(those)} handed on is not" if count == 1 else f"None of {those} handed on is"
        )
        return "open", f"{none} shown to be better or worse {where}."
    parts = [
        f"{len(names)} {'is' if len(names) == 1 else 'are'} {word} ({join_names(names)})"
        for names, word in ((better, "better"), (worse, "worse"), (open_, "not shown to be either"))
        if names
    ]
    said = f"Of {those} handed on, {', '.join(parts)} {where}."
    return ("good" if better and not worse else "bad" if worse else "open"), said


def _best(best: Row, alone: Row | None) -> Iterator[Sentence]:
    figure, same, against = best["balanced_accuracy"], chance(best), objection(best)
    shown = f"balanced accuracy {number(figure)} on {size(best)}"
    text = f"The best here is {name_of(best)}: {shown}"
    if alone and alone["balanced_accuracy"]:
        text += f"; the hospital's own {which(alone)} had {number(alone['balanced_accuracy'])}"
    if best["gain"]:
        text += f", the difference is {number(best['gain'], signed=True)}"
    beside = f" Always the same answer gives {same:.3f}, and 1 is perfect." if same > 0 else ""
    yield "bad" if against else "note", f"{text}.{beside} {against}".rstrip()
    accuracy, largest = best["accuracy"], best["largest_class"]
    if not accuracy or not largest:
        return
    least = accuracy["value"] if accuracy["low"] is None else accuracy["low"]
    if least <= largest["share"]:
        always = f"always answering '{largest['name']}' ({largest['share']:.3f})"
        yield "bad", f"Its accuracy {number(accuracy)} is not shown to be better than {always}."


def _classes(best: Row) -> Iterator[Sentence]:
    """The classes that the best model does not find, or finds rarely."""
    for each in best["classes"]:
        if not each["recall"] or each["recall"]["high"] is None:
            continue
        images, high = size(each), each["recall"]["high"]
        if each["recall"]["value"] == 0:
            most = f"at most {high:.0%} of such images, by the 95 % interval"
            yield "bad", f"It finds no image of '{each['name']}': 0 of {images} ({most})."
        elif high < RARELY:
            share = number(each["recall"])
            yield "bad", f"It misses most of '{each['name']}': it finds {share} of {images}."


def _judged(details: Details, said: Said, about: str, classes: Sequence[str]) -> list[Row]:
    """What is said of a model; nothing if its outputs are no numbers."""
    try:
        figures = details.disclosure.test_figures(said.model, said.test)
    except DivergedError:
        return []
    site = details.disclosure.request.hospital.name
    return [_row(about, site, details.figures(said, figures), classes)]


def _row(about: str, site: str, figures: Figures, classes: Sequence[str]) -> Row:
    kind = about if about in ("ensemble", "standalone") else "model"
    model = {"ensemble": "", "standalone": site}.get(about, about)
    known = {name: float(value) for name, value in figures.items()}
    return row_of(kind, model, site, known, classes)


def _was_elsewhere(past: PastRun, lineage: str) -> bool:
    """Whether another hospital, or all of them together, had a part in a model."""
    if manifest := past.models.get(lineage):
        return {*manifest.visited} != {past.site}
    return lineage != past.site


def _lost(row: Row) -> list[str]:
    found = [each for each in row["classes"] if each["recall"]]
    return [f"'{each['name']}'" for each in found if each["recall"]["value"] == 0]


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
