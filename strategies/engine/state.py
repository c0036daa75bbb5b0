"""The state of a run: everything that changes during the run. A checkpoint is the written state.

The state has no random numbers: they follow from the seed, the round, the hop and the hospital.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from flwr.app import Array, ArrayRecord, RecordDict

from strategies.engine.shelf import Shelf
from strategies.engine.visit import Visit
from strategies.protocol.parcel import drop_encoder
from strategies.protocol.records import find_record
from strategies.protocol.shapes import SHAPE, ShapeError, from_value

AWAY = 0  # no node's id: a hospital has not come back since the run was resumed


@dataclass(frozen=True)
class Model:
    """A travelling model, as its last good visit left it."""

    lineage: str  # its identity, named after its first hospital
    place: str  # the hospital that it is at, or `GLOBAL`
    parcel: str  # the name of its parcel on the shelf
    previous: str = ""  # its place before; empty before the first visit
    # The parcel of the last good copy (undoing.py), or of the first copy. The lineage goes on from
    # it if the newest copy is useless. Empty before the first visit.
    good: str = ""
    round: int = 0  # round of the last good visit; 0 = none yet
    num_examples: float = 0.0  # training images at the last good visit
    turns: int = 0  # number of its visits, good or failed, if it does not move in rounds


@dataclass(frozen=True)
class FirstOrder:
    """The first order of a visit that is under way. After a kill the visit gets the same again."""

    round: int
    ends: float  # the end of the visit, in seconds of virtual time
    replay: list[str]  # the hospitals whose buffers are trained on
    sent: str  # the parcel that is sent; its lineage may go on from another copy meanwhile


@dataclass
class State:
    """The state of a run."""

    # The shelf of its parcels. Other attributes name parcels by their names there.
    shelf: Shelf = field(metadata={SHAPE: object})
    run: str  # identity of the run; a resumed run keeps it
    round: int = 1  # the present round, from 1
    hop: int = 0  # the newest hop of this round, from 1; 0 = none has begun
    classes: list[str] = field(default_factory=list)  # of the federation; fixed at the start
    # Names of the networks' outputs: the classes, or those that tasks leave or share
    outputs: list[str] = field(default_factory=list)
    shape: list[int] = field(default_factory=list)  # (C, H, W) of the images; fixed at the start
    # Hash of the weights that made features of the images, fixed at the start; empty for images
    frozen: str = ""
    # Flower's node id of each hospital that ever took part; it may change
    nodes: dict[str, int] = field(default_factory=dict)
    # Flower's node id of each hospital whose buffer may not leave; the server does not ask for the
    # buffer again
    withheld: dict[str, int] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)  # the public half of each hospital's keys
    # All travelling models, by name: the lineage, or the hospital for FedAvg's copies of one
    # lineage
    models: dict[str, Model] = field(default_factory=dict)
    # Parcels of the model after each visit of the round, by names with hop and epoch; empty unless
    # the strategy `tests_every_visit`
    after_visits: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)  # the parcel with each hospital's buffer
    encoder: str = ""  # the parcel with the frozen arrays of all models; empty = none
    embeddings: dict[str, str] = field(default_factory=dict)  # the parcels, by task and hospital
    # The parcels with the class means that hospitals have sent in this round
    prototypes: dict[str, str] = field(default_factory=dict)
    # Pairs of a hospital and the hash of a buffer, encoder or list of members that it holds
    delivered: set[tuple[str, str]] = field(default_factory=set)
    # The visits that are under way. A checkpoint has none: they are ordered again.
    under_way: set[Visit] = field(default_factory=set)
    # For a method that does not wait: the models that each hospital will train, first one first.
    # Every model is in exactly one queue.
    queues: dict[str, list[str]] = field(default_factory=dict)
    # For a method that does not wait: the model that each hospital trained last
    last_trained: dict[str, str] = field(default_factory=dict)
    ordered: dict[str, FirstOrder] = field(default_factory=dict)  # by the key of the visit
    failed: list[str] = field(default_factory=list)  # the hospitals whose last visit failed
    resting: list[str] = field(default_factory=list)  # failed twice in a row, so they get no model
    finished: int = 0  # number of successful visits in this round
    under_test: dict[str, str] = field(default_factory=dict)  # parcels of models, by their names
    test_round: int = 0  # the round of these models; 0 = none
    # The models that each hospital tests, if a sample is drawn (`evaluate.cross`)
    sampled: dict[str, list[str]] = field(default_factory=dict)
    # For each tested parcel, by hospital: whether the hospital found it useless. It is kept until
    # the model is trained on.
    judgements: dict[str, dict[str, bool]] = field(default_factory=dict)
    answers_due: dict[str, int] = field(default_factory=dict)  # about tests; 0 = not asked yet
    clock: float = 0.0  # seconds of virtual time since the run began
    replayed: int = 0  # number of turns of the replayed run that are over

    @property
    def hospitals(self) -> list[str]:
        """All hospitals that ever took part, in order of their names."""
        return sorted(self.nodes)

    @property
    def ready(self) -> int:
        """The number of hospitals that have enrolled since the run began or was resumed."""
        return len(self.nodes) - list(self.nodes.values()).count(AWAY)

    @property
    def models_at(self) -> Mapping[str, str]:
        """The model at each place; the first one if there are several."""
        return {model.place: name for name, model in reversed(self.models.items())}

    def buffer_hash(self, hospital: str) -> str:
        """The hash of a hospital's buffer."""
        return self.shelf.label(self.buffers[hospital]).hash_of["buffer"]

    @property
    def encoder_hash(self) -> str:
        """The hash of the encoder; empty if there is none."""
        return self.shelf.label(self.encoder).hash_of["model"] if self.encoder else ""

    @property
    def encoder_arrays(self) -> Mapping[str, Array]:
        """The arrays of the encoder, by name; none if there is none."""
        parcel = self.shelf.get(self.encoder) if self.encoder else RecordDict()
        return find_record(parcel, "model", ArrayRecord) or {}

    def strip_encoder(self, parcel: str) -> RecordDict:
        """A parcel of the shelf as it travels: without the encoder."""
        whole = self.shelf.get(parcel)
        return drop_encoder(whole, self.encoder_arrays) if self.encoder else whole

    def undelivered_encoder(self, hospital: str) -> dict[str, ArrayRecord]:
        """The record `encoder` if a hospital does not hold it yet; else nothing."""
        if not self.encoder or (hospital, self.encoder_hash) in self.delivered:
            return {}
        return {"encoder": ArrayRecord({**self.encoder_arrays})}

    def note_delivered(self, hospital: str, hashes: Iterable[str], *, arrived: bool) -> None:
        """Note that a hospital holds records; after a failure, that it may have lost them."""
        held = {(hospital, hash_) for hash_ in hashes if hash_}
        if arrived:
            self.delivered |= held
        else:
            self.delivered -= held

    @property
    def parcels(self) -> Iterator[str]:
        """The names of all parcels that the run needs to go on."""
        for model in self.models.values():
            yield model.parcel
            if model.good:
                yield model.good
        yield from (first.sent for first in self.ordered.values())
        yield from self.after_visits.values()
        yield from self.under_test.values()
        yield from self.buffers.values()
        yield from self.embeddings.values()
        yield from self.prototypes.values()
        if self.encoder:
            yield self.encoder

    def to_json(self) -> dict[str, Any]:
        """The state in types that JSON has."""
        facts = {name: value for name, value in vars(self).items() if name not in _NOT_KEPT}
        models = {name: vars(model) for name, model in self.models.items()}
        ordered = {key: vars(first) for key, first in self.ordered.items()}
        return facts | {
            "models": models,
            "ordered": ordered,
            "delivered": sorted(self.delivered),
        }

    @classmethod
    def from_json(cls, facts: Any, shelf: Shelf) -> "State":
        """The state that `to_json` wrote; its hospitals must enrol again.

        Raises:
            ShapeError: The state is damaged, or of another version.
            ParcelError, ArchiveError, OSError: A parcel on the shelf is damaged or missing.
        """
        kept = from_value(facts, dict[str, object], "state")
        if odd := kept.keys() ^ ({each.name for each in fields(cls)} - _NOT_KEPT):
            raise ShapeError(f"'state' differs in {', '.join(sorted(odd)):.200}")
        state: State = from_value({**kept, "shelf": shelf}, cls, "state")
        state.nodes = dict.fromkeys(state.nodes, AWAY)
        state.withheld = dict.fromkeys(state.withheld, AWAY)
        shelf.check(state.parcels)
        return state


_NOT_KEPT = {"shelf", "under_way"}
