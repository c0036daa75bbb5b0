"""Undoing: a hospital refuses a useless model, and the lineage goes on from its last good copy.

The last good copy is the newest that a hospital has trained on without refusing it, if

- another hospital made it, or
- others have tested it, and fewer than half of them refused it, or
- no other hospital has trained its lineage.

So no hospital can replace the copy of another with a useless model of its own, and a hospital that
trains a model several times in a row loses one visit. A copy is useless (`USELESS`) if its numbers
are, or if its arrays, its memory or its optimizer's state fit no network. A copy that was changed
on its way, or that is not sealed for its receiver, is not undone (`PARCEL`). A hospital that
refuses a good model undoes one visit; its refusal of the copy before has no effect. A tested model
is undone if half or more of the hospitals refuse it, its maker not counted.
"""

from collections.abc import Collection
from dataclasses import replace

from strategies.engine.events import UNDO, Event
from strategies.engine.run import Run
from strategies.engine.topology import GLOBAL
from strategies.protocol.may_leave import Failure
from strategies.protocol.names import join_names

SERVER = "server"  # the maker of an average


def undo(run: Run, name: str, parcel: str, by: Collection[str], why: str) -> bool:
    """Let the lineage of a model go on from its last good copy.

    The hospitals `by` refused the copy `parcel` of the shelf; `why` is a sentence with a full stop.

    Returns:
        Whether there is another copy to go on from.
    """
    state = run.state
    model = state.models[name]
    if model.parcel == parcel != model.good and model.good:
        good = state.shelf.label(model.good)
        state.models[name] = replace(model, parcel=model.good, round=good.round)
        copy = f"its copy of round {good.round}" if good.round else "its first copy"
        run.record(failure(run, parcel, by, f"{why} The lineage goes on from {copy}."))
    return state.models[name].parcel != parcel


def failure(run: Run, parcel: str, by: Collection[str], why: str) -> Event:
    """The undoing of a copy: the failure of the hospital that made it, which others refuse."""
    label, maker = run.state.shelf.label(parcel), maker_of(run, parcel)
    advice = "Lower train.learning-rate."  # an average has no hospital to ask
    if maker != SERVER:
        advice = (
            f"Lower train.learning-rate at '{maker}', or ask its operator: its own software has "
            "not refused the model."
        )
    return Event(
        UNDO,
        label.round,
        label.hop,
        maker,
        label.lineage,
        Failure.USELESS.outcome,
        f"{join_names(sorted(by))} received the model that '{maker}' made in round {label.round} "
        f"and refused it: {why} {advice}",
    )


def unusable_buffer(visit: Event, maker: str) -> Event:
    """The failure of a hospital whose buffer a visit could not use; others still get the buffer."""
    return Event(
        "query.prepare",
        visit.round,
        visit.hop,
        maker,
        outcome=Failure.PARCEL.outcome,
        reason=f"'{visit.hospital}' could not use the buffer of '{maker}' in round {visit.round}, "
        f"and trained without it. The log of '{visit.hospital}' has the reason. If other hospitals "
        f"cannot use it either, ask the operator of '{maker}'.",
    )


def maker_of(run: Run, parcel: str) -> str:
    """The maker of a copy: the hospital that trained it last or began the lineage, or `SERVER`."""
    label = run.state.shelf.label(parcel)
    owner = SERVER if label.lineage == GLOBAL else label.lineage
    return label.visited[-1] if label.visited else owner


def vouches(run: Run, hospital: str, parcel: str) -> bool:
    """Whether a copy is good, after a hospital trained on it without refusing it."""
    label, maker = run.state.shelf.label(parcel), maker_of(run, parcel)
    if hospital != maker or {label.lineage, *label.visited} == {maker}:
        return True
    others = _judgements_of_others(run, parcel)
    return 2 * sum(others.values()) < len(others)


def undo_tested(run: Run) -> list[str]:
    """Undo the tested models that are useless; their names.

    The judgements of the present copies are kept, for `vouches`.
    """
    state, undone = run.state, []
    for name, model in [*state.models.items()]:
        found = state.judgements.get(model.parcel, {})
        judges = _judgements_of_others(run, model.parcel) or found
        refused = [hospital for hospital, useless in judges.items() if useless]
        enough = refused and 2 * len(refused) >= len(judges)
        if enough and undo(run, name, model.parcel, refused, "It is of no use when it is tested."):
            undone.append(name)
    present = {model.parcel for model in state.models.values()}
    state.judgements = {name: each for name, each in state.judgements.items() if name in present}
    return undone


def _judgements_of_others(run: Run, parcel: str) -> dict[str, bool]:
    """Whether each hospital found a tested copy useless; its maker is left out."""
    maker, found = maker_of(run, parcel), run.state.judgements.get(parcel, {})
    return {hospital: useless for hospital, useless in found.items() if hospital != maker}
