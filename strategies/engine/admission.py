"""Admission: what a hospital answers is checked, and hashed, once, before anything takes it in."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, RecordDict

from strategies.engine.courier import Delivery
from strategies.engine.events import figures
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
from strategies.protocol.records import ParcelError

AdmittedT = TypeVar("AdmittedT")


def admit(
    delivery: Delivery[Any], check: Callable[..., AdmittedT], *expected: object
) -> tuple[Delivery[Any], AdmittedT | None]:
    """What a check makes of a good answer; a refusal makes a failed delivery of it."""
    if delivery.failure is not None:
        return delivery, None
    try:
        return delivery, check(delivery.content, *expected)
    except ParcelError as error:
        return replace(delivery, failure=Failure.PARCEL, reason=str(error)), None


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
    return parcel


def admit_trained(
    content: RecordDict,
    order: Order,
    sent: Manifest,
    layout: Layout,
    encoder: Mapping[str, Array],
    check_memory: Callable[[ArrayRecord, Layout], None],
) -> Mapping[str, RecordDict]:
    """The parcel of a visit, under "visit", and copies after each epoch, under "epoch-<k>".

    Args:
        content: The answer.
        order: The visit that was ordered.
        sent: The label of the parcel that was sent.
        layout: The layout of its model.
        encoder: The arrays that models travel without.
        check_memory: Of the method (`Strategy.check_memory`).

    Raises:
        ParcelError: A model is not the one that was sent, after the visit that was ordered; there
            are embeddings for which nobody has asked; or the method cannot read the memory.
    """
    expected = sent.after(order)
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


def _check_lineage(label: Manifest, lineage: str) -> None:
    if label.lineage != lineage:
        raise ParcelError(f"Expected a parcel of lineage '{lineage}', not '{label.lineage:.80}'.")
