"""Admission: each answer of a hospital is checked and hashed once, before any use."""

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
from strategies.protocol.optimizer import check_optimizer
from strategies.protocol.order import Order
from strategies.protocol.parcel import (
    Manifest,
    check_parcel,
    check_same_layout,
    check_sealed,
    parcel_in,
    restore_encoder,
    unbundle,
)
from strategies.protocol.records import (
    Layout,
    ParcelError,
    UselessError,
    array_records,
    find_record,
    layout_of,
)
from strategies.protocol.soundness import flaw_of
from strategies.protocol.sums import HOME, check_sums

AdmittedT = TypeVar("AdmittedT")


def admit(
    delivery: Delivery[Any], check: Callable[..., AdmittedT], *expected: object
) -> tuple[Delivery[Any], AdmittedT | None]:
    """Apply a check to a good answer; the delivery, and the content that the check returns.

    If the check refuses, the delivery becomes a failure and the content is None. A useless model is
    a failure of its sender (`DIVERGED`), as if the sender had refused it itself.
    """
    if delivery.failure is not None:
        return delivery, None
    try:
        return delivery, check(delivery.content, *expected)
    except ParcelError as error:
        failure = Failure.DIVERGED if isinstance(error, UselessError) else Failure.PARCEL
        return replace(delivery, failure=failure, reason=str(error)), None


def admit_first(content: RecordDict, order: Order, outputs: list[str]) -> RecordDict:
    """The first parcel of a hospital, from its answer to an order.

    Raises:
        ParcelError: The parcel is not the one that the order asks for.
        UselessError: A model that is not sealed is useless.
    """
    parcel = parcel_in(content)
    label = check_parcel(parcel)
    first = Manifest(order.hospital, label.architecture, outputs, hashes=label.hashes)
    if label != first:
        raise ParcelError("The label of the model is not that of an untrained model.")
    check_sealed(parcel, order.sealed)
    if ("buffer" in parcel) != (order.buffer_size > 0):
        has = "has no buffer" if order.buffer_size else "has a buffer that was not ordered"
        raise ParcelError(f"The hospital's first parcel {has}.")
    if not order.sealed:
        _check_sound(parcel)
    return parcel


def admit_trained(
    content: RecordDict,
    order: Order,
    came_from: RecordDict,
    encoder: Mapping[str, Array],
    check_memory: Callable[[ArrayRecord, Layout], None],
    optimizer: bool = False,
) -> Mapping[str, RecordDict]:
    """The parcels of a visit: the trained model as "visit", copies after epochs as "epoch-<k>".

    `came_from` is the parcel that was sent, `check_memory` the check of the method, and `optimizer`
    whether the optimizer's state travels.

    Raises:
        ParcelError: A parcel is not the sent one after the ordered visit; there are embeddings
            without a request; or the method cannot read the memory.
        UselessError: A model that is not sealed is useless.
    """
    sent, layout = Manifest.read(came_from), layout_of(array_records(came_from)["model"])
    expected = sent.advance(order.without_buffers(order.unused(figures(content))))
    copies = {f"epoch-{k}": k for k in range(1, order.epochs)} if order.snapshots else {}
    found = {**unbundle(content), "visit": parcel_in(content)}
    parcels = {name: restore_encoder(parcel, encoder) for name, parcel in found.items()}
    if parcels.keys() != {*copies, "visit"}:
        raise ParcelError(f"Expected the copies {list(copies)}; found {list(parcels)[:-1]}.")
    for name, parcel in parcels.items():
        check_sealed(parcel, order.sealed)
        label = check_parcel(parcel)
        wanted = replace(expected, epochs=copies.get(name, order.epochs))
        if replace(label, hashes=[]) != replace(wanted, hashes=[]):
            raise ParcelError("The label of the model is not that of the visit that was ordered.")
        check_same_layout(layout_of(array_records(parcel)["model"]), layout)
        if embeddings := find_record(parcel, "embeddings", ArrayRecord):
            if not order.embeddings:
                raise ParcelError("There are embeddings that the order did not ask for.")
            check_embeddings(embeddings, order.embeddings, len(sent.classes))
        if memory := find_record(parcel, "memory", ArrayRecord):
            check_memory(memory, layout)
        state = find_record(parcel, "optimizer", ArrayRecord)
        if (state is not None) != (optimizer and name == "visit"):
            raise ParcelError("The parcel has, or lacks, an optimizer state against the settings.")
        if state is not None:
            check_optimizer(state, layout)
        _check_sums_fit(parcel, order, len(sent.classes))
        if not order.sealed:
            _check_sound(parcel, came_from)
    if not figures(content).get("num-examples", 0) > 0:
        raise ParcelError("The metric 'num-examples' must be above 0.")
    return parcels


def _check_sums_fit(parcel: RecordDict, order: Order, classes: int) -> None:
    """Refuse a parcel without the sums that its order asks for, or with others."""
    sums = find_record(parcel, "sums", ArrayRecord)
    if (sums is not None) != (order.learner == "sums" and order.leg != HOME):
        raise ParcelError("The parcel has sums that were not ordered, or lacks ordered ones.")
    if sums is not None and not order.sealed:
        check_sums(sums, classes)


def admit_tested(
    content: RecordDict, order: Order, tested: Collection[str]
) -> Mapping[str, dict[str, float]]:
    """The figures that a hospital reports, by model; under "" those of the whole message.

    Raises:
        ParcelError: There are figures of a model that the hospital was not sent, or of a task whose
            images are not there.
    """
    together = {"ensemble": order.ensemble, "standalone": order.final}
    names = {"", *tested, *(name for name, asked in together.items() if asked)}
    tasks = {str(task) for task in order.tasks_so_far}
    found: dict[str, dict[str, float]] = {}
    for key, value in figures(content).items():
        name, _, metric = key.rpartition("/")
        if name not in names:
            raise ParcelError(f"There are figures of '{name}', which was not sent to be tested.")
        kind, _, task = metric.rpartition("-")
        if kind in ("accuracy-of-task", "accuracy-in-task") and task not in tasks:
            raise ParcelError(f"There are figures of task {task}, whose images are not there.")
        found.setdefault(name, {})[metric] = value
    return found


def _check_sound(parcel: RecordDict, came_from: RecordDict | None = None) -> None:
    """Refuse a model whose numbers show that it is useless; it must not be averaged."""
    before = _arrays(came_from, "model") if came_from else None
    flaw = flaw_of(_arrays(parcel, "model"), before) or flaw_of(_arrays(parcel, "memory"))
    if flaw:
        raise UselessError(
            f"The server refused a useless model: {flaw}. Lower train.learning-rate at its "
            "hospital, or ask its operator why its own software did not refuse it."
        )


def _arrays(parcel: RecordDict, name: str) -> dict[str, NDArray[Any]]:
    record = find_record(parcel, name, ArrayRecord) or ArrayRecord()
    return {key: values_of(array) for key, array in record.items()}
