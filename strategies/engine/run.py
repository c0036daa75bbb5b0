"""One run: what the parts of the engine work with, and how they write to hospitals."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from strategies.engine.courier import Courier, Letter
from strategies.engine.events import Event, Journal
from strategies.engine.orders import check_order, timeout_of
from strategies.engine.state import AWAY, State
from strategies.engine.strategy import Strategy
from strategies.engine.visit import Visit
from strategies.protocol.order import Order, hash_members
from strategies.protocol.records import to_record
from strategies.protocol.settings import Settings
from strategies.protocol.streams import arrived

AboutT = TypeVar("AboutT")
Content = Mapping[str, ArrayRecord | ConfigRecord | MetricRecord]


@dataclass(frozen=True)
class Ordered:
    """A visit that is under way.

    Attributes:
        visit: The visit.
        order: The order that asks for it.
        sent: The parcel that goes there, on the shelf.
        ends: When it ends in virtual time.
    """

    visit: Visit
    order: Order
    sent: str
    ends: float


@dataclass(frozen=True)
class Run:
    """What a run is made of.

    Attributes:
        settings: Its settings.
        strategy: Its method.
        state: Where it stands; what changes is in there.
        courier: Its way to the hospitals.
        journal: Is told everything that happens.
    """

    settings: Settings
    strategy: Strategy
    state: State
    courier: Courier
    journal: Journal

    @property
    def sealed(self) -> bool:
        """Whether parcels travel sealed. A simulation has one owner, who sees everything anyway."""
        return self.settings.sealed and not self.courier.simulates

    @property
    def members(self) -> list[str]:
        """The hospitals and their keys, as orders announce them; none unless parcels are sealed."""
        keys = self.state.keys if self.sealed else {}
        return [f"{name} {key}" for name, key in sorted(keys.items())]

    def order(self, hospital: str, at: int = 0, **changes: Any) -> Order:
        """What the server asks of a hospital, with what all orders have in common.

        Before the first round, in which hospitals prepare whenever they join, the first task's
        images are there.

        Args:
            hospital: Its name.
            at: The round whose images are there, if it is not that of the order.
            changes: What differs.
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
            arrived=arrived(self.settings, tested, self.state.hospitals) if tested else [],
            images=self.strategy.images,
            buffer_size=self.strategy.buffer_size,
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
        """A message with an order and what is laid beside it when it is sent."""

        def write() -> RecordDict:
            return RecordDict({**content(), "order": to_record(order)})

        setting, limit = timeout_of(self.settings, verb)
        check_order(self.strategy, verb, order, order.hospital, sealed=self.sealed)
        return Letter(node, verb, about, write, limit, setting, order.hospital)

    def tell(self, event: Event) -> None:
        """Record an event, unless it repeats enrolment after a resume."""
        repeats = event.outcome == "ok" and self.state.nodes.get(event.hospital) == AWAY
        if not repeats:
            self.journal.record(event)

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
        """Whether the model of every visit of this round is going to be tested."""
        chosen = self.strategy.tests_every_visit and self.settings.evaluate.cross is True
        return chosen and self.evaluates
