"""The state of a run: all that changes while it goes on. A checkpoint is this, written down.

Random numbers are no part of it: they follow from the seed, the round, the hop and the hospital.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from flwr.app import Array, ArrayRecord, RecordDict

from strategies.engine.shelf import Shelf
from strategies.engine.visit import Visit
from strategies.protocol.parcel import drop_encoder
from strategies.protocol.shapes import SHAPE, ShapeError, shaped

AWAY = 0  # no node's id: of hospitals that have not come back since the run was resumed


@dataclass(frozen=True)
class Model:
    """A travelling model, as its last good visit left it.

    Attributes:
        lineage: Its identity, named after its first hospital.
        place: The hospital that it is at, or `GLOBAL`.
        parcel: The name of its parcel on the shelf.
        previous: Where it was before; empty before the first visit.
        good: The parcel of the last good copy: the newest that another hospital than its maker has
            trained on, or the first. The lineage goes on there if the newest is of no use. Empty
            before the first visit.
        round: Of the last good visit; 0 = none yet.
        num_examples: Training images at the last good visit.
        turns: Visits that it was meant for, good or not, if it does not move in rounds.
    """

    lineage: str
    place: str
    parcel: str
    previous: str = ""
    good: str = ""
    round: int = 0
    num_examples: float = 0.0
    turns: int = 0


@dataclass
class State:
    """Where a run stands.

    Attributes:
        shelf: Where its parcels are; the other attributes name them.
        run: Identity of the run, for as long as it goes on.
        round: The round that goes on, from 1.
        hop: The hop of this round that was begun last, from 1; 0 = the round is still to begin.
        classes: Names of the federation's classes; fixed at the start.
        outputs: What the networks' outputs stand for: the classes, or what tasks make of them.
        shape: Channels, height and width of the images; fixed at the start.
        nodes: Flower's node id of each hospital that ever took part; it may change.
        withheld: The same of hospitals whose buffer may not leave; they are not asked for it again.
        keys: The public half of each hospital's keys.
        models: All models that travel, by a name of their own: the lineage, or for FedAvg's copies
            of one lineage the hospital.
        after_visits: Parcels of the model as it was after each visit of the round, by a name that
            says after which; empty unless the strategy `tests_every_visit`.
        buffers: The parcel that holds each hospital's buffer.
        encoder: The parcel with the arrays of all models that no visit changes; empty = none.
        embeddings: The parcels with what hospitals have sent to rehearse, by task and hospital.
        prototypes: The parcels with the class means that hospitals have sent in this round.
        delivered: Which hospital holds which buffer or encoder, by its hash.
        under_way: The visits that are going on. A checkpoint has none: they are ordered once more.
        queues: Of a method that does not wait: the models that each hospital is to train, first one
            first. Every model is in exactly one.
        ordered: Of each visit that is under way, by its key: the round in which it was ordered
            first, and when it ends in virtual time.
        sent: The round of the newest version of each model that each hospital was sent to train,
            by the key of the visit.
        failed: The hospitals whose last visit failed.
        resting: Those that failed twice in a row, and get no model until they are back.
        finished: How many visits of this round have succeeded.
        tested: The parcels of the models that are being tested, by name.
        tested_round: The round that they are of; 0 = none.
        sampled: Which of them each hospital tests, if a sample is drawn (`evaluate.cross`).
        found: Of each parcel that was tested, by hospital: whether it was found of no use.
        owing: How many answers each hospital still owes about them; 0 = it is still to be asked.
        clock: Seconds of virtual time since the run began.
        replayed: How many turns of the run that is replayed are over.
    """

    shelf: Shelf = field(metadata={SHAPE: object})
    run: str
    round: int = 1
    hop: int = 0
    classes: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    shape: list[int] = field(default_factory=list)
    nodes: dict[str, int] = field(default_factory=dict)
    withheld: dict[str, int] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    models: dict[str, Model] = field(default_factory=dict)
    after_visits: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)
    encoder: str = ""
    embeddings: dict[str, str] = field(default_factory=dict)
    prototypes: dict[str, str] = field(default_factory=dict)
    delivered: set[tuple[str, str]] = field(default_factory=set)
    under_way: list[Visit] = field(default_factory=list)
    queues: dict[str, list[str]] = field(default_factory=dict)
    ordered: dict[str, tuple[int, float]] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    resting: list[str] = field(default_factory=list)
    finished: int = 0
    tested: dict[str, str] = field(default_factory=dict)
    tested_round: int = 0
    sampled: dict[str, list[str]] = field(default_factory=dict)
    found: dict[str, dict[str, bool]] = field(default_factory=dict)
    owing: dict[str, int] = field(default_factory=dict)
    clock: float = 0.0
    replayed: int = 0

    @property
    def hospitals(self) -> list[str]:
        """All hospitals that ever took part, in order of their names."""
        return sorted(self.nodes)

    @property
    def ready(self) -> int:
        """How many hospitals have enrolled since the run was begun or resumed."""
        return len(self.nodes) - list(self.nodes.values()).count(AWAY)

    @property
    def models_at(self) -> Mapping[str, str]:
        """The model that is at each place; the first one if several are."""
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
        return parcel.array_records.get("model", {})

    def strip_encoder(self, parcel: str) -> RecordDict:
        """A parcel of the shelf as it travels."""
        whole = self.shelf.get(parcel)
        return drop_encoder(whole, self.encoder_arrays) if self.encoder else whole

    def undelivered_encoder(self, hospital: str) -> dict[str, ArrayRecord]:
        """The record `encoder` if a hospital does not hold it yet, else nothing."""
        if not self.encoder or (hospital, self.encoder_hash) in self.delivered:
            return {}
        return {"encoder": ArrayRecord({**self.encoder_arrays})}

    def note_delivered(self, hospital: str, hashes: Iterable[str], *, arrived: bool) -> None:
        """Note that a hospital holds what it was sent; if it failed, it may have lost it."""
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
        yield from self.after_visits.values()
        yield from self.tested.values()
        yield from self.buffers.values()
        yield from self.embeddings.values()
        yield from self.prototypes.values()
        if self.encoder:
            yield self.encoder

    def to_json(self) -> dict[str, Any]:
        """The state as JSON has it."""
        facts = {name: value for name, value in vars(self).items() if name not in _NOT_KEPT}
        models = {name: asdict(model) for name, model in self.models.items()}
        return facts | {"models": models, "delivered": sorted(self.delivered)}

    @classmethod
    def from_json(cls, facts: Any, shelf: Shelf) -> "State":
        """The state that `to_json` gave; its hospitals have to enrol once more.

        Raises:
            ShapeError: It was another version's, or is damaged.
            ParcelError, ArchiveError, OSError: A parcel on the shelf is damaged or missing.
        """
        kept = shaped(facts, dict[str, object], "state")
        if odd := kept.keys() ^ ({each.name for each in fields(cls)} - _NOT_KEPT):
            raise ShapeError(f"'state' differs in {', '.join(sorted(odd)):.200}")
        state: State = shaped({**kept, "shelf": shelf}, cls, "state")
        state.nodes = dict.fromkeys(state.nodes, AWAY)
        state.withheld = dict.fromkeys(state.withheld, AWAY)
        shelf.check(state.parcels)
        return state


_NOT_KEPT = {"shelf", "under_way"}
