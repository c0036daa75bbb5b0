"""One run: the objects that the parts of the engine share, and the messages to hospitals."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from strategies.engine.courier import Courier, Letter
from strategies.engine.events import Event, Journal
from strategies.engine.orders import check_order, find_timeout
from strategies.engine.state import AWAY, State
from strategies.engine.strategy import Strategy
from strategies.engine.visit import Visit
from strategies.protocol.order import Order, hash_members
from strategies.protocol.records import to_record
from strategies.protocol.settings import Settings

AboutT = TypeVar("AboutT")
Content = Mapping[str, ArrayRecord | ConfigRecord | MetricRecord]


@dataclass(frozen=True)
class Ordered:
    """A visit that is under way."""

    visit: Visit  # the visit
    order: Order  # the order that asks for it
    sent: str  # the parcel that is sent, by its name on the shelf
    ends: float  # its end, in seconds of virtual time


@dataclass(frozen=True)
class Run:
    """A run."""

    settings: Settings  # its settings
    strategy: Strategy  # its method
    state: State  # its state, with everything that changes
    courier: Courier  # its connection to the hospitals
    journal: Journal  # the recorder of its events

    @property
    def sealed(self) -> bool:
        """Whether parcels travel sealed; never in a simulation, whose owner sees everything."""
        return self.settings.sealed and not self.courier.simulates

    @property
    def members(self) -> list[str]:
        """The hospitals and their keys, as in `Order.members`; empty unless parcels are sealed."""
        keys = self.state.keys if self.sealed else {}
        return [f"{name} {key}" for name, key in sorted(keys.items())]

    def order(self, hospital: str, at: int = 0, **changes: Any) -> Order:
        """An order for a hospital, with the fields that all orders share.

        In round 0 hospitals prepare, whenever they join; the images of the first task are there.
        `at` is the round whose images are there; 0 = the round of the order.
        """
        tested = at or changes.get("round", 0)
        members = self.members
        hash_ = hash_members(members) if members else ""
        common = Order(
            round=0,
            hop=0,
            hospital=hospital,
            classes=self.state.classes,
            learner=self.strategy.learner,
            run=self.state.run,
            task=self.strategy.task_at(tested, hospital),
            arrived=self.strategy.arrived_tasks(tested, self.state.hospitals) if tested else [],
            images=self.strategy.images,
            buffer_size=self.strategy.buffer_size,
            asynchronous=self.settings.asynchronous,
            encoder=self.state.encoder_hash,
            sealed=self.sealed,
            members=[] if (hospital, hash_) in self.state.delivered else members,
            members_hash=hash_,
        )
        return replace(common, **changes)

    def letter(
        self,
        verb: str,
        node: int,
        order: Order,
        about: AboutT,
        content: Callable[[], Content] = dict,
    ) -> Letter[AboutT]:
        """A message with an order; `content` makes its other records when it is sent."""

        def write() -> RecordDict:
            return RecordDict({**content(), "order": to_record(order)})

        setting, limit = find_timeout(self.settings, verb)
        check_order(self.strategy, verb, order, order.hospital, sealed=self.sealed)
        return Letter(node, verb, about, write, limit, setting, order.hospital)

    def tell(self, event: Event) -> None:
        """Record an event, unless it repeats enrolment after a resume."""
        repeats = event.outcome == "ok" and self.state.nodes.get(event.hospital) == AWAY
        if not repeats:
            self.record(event)

    def record(self, event: Event) -> None:
        """Record an event, with virtual times if the run is in virtual time."""
        if self.in_virtual_time:
            now = self.state.clock
            event = replace(event, began=now if isnan(event.began) else event.began, time=now)
        self.journal.record(event)

    @cached_property
    def in_virtual_time(self) -> bool:
        """Whether visits take the seconds of `async.seconds`."""
        return bool(self.settings.asynchrony.seconds)

    @property
    def evaluates(self) -> bool:
        """Whether models are tested after this round."""
        round_ = self.state.round
        return round_ % self.settings.evaluate.every == 0 or self.is_last_round

    @property
    def is_last_round(self) -> bool:
        """Whether no round comes after this one."""
        return self.state.round == self.settings.num_server_rounds

    @property
    def tests_every_visit(self) -> bool:
        """Whether the model is tested after each visit of this round."""
        chosen = self.strategy.tests_every_visit and self.settings.evaluate.cross is True
        return chosen and self.evaluates
