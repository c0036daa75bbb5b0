"""What the handlers share: open the hospital, unpack, keep the time, pack, answer."""

import hashlib
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import nn

from client_app.errors import DataError
from client_app.hospital import Hospital, open_hospital
from client_app.sealing import Seal, seal_for
from learning.learners import LEARNERS
from learning.learners.plain import Learner, Received
from learning.models import Architecture
from learning.packing import (
    Arrays,
    pack_network,
    unpack_buffer,
    unpack_memory,
    unpack_network,
)
from learning.samples import Samples
from strategies.protocol.order import Order
from strategies.protocol.parcel import Manifest, check_parcel, check_sealed, hash_arrays
from strategies.protocol.records import ParcelError, from_record


class Task:
    """One message, at the hospital that it is for.

    Attributes:
        order: What to do.
        deadline: When to give up, in the time of `time.monotonic`.
        seconds: Time spent so far, by the name of the metric.
    """

    def __init__(self, message: Message, context: Context) -> None:
        self.message = message
        self.context = context
        self.order = from_record(Order, message.content.config_records["order"])
        self.deadline = time.monotonic() + message.metadata.ttl
        self.seconds: dict[str, float] = {}

    @cached_property
    def hospital(self) -> Hospital:
        """The hospital, opened when it is first needed.

        Raises:
            DataError: Its images cannot be used, or are others than at the start of the run: what
                was tested on would now perhaps be trained on.
        """
        hospital = open_hospital(self.context, self.order.hospital, tuple(self.order.classes))
        part = [self.context.node_config.get(key) for key in ("partition-id", "num-partitions")]
        name, fingerprint = f"{self._folder}/data", f"{hospital.data.fingerprint}, part {part}"
        kept = hospital.store.load(name).get("fingerprint")
        if kept is None and self.message.metadata.message_type == "query.enrol":
            hospital.store.save(name, {"fingerprint": np.array(fingerprint)})
        elif kept is not None and fingerprint != str(kept):
            raise DataError(
                "The hospital's images have changed since it joined the run: it takes part in the "
                "next one again."
            )
        return hospital

    @property
    def samples(self) -> Samples:
        """The images that the order says are trained on, beside buffers."""
        own = self.hospital.data.train
        if self.order.images == "own":
            return own
        if self.order.images == "everyone":
            return self.hospital.everyone()
        return own[torch.empty(0, dtype=torch.int64)]

    @property
    def learner(self) -> type[Learner]:
        """The local objective that the order names."""
        return LEARNERS[self.order.learner]

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the time spent inside to the metric `seconds-<what>`."""
        start = time.perf_counter()
        yield
        spent = self.seconds.get(f"seconds-{what}", 0.0) + time.perf_counter() - start
        self.seconds[f"seconds-{what}"] = spent

    @cached_property
    def seal(self) -> Seal | None:
        """What parcels are sealed and opened with; None if they travel open."""
        return seal_for(self.hospital, self.order)

    def open(self, parcel: RecordDict) -> tuple[RecordDict, Manifest]:
        """Check a parcel, and open it if it is sealed.

        Raises:
            ParcelError: It is damaged, or not for this hospital.
        """
        with self.timed("serialise"):
            manifest = check_parcel(parcel)
            check_sealed([parcel], self.seal is not None)
            return self.seal.open(parcel, manifest) if self.seal else parcel, manifest

    def unpack(self, parcel: RecordDict, manifest: Manifest) -> nn.Module:
        """The network of an open parcel, completed with what is the hospital's own.

        Raises:
            ParcelError: The network is not for this hospital's images.
        """
        with self.timed("serialise"):
            network = unpack_network(parcel, manifest, self._own, self.hospital.device)
        self._check_fit(manifest)
        return network

    def refuse_replay(self, manifest: Manifest) -> None:
        """Refuse a model to train that is older than one of its lineage that was trained here.

        Raises:
            ParcelError: It is. Only where parcels are sealed: others cannot be told apart.
        """
        if self.seal is None:
            return
        lineage = hashlib.sha256(manifest.lineage.encode()).hexdigest()[:16]  # it names a file
        name, now = f"{self._folder}/seen/{lineage}", (manifest.round, manifest.hop)
        newest = tuple(self.hospital.store.load(name).get("visit", now))
        if now < newest:
            raise ParcelError(
                f"Lineage '{manifest.lineage}' comes as it was after round {now[0]}, hop {now[1]}, "
                f"and was here already as it was after round {newest[0]}, hop {newest[1]}."
            )
        self.hospital.store.save(name, {"visit": np.array(now)})

    def received(self, parcel: RecordDict, network: nn.Module, manifest: Manifest) -> Received:
        """What came with the model of a parcel.

        Raises:
            ParcelError: A buffer or the memory is damaged, or not for this hospital.
        """
        buffers = self.buffers()
        with self.timed("serialise"):
            record = parcel.array_records.get("memory")
            memory = unpack_memory(record, manifest.lineage, self.hospital.device) if record else {}
        new_rounds = self.order.round - manifest.round
        return Received(buffers, memory, leg=self.order.leg, new_rounds=new_rounds)

    def buffers(self) -> list[Samples]:
        """The buffers that the order names: from the message, or kept from an earlier one.

        Raises:
            ParcelError: One is damaged, not for this hospital's images, or nowhere to be found.
        """
        with self.timed("serialise"):
            return [self._buffer(hash_) for hash_ in self.order.replay]

    def _buffer(self, hash_: str) -> Samples:
        if not re.fullmatch(r"[0-9a-f]{64}", hash_):  # it names a file
            raise ParcelError(f"'{hash_:.80}' is not the hash of a buffer.")
        sent = self.message.content.array_records.get(f"{hash_}/buffer")
        kept = {} if sent else self.hospital.store.load(f"buffers/{hash_}")
        record = sent or ArrayRecord({name: Array(array) for name, array in kept.items()})
        if hash_arrays(record) != hash_:
            raise ParcelError(f"The buffer {hash_:.12} is missing, or has changed on its way.")
        data, size = self.hospital.data, self.order.buffer_size
        opened = self.seal.open_buffer(record) if self.seal else record
        samples = unpack_buffer(opened, data.train, len(data.classes), size)
        if sent:
            self.keep(hash_, sent)
        return samples.to(self.hospital.device)

    def keep(self, hash_: str, buffer: ArrayRecord) -> None:
        """Keep a buffer under its hash, so that it need not be sent again."""
        arrays = {name: array.numpy() for name, array in buffer.items()}
        self.hospital.store.save(f"buffers/{hash_}", arrays)

    def pack(self, network: nn.Module, manifest: Manifest, **beside: ArrayRecord) -> RecordDict:
        """Make a parcel of what may travel, and keep what is the hospital's own."""
        with self.timed("serialise"):
            own = set() if self._is_guest else self.learner.local(network, self.hospital.settings)
            withheld = own if self.learner.withholds else ()
            half = self.hospital.settings.wire_dtype == "float16"
            parcel = pack_network(network, manifest, beside, withheld, half)
            if self.seal:
                parcel = self.seal.close(parcel)
            if own:
                state = network.state_dict()
                self._keep_home({name: state[name].cpu().numpy() for name in own})
            return parcel

    def answer(
        self,
        metrics: Mapping[str, float],
        parcel: RecordDict | None = None,
        card: Mapping[str, str | list[str]] | None = None,
    ) -> Message:
        """The answer to the message."""
        content = RecordDict(
            {**(parcel or {}), "metrics": MetricRecord({**metrics, **self.seconds})}
        )
        if card:
            content["card"] = ConfigRecord({**card})
        return Message(content, reply_to=self.message)

    def _check_fit(self, manifest: Manifest) -> None:
        architecture, data = Architecture.from_json(manifest.architecture), self.hospital.data
        theirs = (architecture.channels, architecture.height, architecture.width)
        ours = data.train.shape
        if theirs != ours:
            raise ParcelError(
                f"Lineage '{manifest.lineage}' is for {theirs} images (channels, height, width), "
                f"hospital '{self.hospital.name}' has {ours}: set image-size for the whole run."
            )
        if manifest.classes != list(data.classes):
            raise ParcelError(
                f"Lineage '{manifest.lineage}' tells {manifest.classes} apart, "
                f"hospital '{self.hospital.name}' has the classes {list(data.classes)}."
            )

    @cached_property
    def _own(self) -> Arrays:
        """What the hospital has its own of in every network, as its last visit left it.

        A visit whose answer was lost with the server is ordered once more when the run is resumed,
        and starts from the visit before it, as it did the first time.
        """
        place = (self.order.round, self.order.hop)
        tests = self.message.metadata.message_type == "evaluate"
        left = [visit for visit in self._visits() if visit < place or (tests and visit == place)]
        return self.hospital.store.load(self._home(left[-1])) if left and not self._is_guest else {}

    def _keep_home(self, arrays: Arrays) -> None:
        """Keep what is the hospital's own as this visit leaves it, and as the one before did."""
        place = (self.order.round, self.order.hop)
        self.hospital.store.save(self._home(place), arrays)
        for visit in [visit for visit in self._visits() if visit < place][:-1]:
            self.hospital.store.discard(self._home(visit))

    def _visits(self) -> list[tuple[int, ...]]:
        """Round and hop of the visits that left something at home, in order."""
        names = self.hospital.store.names(f"{self._folder}/home")
        return sorted(tuple(map(int, name.split("-"))) for name in names)

    def _home(self, visit: tuple[int, ...]) -> str:
        return f"{self._folder}/home/{'-'.join(map(str, visit))}"

    @property
    def _is_guest(self) -> bool:
        """Whether another hospital's model is here on its rewind leg, and stays what it is."""
        return self.message.metadata.message_type == "train.rewind"

    @property
    def _folder(self) -> str:
        """Where the hospital's store has what is for this run alone."""
        if not re.fullmatch(r"[0-9a-zA-Z_-]+", self.order.run):
            raise ParcelError(f"'{self.order.run:.80}' is not the identity of a run.")
        return f"runs/{self.order.run}"
