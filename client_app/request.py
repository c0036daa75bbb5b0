"""A request: a message from the server, its time limit, and its hospital."""

import logging
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from client_app.authority.members import announced_members
from client_app.authority.permission import admit
from client_app.authority.privacy_account import Spent, spend
from client_app.authority.sealing import Seal, seal_for
from client_app.hospital import Hospital
from client_app.run import check_same, run_folder
from client_app.session import session_for
from client_app.store import Store
from learning.learners import LEARNERS
from learning.learners.plain import Learner
from strategies.engine.orders import find_timeout
from strategies.protocol.code import code_hash
from strategies.protocol.may_leave import metric_of
from strategies.protocol.order import Order
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import SettingsError


@lru_cache(maxsize=1024)  # a server chooses some of the texts
def log_once(text: str) -> None:
    """Write a text into the hospital's own log, once per process unless many others follow."""
    logging.getLogger("flwr").info(text)


class Clock:
    """The clock of one message, which expires after `allowed` seconds. Starts on arrival."""

    def __init__(self, allowed: float) -> None:
        self.deadline = time.monotonic() + allowed
        self.seconds: dict[str, float] = {}  # measured seconds, by metric

    @contextmanager
    def measure(self, what: str) -> Iterator[None]:
        """Add the time of the block to the metric `seconds-<what>`."""
        start = time.perf_counter()
        yield
        spent = self.seconds.get(f"seconds-{what}", 0.0) + time.perf_counter() - start
        self.seconds[f"seconds-{what}"] = spent


@dataclass(frozen=True)
class Inquiry:
    """All that a hospital needs to test models, for the server or for itself."""

    verb: str  # the message type; empty if the hospital asks itself
    order: Order  # the order; `order.hospital` is the hospital's own name
    clock: Clock  # the clock, which runs since the question came
    hospital: Hospital
    run: Store  # the run's part of the hospital's store
    seal: Seal | None  # the keys for parcels; None if parcels are not sealed

    @property
    def is_rewind(self) -> bool:
        """Whether this is the rewind leg of another hospital's model, which leaves nothing here."""
        return self.verb == "train.rewind"


@dataclass(frozen=True)
class Request(Inquiry):
    """An inquiry that came in a message from the server."""

    message: Message

    @classmethod
    def open(cls, message: Message, context: Context, clock: Clock) -> "Request":
        """Open the hospital of a message.

        Raises:
            SettingsError: The server runs other code, or settings cannot be used, or have changed.
            PolicyError: The run asks for more than the hospital allows.
            DataError: The hospital's images cannot be used, or have changed during the run.
            ParcelError: The order cannot be carried out.
        """
        order = Order.read(message.content)
        if order.learner not in LEARNERS:
            raise ParcelError(f"There is no learner '{order.learner:.80}' at this hospital.")
        verb = message.metadata.message_type
        joining = verb == "query.enrol"
        if joining and order.code != code_hash():
            raise SettingsError(
                f"The hospital runs other code than the server. The hospital's is {code_hash()!a}, "
                f"the server's {order.code[:64]!a}. In a deployment it runs the version that it "
                "has approved. In a simulation, a local SuperLink that was started in another "
                "folder runs that folder's code: stop it and run again."
            )
        session = session_for(context, order.hospital, tuple(order.classes), order.run)
        hospital = admit(session.hospital, session.strategy, verb, order)
        if hospital.policy:
            allowed = find_timeout(session.strategy.settings, verb)[1]
            # In this order: the server's time to live may be NaN, and `min` would keep a first NaN.
            clock.deadline = min(time.monotonic() + allowed, clock.deadline)
        run = run_folder(hospital.store, order.run)
        # In a simulation the owner may change settings and classes.
        terms, classes = (context.run_config, order.classes) if hospital.policy else ({}, [])
        check_same(run, session.images, terms, classes)
        order = replace(order, hospital=hospital.name, members=announced_members(run, order))
        return cls(verb, order, clock, hospital, run, seal_for(hospital, order), message)

    @property
    def learner(self) -> type[Learner]:
        """The local objective that the order names."""
        return LEARNERS[self.order.learner]

    @property
    def visit(self) -> tuple[int, int]:
        """The round and the hop of the order."""
        return self.order.round, self.order.hop

    def spend(self, spent: Spent, delta: float) -> float:
        """Note a release with noise in the privacy account; returns ε of all releases at this δ.

        In a simulation each run has an account of its own, without a limit.
        """
        policy = self.hospital.policy
        folder = self.hospital.store.folder if policy else self.run.folder
        return spend(folder, spent, delta, policy.privacy if policy else None)

    def answer(
        self,
        metrics: Mapping[str, float],
        parcel: RecordDict | None = None,
        card: Mapping[str, str | list[str] | list[int]] | None = None,
    ) -> Message:
        """The answer to the message, with the measured seconds.

        Withheld figures (`figures.withheld`) and their intervals do not leave.
        """
        policy = self.hospital.policy
        withheld = policy.figures.withheld if policy else ()
        leaving: dict[str, Any] = {**metrics, **self.clock.seconds}
        if withheld:
            log_once(f"Withheld by the policy: {', '.join(withheld)}.")
            leaving = {
                key: value for key, value in leaving.items() if not _names(key) & {*withheld}
            }
        content = RecordDict({**(parcel or {}), "metrics": MetricRecord(leaving)})
        if card:
            content["card"] = ConfigRecord({**card})
        return Message(content, reply_to=self.message)


def _names(key: str) -> set[str]:
    """The figures whose withholding also withholds this metric.

    An interval or noise belongs to its figure, a figure of a task to the figure of all tasks, and
    a figure after a visit to the figure after a round.
    """
    name = re.sub("-(low|high|noise)$", "", metric_of(key))
    of_task = name.replace("-in-task-#", "-of-task-#")
    return {name, of_task, re.sub("-(of-task-#|after-visit)$", "", of_task)}
