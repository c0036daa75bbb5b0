"""Enrolment: each hospital is asked for its card, and then to prepare.

It takes place at the beginning of every round, for new and returning hospitals.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO
from typing import TypeVar

from flwr.app import ConfigRecord, RecordDict
from flwr.common import log

from strategies.engine.admission import admit, admit_first
from strategies.engine.courier import Delivery, Letter
from strategies.engine.events import FACTS, Event
from strategies.engine.presence import check_planned
from strategies.engine.run import Run
from strategies.engine.state import AWAY, Model
from strategies.engine.strategy import RunError
from strategies.protocol.classes import group_spellings, outputs, quote, sort_classes
from strategies.protocol.code import code_hash
from strategies.protocol.console import duration
from strategies.protocol.may_leave import Failure
from strategies.protocol.names import join_names
from strategies.protocol.order import Order
from strategies.protocol.records import find_record
from strategies.protocol.settings import SettingsError
from strategies.protocol.shapes import from_value
from strategies.protocol.text import amount

PAUSE = 3.0  # seconds between two searches for hospitals that can be reached
ATTEMPTS = 3  # to begin a run with enough hospitals

Failed = list[Delivery[Order]]
ValueT = TypeVar("ValueT")


def enrol_first(run: Run, later: Collection[str] = ()) -> None:
    """Enrol the first hospitals, as `enrol` does, and check that enough are ready.

    If too few are, those that were cut off meanwhile are asked again: a GAN takes hours.

    Raises:
        RunError: As `enrol`; or too few hospitals are ready, or none has the synthetic images that
            must be shared.
        SettingsError: A simulated hospital cannot use the settings, or their data.
    """
    for _ in range(ATTEMPTS):
        failed = enrol(run, later)
        if _are_enough(run) or all(each.failure is not Failure.GONE for each in failed):
            break
    reasons = " ".join(dict.fromkeys(delivery.reason for delivery in failed))
    for delivery in failed:
        if delivery.failure in (Failure.SETTINGS, Failure.DATA) and run.courier.simulates:
            raise SettingsError(delivery.reason)
    if not _are_enough(run):
        ready, wanted = run.state.ready, run.settings.min_hospitals
        raise RunError(f"Hospitals that are ready: {ready} of {wanted} (min-hospitals). {reasons}")
    if run.strategy.buffer_size and not run.state.buffers:
        raise RunError(f"No hospital has synthetic images that may leave it. {reasons}")


def enrol(run: Run, later: Collection[str] = ()) -> Failed:
    """Enrol the hospitals that are not known yet, and take in their models.

    After a resume in the middle of a round, only hospitals that took part before are enrolled. The
    hospitals of `later` take no part yet.

    Returns:
        The failed deliveries of hospitals that are not ready; the next round asks them again.

    Raises:
        RunError: There are too few hospitals; or as `take_cards`.
    """
    answers = run.courier.exchange(introductions(run, _wait_for_hospitals(run)))
    there = [each for each in answers if _card(each).hospital not in later]
    coming, failed = take_cards(run, there)
    newcomers: dict[str, Model] = {}
    while coming:
        again: dict[str, int] = {}
        for delivery in run.courier.exchange(preparations(run, coming)):
            newcomers |= take_first(run, delivery, failed)
            again |= retry_without_buffer(run, delivery)
        coming = again
    run.strategy.start(run.state, dict(sorted(newcomers.items())))
    return failed


def strangers(run: Run, reachable: Iterable[int]) -> list[int]:
    """The nodes that are neither enrolled, nor excluded, nor at work on a message."""
    known = {*run.state.nodes.values(), *_outsiders(run).values()}
    return sorted({*reachable} - known - run.courier.at_work)


def introductions(run: Run, nodes: Sequence[int]) -> Iterator[Letter[Order]]:
    """Yield the messages that ask the hospitals at some nodes for their cards."""
    registered = _registered_names(run)
    for node in nodes:
        # The hospital may have lost its list of members.
        members, name = run.members, registered.get(node, "")
        order = run.order(name, task=0, code=code_hash(), members=members)
        yield run.letter("query.enrol", node, order, order)


def take_cards(run: Run, answers: Iterable[Delivery[Order]]) -> tuple[dict[str, int], Failed]:
    """The hospitals that must prepare, with their nodes, and the failed deliveries of others.

    Raises:
        RunError: There are fewer than two classes, or two shapes of images are equally frequent.
        SettingsError: The classes cannot be divided into tasks as the settings ask.
    """
    state = run.state
    cards, failed = _judge(run, list(answers))
    if cards and not state.classes:
        named = {hospital: card.classes for hospital, (_, card) in cards.items()}
        classes = run.settings.class_names or common_classes(named)
        state.outputs, state.classes = outputs(classes, run.settings), classes
        log(INFO, "The classes are %s", join_names(state.outputs))
    coming = {}
    for hospital, (node, _) in cards.items():
        if hospital in _outsiders(run):
            state.withheld[hospital] = node
        elif not (state.hop and run.strategy.waits) or hospital in state.nodes:
            coming[hospital] = node
    if coming:
        log(INFO, "Models are prepared at %s", amount(len(coming), "hospital"))
    return coming, failed


def _are_enough(run: Run) -> bool:
    excused = _count_excused(run, {*run.state.nodes.values()} - {AWAY})
    return run.state.ready + excused >= run.settings.min_hospitals


def _wait_for_hospitals(run: Run) -> list[int]:
    """Wait until enough hospitals can be reached; the nodes of those that are not known yet."""
    wanted, start = run.settings.min_hospitals, time.monotonic()
    reported = -1
    while len(reachable := run.courier.find_reachable()) + _count_excused(run, reachable) < wanted:
        if run.courier.simulates:
            raise RunError(
                f"Simulated hospitals: {len(reachable)} of {wanted} (min-hospitals). Simulate more "
                "(num-supernodes), or lower min-hospitals."
            )
        waited, names = time.monotonic() - start, run.courier.node_names()
        if waited > run.settings.hop_timeout:
            connected = ", ".join(sorted(names.values())) or "none"
            raise RunError(
                f"Hospitals that have answered within {duration(waited)} (hop-timeout): "
                f"{len(reachable)} of {wanted} (min-hospitals); connected: {connected}. Start "
                "more, or lower min-hospitals."
            )
        if len(reachable) != reported:
            reported = len(reachable)
            here = join_names(sorted(names.get(node, f"node {node}") for node in reachable))
            left = duration(run.settings.hop_timeout - waited)
            log(
                INFO,
                f"Hospitals that can be reached: {reported} of {wanted} (min-hospitals), "
                f"{here or 'none'}. The run waits for the others, {left} at the most (hop-timeout)",
            )
        time.sleep(PAUSE)
    return strangers(run, reachable)


def _count_excused(run: Run, there: Collection[int]) -> int:
    """The number of hospitals that are not at these nodes, and by plan not active now."""
    active = run.strategy.present(run.state)
    nodes = run.state.nodes.items()
    return sum(hospital not in active and node not in there for hospital, node in nodes)


@dataclass(frozen=True)
class _Card:
    """The fields of a hospital's card that decide whether it takes part; empty if it lacks them."""

    hospital: str
    classes: list[str]
    shape: list[int]
    frozen: str
    identity: str


def _card(answer: Delivery[Order]) -> _Card:
    """The card in an answer, whose values the courier has checked."""
    record = find_record(answer.content, "card", ConfigRecord) or ConfigRecord()
    card: _Card = from_value({**record}, _Card, any_version=True)
    return card


def _registered_names(run: Run) -> dict[int, str]:
    return {node.node_id: node.name for node in run.courier.grid.get_nodes()}


def _judge(
    run: Run, answers: Sequence[Delivery[Order]]
) -> tuple[dict[str, tuple[int, _Card]], Failed]:
    """The node and card of each hospital that may take part, and others' failed deliveries."""
    state, registered = run.state, _registered_names(run)
    came = {each.letter.node: _card(each) for each in answers if each.failure is None}
    impostors = _impostors(run, came, registered)
    honest = {node: card for node, card in came.items() if node not in impostors}
    if not state.classes:  # later a hospital changes nothing for the others
        shapes = {card.hospital: card.shape for card in honest.values() if card.shape}
        hashes = {card.hospital: card.frozen for card in honest.values()}
        state.shape = _most_frequent(shapes, _shapes_differ) or []
        state.frozen = _most_frequent(hashes, _weights_differ) or ""
    reasons = impostors | {node: _misfit(run, card) for node, card in honest.items()}
    cards: dict[str, tuple[int, _Card]] = {}
    failed = []
    for delivery in answers:
        node = delivery.letter.node
        # A hospital that failed, or has a wrong card, may be registered under a name.
        hospital = honest[node].hospital if node in honest else registered.get(node)
        hospital = hospital or f"node {node}"
        if reason := reasons.get(node):
            delivery = replace(delivery, failure=Failure.SETTINGS, reason=reason)
        run.tell(Event.from_delivery(delivery, hospital))
        if delivery.failure is not None:
            failed.append(delivery)
            if delivery.failure is Failure.POLICY:
                _forget_buffer(run, hospital)
        else:
            cards[hospital] = node, came[node]
            state.keys[hospital] = came[node].identity
    return dict(sorted(cards.items())), failed


def _misfit(run: Run, card: _Card) -> str:
    """The reason why a hospital does not fit into the run; empty if it does."""
    state = run.state
    if card.shape and state.shape and card.shape != state.shape:
        return _shapes_differ({card.hospital: card.shape, "the other hospitals": state.shape})
    if card.frozen != state.frozen:
        return _weights_differ({card.hospital: card.frozen, "the other hospitals": state.frozen})
    late = (state.round, state.hop) != (1, 0) and card.hospital not in state.nodes
    try:
        check_planned(run.settings, card.hospital, late=late)
    except SettingsError as error:
        return str(error)
    return ""


def _impostors(
    run: Run, cards: Mapping[int, _Card], registered: Mapping[int, str]
) -> dict[int, str]:
    """The nodes whose card has the name of another hospital, or none, with the reasons.

    A registered node keeps its name against nodes without a registration.
    """
    state, connected = run.state, run.courier.node_names()
    named = Counter(card.hospital for card in cards.values())
    namesakes = Counter(registered.values())
    reasons = {}
    for node, card in cards.items():
        name, other = card.hospital, registered.get(node, "")
        present = state.nodes.get(name)
        if not name:
            reasons[node] = "The hospital's card has no name."
        elif other and other != name:
            reasons[node] = (
                f"The hospital calls itself '{name}' and is registered as '{other:.80}': give it "
                "that name as 'site' in its node-config."
            )
        elif other and namesakes[name] > 1:
            reasons[node] = (
                f"Two nodes are registered as '{name}': unregister the one that is not this "
                "hospital's, with `flwr supernode unregister`."
            )
        elif not other and (named[name] > 1 or (present != node and present in connected)):
            reasons[node] = (
                f"Two hospitals are called '{name}': give each SuperNode its own site in its "
                "node-config, and register it under this name."
            )
        elif state.keys.get(name, card.identity) != card.identity:
            reasons[node] = (
                f"The hospital '{name}' has another key than when it joined the run: the others "
                "would refuse it."
            )
    return reasons


def preparations(run: Run, nodes: Mapping[str, int]) -> Iterator[Letter[Order]]:
    """Yield the messages that ask hospitals to prepare."""
    for name, node in nodes.items():
        size = 0 if name in run.state.withheld else run.strategy.buffer_size
        # The hospital may have lost its list of members.
        members, start = run.members, run.strategy.own_start
        order = run.order(name, own_start=start, buffer_size=size, members=members)
        yield run.letter("query.prepare", node, order, order)


def take_first(run: Run, delivery: Delivery[Order], failed: Failed) -> dict[str, Model]:
    """Process the answer of a hospital that prepared; the first model of a new one, by name."""
    state, order, node = run.state, delivery.letter.about, delivery.letter.node
    hospital = order.hospital
    delivery, parcel = admit(delivery, admit_first, order, state.outputs)
    card = find_record(delivery.content, "card", ConfigRecord) or ConfigRecord()
    facts = {key: value for key, value in card.items() if key in FACTS}
    run.tell(Event.from_delivery(delivery, hospital, lineage=hospital, facts=facts))
    if parcel is None:
        failed.append(delivery)
        if delivery.failure == Failure.RELEASE:
            state.withheld[hospital] = node
        if delivery.failure in (Failure.RELEASE, Failure.POLICY):
            _forget_buffer(run, hospital)
        return {}
    state.note_delivered(hospital, [order.members_hash], arrived=True)
    if "buffer" in parcel:
        buffer = RecordDict({name: parcel[name] for name in ("buffer", "manifest")})
        state.buffers[hospital] = state.shelf.put(buffer)
        state.delivered.add((hospital, state.buffer_hash(hospital)))
        del parcel["buffer"]
    if release := card.get("release"):
        log(INFO, "%s: %s", hospital, release)
    known = hospital in state.nodes
    state.nodes[hospital] = node
    return {} if known else {hospital: Model(hospital, hospital, state.shelf.put(parcel))}


def retry_without_buffer(run: Run, delivery: Delivery[Order]) -> dict[str, int]:
    """The hospital and its node, if it must prepare again because its buffer may not leave."""
    order = delivery.letter.about
    refused = delivery.failure == Failure.RELEASE and order.buffer_size > 0
    if not refused or run.strategy.needs_own_buffer:
        return {}
    log(INFO, "%s prepares without synthetic images, which may not leave it", order.hospital)
    return {order.hospital: delivery.letter.node}


def _forget_buffer(run: Run, hospital: str) -> None:
    """Forget the earlier buffer of a hospital that has returned and now refuses.

    If its visits need its own buffer, the hospital is away until it prepares one.
    """
    run.state.buffers.pop(hospital, None)
    if run.strategy.needs_own_buffer and hospital in run.state.nodes:
        run.state.nodes[hospital] = AWAY


def _outsiders(run: Run) -> dict[str, int]:
    """The hospitals that take no part because their buffer may not leave."""
    return run.state.withheld if run.strategy.needs_own_buffer else {}


def common_classes(named: Mapping[str, list[str]]) -> list[str]:
    """All classes of the hospitals `named` in one order; their own if all have the same list.

    Raises:
        RunError: There are fewer than two classes, or one may have several spellings.
    """
    lists = [*named.values()]
    union = sort_classes(name for names in lists for name in names)
    if groups := group_spellings(union, apart=lists):
        spellings = [
            f"{quote(name)} ({join_names([place for place in named if name in named[place]])})"
            for group in groups
            for name in group
        ]
        raise RunError(
            f"Hospitals may spell one class in several ways: {join_names(spellings)}. Give each "
            "class one name at all hospitals; or, if they are different classes, name all classes "
            "in the setting 'classes'."
        )
    if len(union) < 2:
        raise RunError(f"The hospitals have fewer than two classes together: {union}.")
    return lists[0] if all(names == lists[0] for names in lists) else union


def _most_frequent(
    known: Mapping[str, ValueT], differ: Callable[[dict[str, ValueT]], str]
) -> ValueT | None:
    """The most frequent value of hospitals; None without any.

    Raises:
        RunError: Two values are equally frequent; `differ` gives the text.
    """
    counts = Counter(map(str, known.values())).most_common(2)
    if len(counts) > 1 and counts[0][1] == counts[1][1]:
        raise RunError(differ(dict(sorted(known.items()))))
    return next((value for value in known.values() if str(value) == counts[0][0]), None)


def _weights_differ(hashes: Mapping[str, str]) -> str:
    named = ", ".join(f"{hash_ or 'none'} at {name}" for name, hash_ in hashes.items())
    return (
        f"The SHA-256 of the frozen weights (train.freeze) is {named}: set 'model' alike at all "
        "hospitals, and give 'pretrained' the same file."
    )


def _shapes_differ(shapes: Mapping[str, list[int]]) -> str:
    channels = {str(shape[:1]) for shape in shapes.values()}
    named = ", ".join(f"{'x'.join(map(str, shape))} at {name}" for name, shape in shapes.items())
    advice = "set image-channels to 3" if len(channels) > 1 else "set image-size"
    return f"Images (channels x height x width) are {named}: {advice} for the whole run."
