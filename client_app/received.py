"""Buffers that a hospital has received: kept by hash, so that each is sent to it once."""

import re

from flwr.app import Array, ArrayRecord

from client_app.request import Request
from client_app.store import Store
from learning.packing import unpack_buffer
from learning.samples import Samples
from strategies.protocol.parcel import hash_arrays
from strategies.protocol.records import ParcelError


def replayed(request: Request) -> list[Samples]:
    """The buffers that the order names: from the message, or kept from an earlier one.

    Raises:
        ParcelError: A buffer is damaged, missing, or not for this hospital's images.
    """
    with request.clock.measure("serialise"):
        return [_buffer(request, hash_) for hash_ in request.order.replay]


def keep_buffer(store: Store, hash_: str, buffer: ArrayRecord) -> None:
    """Keep a buffer, as it travels, under its hash."""
    store.save(f"buffers/{hash_}", {name: array.numpy() for name, array in buffer.items()})


def _buffer(request: Request, hash_: str) -> Samples:
    if not re.fullmatch(r"[0-9a-f]{64}", hash_):  # it names a file
        raise ParcelError(f"'{hash_:.80}' is not the hash of a buffer.")
    hospital, order = request.hospital, request.order
    sent = request.message.content.array_records.get(f"{hash_}/buffer")
    kept = {} if sent else hospital.store.load(f"buffers/{hash_}")
    record = sent or ArrayRecord({name: Array(array) for name, array in kept.items()})
    if hash_arrays(record) != hash_:
        raise ParcelError(f"The buffer {hash_:.12} is missing, or has changed on its way.")
    opened = request.seal.open_buffer(record) if request.seal else record
    classes = len(hospital.data.classes)
    samples = unpack_buffer(opened, hospital.data.train, classes, order.buffer_size)
    if sent:
        keep_buffer(hospital.store, hash_, sent)
    return samples.to(hospital.device)
