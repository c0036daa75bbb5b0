"""Packing and unpacking of parcels and buffers at the hospital.

Some state-dict keys stay local (`Learner.local`). `unpack` takes them from the hospital's last
visit. `pack` leaves them out, unless the learner also lets them travel. Buffers are kept by hash,
also the hospital's own, so that each is sent to a hospital once.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress

import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor, nn

from client_app.authority.limits import check_disk, check_model
from client_app.authority.sealing import open_parcel
from client_app.hospital import Hospital
from client_app.request import Request, log_once
from client_app.run import Kept, note_dossier
from learning.models import Architecture
from learning.packing import (
    dossier_hash,
    pack_network,
    unpack_arrays,
    unpack_buffer,
    unpack_memory,
    unpack_network,
)
from learning.samples import Samples
from strategies.protocol.archive import ArchiveError
from strategies.protocol.optimizer import check_optimizer
from strategies.protocol.parcel import (
    Manifest,
    check_arrays,
    hash_arrays,
    restore_encoder,
)
from strategies.protocol.records import (
    ParcelError,
    array_records,
    find_record,
    layout_of,
    size_of,
    useless_unless_valid,
)
from strategies.protocol.sums import check_sums


def unpack(
    request: Request, parcel: RecordDict, *, tested: bool = False
) -> tuple[nn.Module, Manifest, dict[str, dict[str, Tensor]]]:
    """Check and open a parcel, and complete its network with the local keys.

    `tested`: the model is tested after the visit of this round and hop, not trained in it.

    Returns:
        The network on the hospital's device, the parcel's label, and the tensors beside the model,
        by record (`memory`, `sums`, `optimizer`) and name.

    Raises:
        ParcelError: The parcel is damaged, or does not fit this hospital or its images.
        UselessError: Its maker has put useless content into it.
        ModelError: The architecture is unknown.
        PolicyError: The model is larger than the hospital allows.
    """
    hospital, kept = request.hospital, Kept(request.run, "local")
    with request.clock.measure("serialise"):
        if hash_ := request.order.encoder:
            parcel = restore_encoder(parcel, _sent_or_kept(request, "encoder", "encoder", hash_))
        opened, label = open_parcel(parcel, request.seal)
        if label.round > request.order.round:
            raise ParcelError(f"The parcel of lineage '{label.lineage}' is from a future round.")
        _check_fit(hospital, label)
        batch, images, copies = hospital.memory_of_a_visit
        images += len(request.order.hash_of) * request.order.buffer_size
        copies += request.order.epochs * request.order.snapshots
        content = request.message.content
        needed = batch, images, copies, hospital.bytes_beside
        check_model(hospital.policy, label.architecture, content, *needed)
        local = kept.load(request.visit, after=tested)
        network = unpack_network(opened, label, {} if request.is_rewind else local, hospital.device)
        beside: dict[str, dict[str, Tensor]] = {}
        if memory := find_record(opened, "memory", ArrayRecord):
            beside["memory"] = unpack_memory(memory, label.lineage, hospital.device)
        if (sums := find_record(opened, "sums", ArrayRecord)) is not None:
            with useless_unless_valid():
                check_sums(sums, len(label.classes))
            beside["sums"] = unpack_arrays(sums, torch.device("cpu"))
        if (state := find_record(opened, "optimizer", ArrayRecord)) is not None:
            if hospital.settings.train.optimizer_state == "fresh":
                raise ParcelError("An optimizer state came, and 'train.optimizer-state' is fresh.")
            with useless_unless_valid():
                check_optimizer(state, layout_of(array_records(opened)["model"]))
            beside["optimizer"] = unpack_arrays(state, hospital.device)
        return network, label, beside


def pack(
    request: Request,
    network: nn.Module,
    label: Manifest,
    beside: Mapping[str, ArrayRecord] | None = None,
) -> RecordDict:
    """Make a parcel of a network, without local keys, and of the records beside it."""
    with request.clock.measure("serialise"):
        withheld = _local(request, network) if request.learner.withholds else ()
        half = request.hospital.settings.wire_dtype == "float16"
        parcel = pack_network(network, label, beside, withheld, half)
        return request.seal.close(parcel) if request.seal else parcel


def keep_local(request: Request, network: nn.Module) -> None:
    """Keep the local keys as they are after the visit."""
    if names := _local(request, network):
        state = network.state_dict()
        local = {name: state[name].cpu().numpy() for name in names}
        Kept(request.run, "local").save(request.visit, local)


def open_buffers(request: Request) -> dict[str, Samples]:
    """The buffers that the order names, from this message or an earlier one, by hospital.

    A visit goes on without a buffer that its hospital has spoilt: this must cost no other one a
    turn.

    Raises:
        ParcelError: A buffer is missing, or has changed on its way; or no image is left.
    """
    buffers = {}
    with request.clock.measure("serialise"):
        for maker, hash_ in request.order.hash_of.items():
            record = _sent_or_kept(request, "buffer", f"{hash_}/buffer", hash_)
            try:
                buffers[maker] = _open_buffer(request, maker, record)
            except ParcelError as error:
                text = "The buffer of %a is not used: %s"
                logging.getLogger("flwr").error(text, maker, error)
    if request.order.images == "none" and request.order.hash_of and not buffers:
        raise ParcelError("The hospital can use none of the buffers to train on.")
    return buffers


def keep_record(hospital: Hospital, name: str, record: ArrayRecord) -> None:
    """Keep a buffer or an encoder, in its travelling form, for later messages."""
    check_disk(hospital.machine, hospital.store.folder.parent, size_of(record))
    hospital.store.save(name, {key: array.numpy() for key, array in record.items()})


def _local(request: Request, network: nn.Module) -> set[str]:
    """The keys that stay local; empty for another hospital's model."""
    if request.is_rewind:
        return set()
    return request.learner.local(network, request.hospital.settings)


def _check_fit(hospital: Hospital, label: Manifest) -> None:
    architecture, data = Architecture.from_json(label.architecture), hospital.data
    theirs, ours = architecture.image_shape, data.train.shape
    if theirs != ours:
        setting = "image-size" if theirs[0] == ours[0] else "image-channels"
        raise ParcelError(
            f"Lineage '{label.lineage}' is for {theirs} images (channels, height, width), "
            f"hospital '{hospital.name}' has {ours}: set {setting} for the whole run."
        )
    if architecture.whole != hospital.architecture.whole:
        raise ParcelError(
            f"Lineage '{label.lineage}' is for features of another frozen network than hospital "
            f"'{hospital.name}' has: set 'model' and 'pretrained' alike for the whole run."
        )
    if label.classes != list(data.classes):
        raise ParcelError(
            f"Lineage '{label.lineage}' has the classes {label.classes!s:.400}, "
            f"hospital '{hospital.name}' has the classes {list(data.classes)}."
        )
    if architecture.classes != len(label.classes):
        raise ParcelError(f"The model of '{label.lineage}' has other classes than its label.")


def _open_buffer(request: Request, maker: str, record: ArrayRecord) -> Samples:
    hospital, order = request.hospital, request.order
    opened = request.seal.open_buffer(record, maker) if request.seal else record
    classes = len(hospital.data.classes)
    samples = unpack_buffer(opened, hospital.data.train, classes, order.buffer_size)
    log_once(f"The buffer of {maker!a} has a dossier: SHA-256 {dossier_hash(opened)}.")
    note_dossier(request.run, maker, dossier_hash(opened))
    return samples.to(hospital.device)


def _sent_or_kept(request: Request, kind: str, name: str, hash_: str) -> ArrayRecord:
    """An encoder or a buffer with this hash, in its travelling form.

    The server sends it once, as the record `name`. So it is kept, for later messages.
    """
    store, place = request.hospital.store, f"{kind}s/{hash_}"
    sent = find_record(request.message.content, name, ArrayRecord)
    record = sent or ArrayRecord()
    if not sent:
        with suppress(OSError, ArchiveError):  # a damaged file counts as a missing one
            record = ArrayRecord({key: Array(array) for key, array in store.load(place).items()})
    check_arrays(record)
    if hash_arrays(record) != hash_:
        raise ParcelError(f"The {kind} {hash_:.12} is missing, or has changed on its way.")
    if sent:
        keep_record(request.hospital, place, sent)
    return record
