"""What all strategies share: delivery, drop-outs, cross-evaluation. A method plans who gets what.

A round of a paper has one or more hops. At each hop every parcel moves once, along the route of the
hop's `Leg`, and is trained where it arrives. One round of Flower's `Strategy.start` is one hop.

The server holds the last good copy of every parcel, by the hospital that it is at. A hospital that
is away, fails, or answers with something undeclared does not hold the others up: the parcel that
was meant for it stays as it was, counts as being there, and moves on at the next hop.
"""

import time
import uuid
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import INFO

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from strategies.engine.buffers import Buffers
from strategies.engine.checkpoint import Checkpoint
from strategies.engine.courier import Courier, Delivery
from strategies.engine.events import Event, Journal
from strategies.engine.topology import Route
from strategies.protocol.classes import ordered
from strategies.protocol.code import code_hash
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.parcel import (
    Manifest,
    bundle,
    check_parcel,
    check_same_layout,
    check_sealed,
    count_bytes,
    parcel_in,
    unbundle,
)
from strategies.protocol.records import ParcelError, from_record, to_record
from strategies.protocol.settings import Settings, SettingsError

# Models are evaluated several at a time, but a message stays well below what Flower can carry.
EVALUATION_BYTES = 256 * 1024**2

AWAY = 0  # no node's id: of hospitals that have not come back since the run was resumed


class RunError(RuntimeError):
    """The run cannot start or go on."""


@dataclass(frozen=True)
class Leg:
    """What happens at one hop.

    Attributes:
        route: Which hospital receives the parcel of which.
        epochs: Passes over the receiver's training images.
        verb: The message type.
        replay: The hospitals whose buffers a hospital trains on beside its own images.
    """

    route: Route
    epochs: int
    verb: str = "train"
    replay: Mapping[str, Sequence[str]] = field(default_factory=dict)
    images: str = "own"
    leg: int = 1


@dataclass(frozen=True)
class Held:
    """A parcel, and what the server knows about it without opening it."""

    lineage: str
    parcel: RecordDict
    round: int = 0  # of the last visit; 0 = none yet
    num_examples: float = 0.0  # training images at the last visit


class PeerStrategy(Strategy):
    """A strategy that plans hops and leaves the rest to this class.

    A method overrides `plan`, and what differs from these defaults: `hops_in`, the name of its
    `learner` (learning.learners), `reads_models` (the server does, so that they cannot be
    sealed), `own_start` (each hospital's first model has initial weights of its own, instead of
    one start for all), `shares_buffers` (each hospital's first parcel holds synthetic images that
    stand for its own), `tests_after_visit` (hospitals test a model right after training it, because
    it is not handed on as it is) and `tests_every_visit` (the one model is tested as it was after
    each visit of the round).

    Args:
        settings: The settings of the run.
        grid: Flower's access to the hospitals.
        journal: Is told everything that happens.
    """

    learner = "plain"
    reads_models = False
    own_start = False
    tests_after_visit = False
    tests_every_visit = False

    def __init__(self, settings: Settings, grid: Grid, journal: Journal) -> None:
        self.settings = settings
        self.courier = Courier(grid, settings.hop_timeout, settings.prepare_timeout)
        self.journal = journal
        # A simulation has one owner, who sees everything anyway.
        self.sealed = settings.sealed and self.courier.others_may_join
        self.keys: dict[str, str] = {}  # the public half of each hospital's, by its name
        self.identity = uuid.uuid4().hex  # of the run, for as long as it goes on
        self.classes: list[str] = []  # in the order of the networks' outputs; fixed at the start
        self.nodes: dict[str, int] = {}  # Flower's node id of each hospital, which may change
        self.withheld: set[int] = set()  # nodes whose buffer may not leave, however often asked
        self.held: dict[str, Held] = {}  # last good copies, by the place they are at
        self.after_visits: dict[str, RecordDict] = {}  # the model after each visit of the round
        self.buffers = Buffers()
        # The hop that was begun last, from 1; 0 = the round is still to begin.
        self.round, self.hop = 1, 0

    @abstractmethod
    def plan(self, server_round: int, hop: int, hospitals: Sequence[str]) -> Leg:
        """What happens at a hop (rounds and hops count from 1)."""

    def finish_round(self, server_round: int) -> None:
        """What the server does after the last hop of a round; for most methods nothing."""

    def hops_in(self, server_round: int) -> int:
        """How many hops a round has, 1 or more; may change when a hospital joins."""
        return 1

    @property
    def buffer_size(self) -> int:
        """Synthetic images that each hospital renders before the first hop; for most methods 0."""
        return 0

    @property
    def images(self) -> str:
        return "own"

    @property
    def hospitals(self) -> list[str]:
        """All hospitals that ever took part, in order of their names."""
        return sorted(self.nodes)

    @property
    def parcels(self) -> dict[str, RecordDict]:
        """The last good parcel of each lineage."""
        return {held.lineage: held.parcel for held in self.held.values()}

    def run(self) -> None:
        """Do the whole run.

        Raises:
            RunError: There are too few hospitals, no visit succeeded, or in a simulation one
                cannot use the settings or its data.
            SimulationBroken: An actor of Flower's simulation died.
            SettingsError: The method needs a server that reads the models, and they are sealed or
                rounded.
        """
        if self.sealed and self.reads_models:
            raise SettingsError(
                f"The setting 'sealed' is true, and for '{self.settings.strategy}' the server must "
                "read the models: set it to false if all hospitals agree."
            )
        if self.settings.wire_dtype == "float16" and self.reads_models:
            raise SettingsError(
                f"The setting 'wire-dtype' is 'float16', in which '{self.settings.strategy}' would "
                "average models: set it to float32."
            )
        self.journal.keep(self.checkpoint())
        unusable = (Failure.SETTINGS, Failure.DATA)
        # Within a round nobody is new: what a method does with first models is done.
        failed = PeerStrategy.enrol(self) if self.hop else self.enrol()
        for delivery in failed:
            if delivery.failure in unusable and not self.courier.others_may_join:
                raise RunError(delivery.reason)
        ready = len(self.nodes) - list(self.nodes.values()).count(AWAY)
        if ready < self.settings.min_hospitals:
            reasons = " ".join(delivery.reason for delivery in failed)
            raise RunError(
                f"{ready} of {self.settings.min_hospitals} hospitals (min-hospitals) are ready. "
                f"{reasons}"
            )
        if self._ends_round:  # resumed between its last hop and its end
            messages = self.configure_evaluate(0, ArrayRecord(), ConfigRecord(), self.courier)
            self.aggregate_evaluate(0, self.courier.send_and_receive(messages))
        while hops := self._hops_left():  # more than were to come, if a hospital has joined
            self.start(self.courier, ArrayRecord(), num_rounds=hops)
        if not any(held.round for held in self.held.values()):
            raise RunError("No hospital has trained any model; see the failures above.")

    def summary(self) -> None:
        """Log what the run is going to do; called by `Strategy.start`."""
        log(INFO, "%d rounds at %s", self.settings.num_server_rounds, ", ".join(self.hospitals))

    # Checkpoints: after every hop, and at the end of every round.

    def checkpoint(self) -> Checkpoint:
        """What a run needs to go on; random numbers follow from the seed, the round and the hop."""
        return Checkpoint(
            {
                "identity": self.identity,
                "round": self.round,
                "hop": self.hop,
                "classes": self.classes,
                "hospitals": list(self.nodes),
                "held": {
                    place: [held.lineage, held.round, held.num_examples]
                    for place, held in self.held.items()
                },
                "buffers": self.buffers.facts,
            },
            {
                "held": {place: held.parcel for place, held in self.held.items()},
                "after_visits": self.after_visits,
                "buffers": self.buffers.parcels,
            },
        )

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Take the place of the strategy that gave a checkpoint; `run` does what is left."""
        facts, parcels = checkpoint.facts, checkpoint.parcels
        self.identity, self.classes = facts["identity"], facts["classes"]
        self.round, self.hop = facts["round"], facts["hop"]
        self.nodes = dict.fromkeys(facts["hospitals"], AWAY)  # until they have enrolled once more
        self.held = {
            place: Held(lineage, parcels["held"][place], round_, num_examples)
            for place, (lineage, round_, num_examples) in facts["held"].items()
        }
        self.after_visits = dict(parcels["after_visits"])
        self.buffers = Buffers(facts["buffers"], parcels["buffers"])

    # Enrolment: before the first hop, and for hospitals that come back or join later.

    def enrol(self) -> list[Delivery]:
        """Ask hospitals that are not known yet who they are and to prepare; take in their parcels.

        After a resume those that were there before come back at any time, others when a round
        begins.

        Returns:
            What became of those that are not ready; they are asked again in the next round.

        Raises:
            RunError: There are too few hospitals, two of one name, or fewer than two classes.
        """
        known = self.withheld.union(self.nodes.values())
        unknown = sorted(set(self._wait_for_hospitals()) - known)
        names, failed = self._get_to_know(unknown)
        names = {node: name for node, name in names.items() if not self.hop or name in self.nodes}
        if names:
            log(INFO, "%d hospitals prepare their models", len(names))
        orders = {
            node: replace(
                self._order(hospital),
                own_start=self.own_start,
                buffer_size=self.buffer_size,
                images=self.images,
            )
            for node, hospital in names.items()
        }
        for delivery in self._ask("query.prepare", orders):
            hospital = names[delivery.node]
            if (parcel := self._admit(delivery, 0, 0, hospital, hospital)) is None:
                failed.append(delivery)
                if delivery.failure == Failure.RELEASE:
                    self.withheld.add(delivery.node)
            else:
                self._welcome(hospital, delivery.node, parcel)
                if card := delivery.content.config_records.get("card"):
                    log(INFO, "%s: %s", hospital, card.get("release"))
        return failed

    def _get_to_know(self, nodes: Sequence[int]) -> tuple[dict[int, str], list[Delivery]]:
        """The name of the hospital at each node, and what became of those that do not take part.

        The first hospitals of a run settle its classes.
        """
        registered = {node.node_id: node.name for node in self.courier.get_nodes()}
        names: dict[int, str] = {}
        classes, failed = [], []
        orders = {
            node: replace(self._order(registered.get(node, "")), code=code_hash()) for node in nodes
        }
        for delivery in self._ask("query.enrol", orders):
            card = delivery.content.config_records.get("card", ConfigRecord())
            # One that failed did not say its name; it may be registered under one.
            hospital = registered.get(delivery.node) or f"node {delivery.node}"
            hospital = str(card.get("hospital", hospital))
            self._tell(_event(delivery, 0, 0, hospital, ""))
            if delivery.failure is None:
                names[delivery.node] = hospital
                self.keys[hospital] = str(card.get("identity", ""))
                theirs = card.get("classes")
                classes.append(list(map(str, theirs)) if isinstance(theirs, list) else [])
            else:
                failed.append(delivery)
        if names and not self.classes:
            self.classes = self.settings.class_names or agreed(classes)
            log(INFO, "The classes are %s", ", ".join(self.classes))
        return names, failed

    def _order(self, hospital: str, round_: int = 0, hop: int = 0) -> Order:
        """What all orders of a hop have in common."""
        return Order(
            *(round_, hop, hospital, self.classes, self.learner, self.identity),
            sealed=self.sealed,
            members=[f"{name} {key}" for name, key in sorted(self.keys.items())],
        )

    def _ask(self, verb: str, orders: Mapping[int, Order]) -> Iterable[Delivery]:
        return self.courier.send_and_receive(
            Message(RecordDict({"order": to_record(order)}), node, verb)
            for node, order in orders.items()
        )

    def _wait_for_hospitals(self) -> list[int]:
        """Node ids of all hospitals that can be reached, once there are enough of them."""
        wanted = self.settings.min_hospitals
        patience = self.settings.hop_timeout if self.courier.others_may_join else 0.0
        start = time.monotonic()
        while len(reachable := self.courier.reachable()) < wanted:
            if time.monotonic() - start > patience:
                raise RunError(
                    f"{len(reachable)} of {wanted} hospitals (min-hospitals) can be reached after "
                    f"{patience:g} seconds: start or simulate more (num-supernodes), or lower "
                    "min-hospitals."
                )
            log(INFO, "%d of %d hospitals can be reached, waiting", len(reachable), wanted)
            time.sleep(3)
        return sorted(reachable)

    def _welcome(self, hospital: str, node: int, parcel: RecordDict) -> None:
        if hospital in self.nodes and self.nodes[hospital] in self.courier.get_node_ids():
            raise RunError(
                f"Two hospitals are called '{hospital}': give each SuperNode its own site in its "
                "node-config, or register it under a name of its own."
            )
        parcel = self.buffers.take_from(hospital, parcel)
        if hospital not in self.nodes:
            self.held[hospital] = Held(hospital, parcel)
        self.nodes[hospital] = node

    # Training: one hop. `Strategy.start` calls these two.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Send every parcel of the hop on its way."""
        self._begin_hop()
        round_, hop = self.round, self.hop
        leg = self.plan(round_, hop, self.hospitals)
        reachable = self.courier.reachable()
        test = self.tests_after_visit and self._ends_round and self._evaluates(round_)
        snapshots = self._tests_visits_of(round_) and self.settings.evaluate.epochs
        messages = []
        for hospital, source in leg.route.items():
            held = self.held[source]
            if (node := self.nodes[hospital]) in reachable:
                replay = self.buffers.hashes(leg.replay.get(hospital, ()))
                order = replace(
                    self._order(hospital, round_, hop),
                    epochs=leg.epochs,
                    test=test,
                    snapshots=snapshots,
                    replay=replay,
                    buffer_size=self.buffer_size,
                    images=leg.images,
                    leg=leg.leg,
                )
                content = {**held.parcel, "order": to_record(order)}
                content |= self.buffers.missing(hospital, replay)
                messages.append(Message(RecordDict(content), node, leg.verb))
            else:
                self.journal.record(_absence(leg.verb, round_, hop, hospital, held.lineage))
        return messages

    def aggregate_train(  # type: ignore[override]  # the courier yields deliveries
        self, server_round: int, replies: Iterable[Delivery]
    ) -> tuple[None, None]:
        """Take the trained parcels in as they come, then move every parcel along the route."""
        round_, hop = self.round, self.hop
        route = self.plan(round_, hop, self.hospitals).route
        arrived: dict[str, Held] = {}
        for delivery in replies:
            hospital = self._hospital_at(delivery.node)
            lineage = self.held[route[hospital]].lineage
            parcel = self._admit(delivery, round_, hop, hospital, lineage)
            replay = from_record(Order, delivery.sent.config_records["order"]).replay
            self.buffers.note(hospital, replay, held=parcel is not None)
            if parcel is not None:
                num_examples = _metrics(delivery)["num-examples"]
                arrived[hospital] = Held(lineage, parcel, round_, num_examples)
                if self._tests_visits_of(round_):
                    versions = {**unbundle(delivery.content), "visit": parcel}
                    self.after_visits |= {
                        f"hop-{hop}-{name}": each for name, each in versions.items()
                    }
        self.held = move(self.held, route, arrived)
        if self._ends_round:
            self.finish_round(round_)
        self.journal.keep(self.checkpoint())
        return None, None

    # Evaluation, after the last hop of a round. `Strategy.start` calls these two.

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Send the models to the hospitals that test them."""
        round_, hop = self.round, self.hop
        if not (self._ends_round and self._evaluates(round_)):
            return []
        reachable = self.courier.reachable()
        messages = []
        for hospital, node in self.nodes.items():
            if node not in reachable:
                self.journal.record(_absence("evaluate", round_, hop, hospital, ""))
                continue
            batches = list(_batches(self._models_to_test(hospital, round_)))
            # Hospitals keep nothing from one message to the next.
            ensemble = self._tests_ensemble(round_) and len(batches) == 1
            order = to_record(replace(self._order(hospital, round_, hop), ensemble=ensemble))
            for batch in batches:
                content = {**bundle(batch, ["manifest", "model"]), "order": order}
                messages.append(Message(RecordDict(content), node, "evaluate"))
        return messages

    def aggregate_evaluate(  # type: ignore[override]  # the courier yields deliveries
        self, server_round: int, replies: Iterable[Delivery]
    ) -> None:
        """Note how every model did where, and who holds which model from now on."""
        round_, hop = self.round, self.hop
        for delivery in replies:
            hospital = self._hospital_at(delivery.node)
            tested = unbundle(delivery.sent)
            metrics = _metrics_by_model(delivery)
            if ensemble := metrics.get("ensemble"):
                event = Event("ensemble", round_, hop, hospital, metrics=ensemble)
                self.journal.record(event)
            share = {key: value / len(tested) for key, value in metrics.get("", {}).items()}
            answer = _event(delivery, round_, hop, hospital, "")
            for name, parcel in tested.items():
                label = from_record(Manifest, parcel.config_records["manifest"])
                event = replace(
                    answer,
                    hop=label.hop,
                    lineage=label.lineage,
                    metrics=share | metrics.get(name, {}),
                    seconds=delivery.seconds / len(tested),
                    bytes_sent=count_bytes(parcel),
                    epochs=label.epochs,
                )
                self.journal.record(event)
        if self._ends_round:
            self.after_visits = {}
            if self._evaluates(round_):
                for hospital, lineage in self.handed_on(round_).items():
                    self.journal.record(Event("hand-off", round_, hop, hospital, lineage))
            self.journal.round_finished(round_)
            self.round, self.hop = round_ + 1, 0
            self.journal.keep(self.checkpoint())

    def _evaluates(self, round_: int) -> bool:
        every, last = self.settings.evaluate.every, self.settings.num_server_rounds
        return round_ % every == 0 or round_ == last

    def _tests_visits_of(self, round_: int) -> bool:
        return self.tests_every_visit and self.settings.evaluate.cross and self._evaluates(round_)

    def _tests_ensemble(self, round_: int) -> bool:
        """Whether all models are to be tested together too."""
        settings = self.settings
        last = round_ == settings.num_server_rounds
        return (
            settings.evaluate.ensemble and settings.evaluate.cross and last and len(self.held) > 1
        )

    def handed_on(self, round_: int) -> dict[str, str]:
        """Which hospital receives which lineage for the round to come."""
        route = self.plan(round_ + 1, 1, self.hospitals).route
        return {hospital: self.held[source].lineage for hospital, source in route.items()}

    def _models_to_test(self, hospital: str, round_: int) -> dict[str, RecordDict]:
        if self.settings.evaluate.cross:
            return self.after_visits or self.parcels
        lineages = {self.handed_on(round_).get(hospital)}
        if hospital in self.held:
            lineages.add(self.held[hospital].lineage)
        return {name: parcel for name, parcel in self.parcels.items() if name in lineages}

    # Bookkeeping.

    def _hops_left(self) -> int:
        rounds = range(self.round, self.settings.num_server_rounds + 1)
        return sum(map(self.hops_in, rounds)) - self.hop

    @property
    def _ends_round(self) -> bool:
        return self.hop == self.hops_in(self.round)

    def _begin_hop(self) -> None:
        """Go on to the next hop: one round of Flower's is one hop."""
        if self.hop == 0:
            self.enrol()
        self.hop += 1

    def _tell(self, event: Event) -> None:
        """Record an event, if it is not what a hospital does once more after a resume."""
        if event.outcome != "ok" or self.nodes.get(event.hospital) != AWAY:
            self.journal.record(event)

    def _hospital_at(self, node: int) -> str:
        return next(hospital for hospital, id_ in self.nodes.items() if id_ == node)

    def _admit(
        self, delivery: Delivery, round_: int, hop: int, hospital: str, lineage: str
    ) -> RecordDict | None:
        """The parcel of an answer if it is a good one; either way the journal is told."""
        parcel = parcel_in(delivery.content)
        if delivery.failure is None:
            try:
                if check_parcel(parcel).lineage != lineage:
                    raise ParcelError(f"Expected a parcel of lineage '{lineage}'.")
                check_sealed([parcel, *unbundle(delivery.content).values()], self.sealed)
                if round_ == 0 and self.buffer_size and "buffer" not in parcel:
                    raise ParcelError("The hospital's first parcel has no buffer.")
                if "model" in delivery.sent:
                    _check_trained(delivery)
                    if not _metrics(delivery).get("num-examples", 0) > 0:
                        raise ParcelError("The metric 'num-examples' must be above 0.")
            except ParcelError as error:
                delivery = replace(delivery, failure=Failure.PARCEL, reason=str(error))
        self._tell(_event(delivery, round_, hop, hospital, lineage))
        return parcel if delivery.failure is None else None


def agreed(named: Iterable[list[str]]) -> list[str]:
    """One order of all classes that hospitals name; their own if all name the same.

    Raises:
        RunError: There are fewer than two.
    """
    lists = list(named)
    union = ordered(name for names in lists for name in names)
    if len(union) < 2:
        raise RunError(f"The hospitals have fewer than two classes together: {union}.")
    return lists[0] if all(names == lists[0] for names in lists) else union


def move(held: Mapping[str, Held], route: Route, arrived: Mapping[str, Held]) -> dict[str, Held]:
    """Move parcels along a route: trained where they arrived, as they were where they did not.

    Every parcel ends up at exactly one place if the route is a permutation of the places.
    """
    resting = {place: parcel for place, parcel in held.items() if place not in route.values()}
    moved = {place: arrived.get(place, held[source]) for place, source in route.items()}
    return {**resting, **moved}


def _check_trained(delivery: Delivery) -> None:
    """Refuse models that are not the one that was sent, after the visit that was ordered."""
    order = from_record(Order, delivery.sent.config_records["order"])
    expected = from_record(Manifest, delivery.sent.config_records["manifest"]).after(order)
    copies = {f"epoch-{k}": k for k in range(1, order.epochs)} if order.snapshots else {}
    answered = unbundle(delivery.content)
    if answered.keys() != copies.keys():
        raise ParcelError(f"Expected the copies {list(copies)}, there are {list(answered)}.")
    for name, parcel in {**answered, "": parcel_in(delivery.content)}.items():
        label = replace(expected, epochs=copies.get(name, order.epochs))
        if replace(check_parcel(parcel), hashes=[]) != replace(label, hashes=[]):
            raise ParcelError("The label of the model is not that of the visit that was ordered.")
        check_same_layout(parcel, delivery.sent)


def _event(delivery: Delivery, round_: int, hop: int, hospital: str, lineage: str) -> Event:
    return Event(
        verb=delivery.verb,
        round=round_,
        hop=hop,
        hospital=hospital,
        lineage=lineage,
        outcome=delivery.failure.name.lower() if delivery.failure else "ok",
        reason=delivery.reason,
        metrics=_metrics(delivery),
        seconds=delivery.seconds,
        bytes_sent=delivery.bytes_sent,
        bytes_received=delivery.bytes_received,
        epochs=from_record(Order, delivery.sent.config_records["order"]).epochs,
    )


def _metrics(delivery: Delivery) -> dict[str, float]:
    record = delivery.content.metric_records.get("metrics", MetricRecord())
    return {key: float(value) for key, value in record.items() if not isinstance(value, list)}


def _metrics_by_model(delivery: Delivery) -> dict[str, dict[str, float]]:
    """What an answer says about each of several models, and under "" what it says of all."""
    found: dict[str, dict[str, float]] = {}
    for key, value in _metrics(delivery).items():
        name, _, metric = key.rpartition("/")
        found.setdefault(name, {})[metric] = value
    return found


def _absence(verb: str, round_: int, hop: int, hospital: str, lineage: str) -> Event:
    outcome, reason = Failure.GONE.name.lower(), "The hospital cannot be reached."
    return Event(verb, round_, hop, hospital, lineage, outcome, reason)


def _batches(models: Mapping[str, RecordDict]) -> Iterator[dict[str, RecordDict]]:
    """Cut models into batches that are not much larger than `EVALUATION_BYTES`."""
    batch: dict[str, RecordDict] = {}
    size = 0
    for lineage, parcel in models.items():
        batch[lineage] = parcel
        size += count_bytes(parcel)
        if size >= EVALUATION_BYTES:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch
