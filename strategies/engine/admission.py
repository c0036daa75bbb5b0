"""Admission: what a hospital answers is checked, and hashed, once, before anything takes it in."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from strategies.engine.courier import Delivery
from strategies.engine.events import figures
from strategies.protocol.archive import values_of
from strategies.protocol.embeddings import check_embeddings
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.parcel import (
    Layout,
    Manifest,
    check_parcel,
    check_same_layout,
    check_sealed,
    completed,
    layout_of,
    parcel_in,
    unbundle,
)
from strategies.protocol.records import ParcelError, UselessError
from strategies.protocol.soundness import flaw_of

AdmittedT = TypeVar("AdmittedT")


def admit(
    delivery: Delivery[Any], check: Callable[..., AdmittedT], *expected: object
) -> tuple[Delivery[Any], AdmittedT | None]:
    """What a check makes of a good answer; a refusal makes a failed delivery of it.

    A model of no use is the failure of the hospital that sends it, as if it had judged it itself.
    """
    if delivery.failure is not None:
        return delivery, None
    try:
        return delivery, check(delivery.content, *expected)
    except ParcelError as error:
        failure = Failure.DIVERGED if isinstance(error, UselessError) else Failure.PARCEL
        return replace(delivery, failure=failure, reason=str(error)), None


def admit_first(content: RecordDict, order: Order, outputs: list[str]) -> RecordDict:
    """The first parcel of a hospital.

    Args:
        content: The answer.
        order: What the hospital was asked.
        outputs: What the outputs of the networks stand for.

    Raises:
        ParcelError: It is not what the order asked for.
    """
    parcel = parcel_in(content)
    label = check_parcel(parcel)
    _check_lineage(label, order.hospital)
    first = Manifest(order.hospital, label.architecture, outputs, hashes=label.hashes)
    if label != first:
        raise ParcelError("The label of the model is not that of one that nobody has trained yet.")
    check_sealed([parcel], order.sealed)
    if order.buffer_size and "buffer" not in parcel:
        raise ParcelError("The hospital's first parcel has no buffer.")
    if not order.sealed:
        _check_sound(parcel)
    return parcel


def admit_trained(
    content: RecordDict,
    order: Order,
    came_from: RecordDict,
    encoder: Mapping[str, Array],
    check_memory: Callable[[ArrayRecord, Layout], None],
) -> Mapping[str, RecordDict]:
    """The parcel of a visit, under "visit", and copies after each epoch, under "epoch-<k>".

    Args:
        content: The answer.
        order: The visit that was ordered.
        came_from: The parcel that was sent.
        encoder: The arrays that models travel without.
        check_memory: Of the method (`Strategy.check_memory`).

    Raises:
        ParcelError: A model is not the one that was sent, after the visit that was ordered; there
            are embeddings for which nobody has asked; or the method cannot read the memory.
        UselessError: A model that is not sealed is of no use.
    """
    sent, layout = Manifest.read(came_from), layout_of(came_from)
    expected = sent.advance(order)
    copies = {f"epoch-{k}": k for k in range(1, order.epochs)} if order.snapshots else {}
    found = {**unbundle(content), "visit": parcel_in(content)}
    parcels = {name: completed(parcel, encoder) for name, parcel in found.items()}
    if parcels.keys() != {*copies, "visit"}:
        raise ParcelError(f"Expected the copies {list(copies)}, there are {list(parcels)[:-1]}.")
    check_sealed(parcels.values(), order.sealed)
    for name, parcel in parcels.items():
        label = check_parcel(parcel)
        _check_lineage(label, expected.lineage)
        wanted = replace(expected, epochs=copies.get(name, order.epochs))
        if replace(label, hashes=[]) != replace(wanted, hashes=[]):
            raise ParcelError("The label of the model is not that of the visit that was ordered.")
        check_same_layout(layout_of(parcel), layout)
        if embeddings := parcel.array_records.get("embeddings"):
            if not order.embeddings:
                raise ParcelError("There are embeddings, for which nobody has asked.")
            check_embeddings(embeddings, order.embeddings, len(sent.classes))
        if memory := parcel.array_records.get("memory"):
            check_memory(memory, layout)
        if not order.sealed:
            _check_sound(parcel, came_from)
    if not figures(content).get("num-examples", 0) > 0:
        raise ParcelError("The metric 'num-examples' must be above 0.")
    return parcels


def admit_tested(content: RecordDict, tested: Collection[str]) -> Mapping[str, dict[str, float]]:
    """What a hospital tells of each of several models, and under "" what it tells of all.

    Raises:
        ParcelError: It tells of a model that it was not sent.
    """
    found: dict[str, dict[str, float]] = {}
    for key, value in figures(content).items():
        name, _, metric = key.rpartition("/")
        if name not in ("", "ensemble", "standalone", *tested):
            raise ParcelError(f"There are figures of '{name}', which was not sent to be tested.")
        found.setdefault(name, {})[metric] = value
    return found


def _check_sound(parcel: RecordDict, came_from: RecordDict | None = None) -> None:
    """Refuse models of no use, before they are averaged for instance, as far as numbers tell."""
    before = _arrays(came_from, "model") if came_from else None
    flaw = flaw_of(_arrays(parcel, "model"), before) or flaw_of(_arrays(parcel, "memory"))
    if flaw:
        raise UselessError(
            f"The hospital sent a model of no use, which was refused: {flaw}. Lower "
            "train.learning-rate there, or ask who runs it: its own software did not refuse it."
        )


def _arrays(parcel: RecordDict, name: str) -> dict[str, NDArray[Any]]:
    record = parcel.array_records.get(name, ArrayRecord())
    return {key: values_of(array) for key, array in record.items()}


def _check_lineage(label: Manifest, lineage: str) -> None:
    if label.lineage != lineage:
        raise ParcelError(f"Expected a parcel of lineage '{lineage}', not '{label.lineage:.80}'.")
