"""The order: the server's request to a hospital, beside the parcels of a message."""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from flwr.app import ConfigRecord, RecordDict

from strategies.protocol.embeddings import PARTS
from strategies.protocol.may_leave import are_classes
from strategies.protocol.names import check_name
from strategies.protocol.records import ParcelError, check_values, find_record, from_record

MOST_TASKS = 100_000  # `tasks_so_far` lists them
# The images to train on beside buffers: the hospital's own, those of all hospitals (in a
# simulation), those of a public archive (`filver.pretrain`), or none.
Images = Literal["own", "everyone", "public", "none"]


@dataclass(frozen=True)
class Order:
    """A request to a hospital; travels as the record `order` beside the parcels."""

    round: int  # round of the paper, from 1; 0 before the first
    hop: int  # hop within the round, from 1; 0 before the first
    hospital: str  # name of the hospital; empty in the first message if the server knows none
    classes: list[str]  # of the federation, in one order; empty in the first message
    learner: str  # name of the local objective (learning.learners.LEARNERS)
    run: str  # identity of the run; unlike Flower's own, it stays when the run is resumed
    epochs: int = 0  # passes over the training images
    leg: int = 1  # number of this training in a visit, from 1 (strategies/fedrewind.py)
    # Whether the run has no rounds; `hop` is then the number of the model's visit, from 1
    asynchronous: bool = False
    task: int = 0  # the task whose images are there, from 1; 0 = all, or the first message
    # The tasks whose test images are there, if hospitals have different orders or durations of
    # tasks; empty = all up to `task`
    arrived: list[int] = field(default_factory=list)
    images: str = "own"  # one of `Images`
    test: bool = False  # whether to test the model after training it
    # Whether the answer has the model after each epoch too, for tests at other hospitals
    snapshots: bool = False
    own_start: bool = False  # whether the hospital's first model has initial weights of its own
    buffer_size: int = 0  # images of a buffer; above 0 the hospital's first parcel has its buffer
    # The buffers to train on, as "<hospital>=<hash>". Buffers that the hospital does not hold yet
    # travel beside the parcel, as "<hash>/buffer".
    replay: list[str] = field(default_factory=list)
    ensemble: bool = False  # whether to test also the mean of all models that came
    # Hash of the encoder, whose arrays the models lack; empty = models are whole. A hospital that
    # does not hold the encoder yet gets it as the record `encoder`.
    encoder: str = ""
    embeddings: str = ""  # the kind that the server asks for (embeddings.py); empty = none
    final: bool = False  # whether models are tested for the last time, and may be kept
    sealed: bool = False  # whether parcels travel sealed
    # The hospitals of the run and the public halves of their keys, as "name key"; empty if the
    # hospital holds the list already, or parcels are not sealed
    members: list[str] = field(default_factory=list)
    members_hash: str = ""  # hash of that list; empty if there is none
    code: str = ""  # `code_hash` of the server; empty after the first message

    @classmethod
    def read(cls, content: RecordDict) -> "Order":
        """The order of a message.

        Raises:
            ParcelError: There is no order, or it has an impossible value.
        """
        if (record := find_record(content, "order", ConfigRecord)) is None:
            raise ParcelError("The message has no order.")
        order = from_record(cls, record)
        possible = {
            "round": order.round >= 0,
            "hop": order.hop >= 0,
            "classes": are_classes(order.classes),
            "task": 0 <= order.task <= MOST_TASKS,
            "epochs": order.epochs >= 0,
            "leg": order.leg >= 1,
            "images": order.images in get_args(Images),
            "buffer_size": order.buffer_size >= 0,
            "encoder": re.fullmatch("([0-9a-f]{64})?", order.encoder),  # it names a file
            "members_hash": re.fullmatch("([0-9a-f]{64})?", order.members_hash),  # so does this
            "embeddings": order.embeddings in ("", *PARTS),
        }
        check_values("order", possible)
        return order

    @property
    def tasks_so_far(self) -> list[int]:
        """The tasks whose test images are there; empty if all images are."""
        return self.arrived or [*range(1, self.task + 1)]

    @property
    def hash_of(self) -> dict[str, str]:
        """The hash of each buffer to train on, by its hospital; a ParcelError if one has none."""
        buffers = _pairs(self.replay, "=")
        for maker, hash_ in buffers.items():
            if not re.fullmatch(r"[0-9a-f]{64}", hash_):  # it names a file
                raise ParcelError(f"The buffer of '{maker}' has {hash_[:80]!r} as its hash.")
        return buffers

    def unused(self, metrics: Mapping[str, float]) -> list[str]:
        """The hospitals of buffers that the hospital could not use, by the metrics of its visit."""
        makers = enumerate(self.hash_of)
        return [maker for place, maker in makers if metrics.get(f"buffer-unused-{place}")]

    def without_buffers(self, makers: Collection[str]) -> "Order":
        """The order without the buffers of some hospitals."""
        kept = [each for each in self.replay if each.partition("=")[0] not in makers]
        return replace(self, replay=kept)

    @property
    def keys(self) -> dict[str, str]:
        """The announced public keys, by hospital; a ParcelError if one has none."""
        return _pairs(self.members, " ")


def hash_members(members: list[str]) -> str:
    """SHA-256 of a list of members."""
    return hashlib.sha256(json.dumps(members).encode()).hexdigest()


def _pairs(entries: list[str], sign: str) -> dict[str, str]:
    """The value of each entry "<hospital><sign><value>", by hospital."""
    pairs = {}
    for entry in entries:
        name, found, value = entry.partition(sign)
        try:
            check_name(name)
        except ValueError as error:
            raise ParcelError(str(error)) from error
        if not found or name in pairs:
            raise ParcelError(f"The order has '{name}' twice, or nothing about it.")
        pairs[name] = value
    return pairs
