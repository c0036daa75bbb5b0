"""The courier carries messages to hospitals and brings back what became of each of them.

It stands before Flower's Grid, for three reasons. Flower's own `send_and_receive` sleeps up to 3
seconds between two looks at the mailbox; it hands over nothing before everything is there; and a
simulated hospital that is sent two messages works on both at once. The courier looks in time with
the answers, yields each as it comes, and keeps at most one message at a hospital. It also knows who
can be reached: a SuperNode can be connected, and wait for ever for an answer that does not come.

Whatever goes wrong with a message ends up as a `Delivery` with a `failure`, never as an exception,
except `SimulationBroken`: Flower's simulation cannot go on after the loss of one of its actors.
"""

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import Generic, TypeVar

from flwr.app import Error, Message, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from strategies.engine.flower import InMemoryGrid, Run
from strategies.protocol.may_leave import Failure, UndeclaredError, check_answer
from strategies.protocol.names import join_names
from strategies.protocol.parcel import count_bytes
from strategies.protocol.text import printable

# Seconds between two looks at the mailbox: a share of the time waited so far, so that looking costs
# little and an answer lies there for a small part of the time that it took.
PAUSE_SHARE, SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 0.01, 0.5
# Seconds that a hospital may take to say that it is there: one that has not said so before may
# still be starting.
LIVE_TIMEOUT, FIRST_LIVE_TIMEOUT = 60.0, 300.0
# Simulated hospitals are sent so many messages at once, or more up to so many bytes of arrays: far
# more than a machine works on at a time, and not the models of a thousand.
AT_ONCE, AT_ONCE_BYTES = 64, 256 * 1024**2
LOOK_ROUND = 3.0  # seconds between two looks at who has come or is back
GRACE = 5.0  # seconds after a message's time to live in which Flower itself may say that it is over

# Codes of Flower's own errors (its enum ErrorCode is not public).
_FLOWER_FAILURES = {
    1: Failure.CRASHED,
    2: Failure.CRASHED,
    3: Failure.TIMEOUT,
    5: Failure.GONE,
    8: Failure.CRASHED,
}
_UNKNOWN = 0  # Flower's code for whatever goes wrong with an actor of its simulation

AboutT = TypeVar("AboutT")


class SimulationBroken(RuntimeError):
    """An actor of the simulation died; Flower would fail every message it hands to it."""


class LocalGrid(Grid):
    """A grid of simulated hospitals that says at once when an answer has come."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Wait until an answer has come, but no longer than some seconds."""

    def set_run(self, run: Run) -> None:
        """Flower's own loops do that; the courier does not."""
        raise NotImplementedError

    @property
    def run(self) -> Run:
        """As `set_run`."""
        raise NotImplementedError

    def create_message(self, *_: object, **__: object) -> Message:
        """As `set_run`; messages are made by their own class."""
        raise NotImplementedError

    def send_and_receive(self, *_: object, **__: object) -> Iterable[Message]:
        """As `set_run`; the courier does it."""
        raise NotImplementedError


@dataclass(frozen=True)
class Letter(Generic[AboutT]):
    """A message that is still to be written.

    Attributes:
        node: Flower's id of the hospital's node.
        verb: The message type.
        about: What the sender wants to know it by.
        write: Makes the content, when the message is sent.
        limit: Seconds the hospital may take to answer,
        setting: and the setting that says so.
        hospital: The hospital's name; empty if it is not known yet.
    """

    node: int
    verb: str
    about: AboutT
    write: Callable[[], RecordDict]
    limit: float
    setting: str
    hospital: str = ""


@dataclass(frozen=True)
class Awaited:
    """An answer that has not come yet.

    Attributes:
        hospital: Whose; empty if the hospital's name is not known yet.
        verb: The message type.
        since: When the message was sent, in the time of `time.monotonic`.
    """

    hospital: str
    verb: str
    since: float


@dataclass(frozen=True)
class Delivery(Generic[AboutT]):
    """What became of one message.

    Attributes:
        letter: The message.
        content: The content that came back; empty if the hospital failed.
        failure: Why the hospital did not do its part; None if it did.
        reason: The failure in words; empty if there is none.
        seconds: From sending to answer.
        bytes_sent: Bytes of the arrays that went out.
    """

    letter: Letter[AboutT]
    content: RecordDict
    failure: Failure | None
    reason: str
    seconds: float
    bytes_sent: int

    @property
    def bytes_received(self) -> int:
        """Bytes of the arrays that came back."""
        return count_bytes(self.content)


@dataclass(frozen=True)
class _Outstanding(Generic[AboutT]):
    letter: Letter[AboutT]
    since: float  # time.monotonic()
    bytes_sent: int

    def delivery(self, reply: Message, seconds: float, simulates: bool) -> Delivery[AboutT]:
        """Judge an answer."""
        if reply.has_error():
            return self.failed(*_failure_of(reply.error, simulates), seconds)
        try:
            check_answer(self.letter.verb, reply.content)
        except UndeclaredError as error:
            return self.failed(Failure.UNDECLARED, str(error), seconds)
        return Delivery(self.letter, reply.content, None, "", seconds, self.bytes_sent)

    def failed(self, failure: Failure, reason: str, seconds: float) -> Delivery[AboutT]:
        return Delivery(self.letter, RecordDict(), failure, reason, seconds, self.bytes_sent)


class Courier:
    """Carries messages between the engine and Flower's Grid.

    Args:
        grid: The grid of the run.
        waits_for: Is told again and again which answers have not come yet.
    """

    def __init__(
        self, grid: Grid, waits_for: Callable[[Sequence[Awaited]], None] = lambda awaited: None
    ) -> None:
        self.grid = grid
        self.waits_for = waits_for
        self.pause = grid.wait if isinstance(grid, LocalGrid) else time.sleep
        self.answering: set[int] = set()  # nodes whose last message was answered in time
        self._heard: set[int] = set()  # nodes that have answered at any time
        self.at_work: set[int] = set()  # nodes that have a message

    @property
    def simulates(self) -> bool:
        """Whether the hospitals are simulated: all are there from the start, and no others join."""
        return isinstance(self.grid, InMemoryGrid | LocalGrid)

    def connected(self) -> dict[int, str]:
        """The nodes that are connected, and the names under which they are registered."""
        return {node.node_id: node.name or f"node {node.node_id}" for node in self.grid.get_nodes()}

    def reachable(self) -> set[int]:
        """Nodes that are connected and take messages.

        Those that have not answered their last message in time, or never had one, are asked;
        simulated ones take messages by construction.
        """
        connected = set(self.grid.get_node_ids())
        if self.simulates:
            return connected
        asked = connected - self.answering - self.at_work
        names = self.connected() if asked else {}
        list(self.exchange(self.live(n, None, names.get(n, "")) for n in sorted(asked)))
        if silent := asked - self.answering:
            named = join_names([names.get(node, f"node {node}") for node in sorted(silent)])
            log(WARNING, "Connected, but busy or stuck, and passed over: %s", named)
        return connected & self.answering

    def live(self, node: int, about: AboutT, hospital: str) -> Letter[AboutT]:
        """A message that asks a node whether it takes messages."""
        limit = LIVE_TIMEOUT if node in self._heard else FIRST_LIVE_TIMEOUT
        setting = "time to say that it takes messages"
        return Letter(node, "query.live", about, RecordDict, limit, setting, hospital)

    def answering_now(self) -> set[int]:
        """Nodes that are connected and have answered their last message: nobody is asked."""
        connected = set(self.grid.get_node_ids())
        return connected if self.simulates else connected & self.answering

    def exchange(self, letters: Iterable[Letter[AboutT]]) -> Iterator[Delivery[AboutT]]:
        """Send messages, and yield what becomes of each."""
        exchange: Exchange[AboutT] = Exchange(self)
        exchange.post(letters)
        yield from exchange.deliveries()

    def missed(self, node: int) -> None:
        """Take note that a node could not be reached: it is asked before it is sent anything."""
        self.answering.discard(node)

    def heard(self, delivery: Delivery[AboutT]) -> None:
        """Take note of who answers."""
        node = delivery.letter.node
        if delivery.failure in (Failure.TIMEOUT, Failure.GONE):
            self.answering.discard(node)
        else:
            self.answering.add(node)
            self._heard.add(node)


class Exchange(Generic[AboutT]):
    """Messages that are under way together, to each hospital one at a time.

    Args:
        courier: Carries them.
        meanwhile: Is called every `LOOK_ROUND` seconds while an answer is waited for.
    """

    def __init__(self, courier: Courier, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.courier = courier
        self.meanwhile = meanwhile
        self._queues: dict[int, deque[Letter[AboutT]]] = {}
        self._outstanding: dict[str, _Outstanding[AboutT]] = {}
        self._busy: set[int] = set()  # nodes of those messages
        self._bytes = 0  # of those messages
        self._finished: deque[Delivery[AboutT]] = deque()
        self._looked = time.monotonic()

    @property
    def later(self) -> Collection[str]:
        """The hospitals that take no part yet, though they may be connected."""
        return ()

    def post(self, letters: Iterable[Letter[AboutT]]) -> None:
        """Hand messages over; also while deliveries are taken."""
        for letter in letters:
            self._queues.setdefault(letter.node, deque()).append(letter)

    def withdraw(self, verb: str) -> list[Letter[AboutT]]:
        """Take back the messages of a verb that were not sent yet."""
        unsent = [each for queue in self._queues.values() for each in queue if each.verb == verb]
        left = {
            node: deque(each for each in queue if each.verb != verb)
            for node, queue in self._queues.items()
        }
        self._queues = {node: queue for node, queue in left.items() if queue}
        return unsent

    def deliveries(self) -> Iterator[Delivery[AboutT]]:
        """What becomes of each message, as soon as it is known, until none is under way."""
        while self._queues or self._outstanding or self._finished:
            yield self.take()

    def take(self) -> Delivery[AboutT]:
        """Wait for what becomes of the next message; there must be one."""
        last_answer = time.monotonic()
        while not self._finished:
            self._send_waiting()
            if not self._finished:
                self._finished.extend(self._collect())
            now = time.monotonic()
            if now - self._looked >= LOOK_ROUND:
                self._looked = now
                self.meanwhile()
            if self._finished:
                break
            self.courier.waits_for(
                [
                    Awaited(each.letter.hospital, each.letter.verb, each.since)
                    for each in self._outstanding.values()
                ]
            )
            pause = min(max(PAUSE_SHARE * (now - last_answer), SHORTEST_PAUSE), LONGEST_PAUSE)
            self.courier.pause(pause)
        delivery = self._finished.popleft()
        if not (self._finished or self._outstanding or self._queues):
            self.courier.waits_for([])
        self.courier.heard(delivery)
        return delivery

    @property
    def _has_room(self) -> bool:
        """Whether one more message may be under way; in a deployment always."""
        few = len(self._outstanding) < AT_ONCE or self._bytes < AT_ONCE_BYTES
        return few or not self.courier.simulates

    def _send_waiting(self) -> None:
        """Send as many messages as there is room for."""
        for node in [*self._queues] if self._has_room else ():
            if node not in self._busy and self._has_room:
                self._send(node)

    def _send(self, node: int) -> None:
        """Send the first message for a hospital that can be sent."""
        queue = self._queues[node]
        while queue:
            letter = queue.popleft()
            # The time to live counts from when a message is made.
            message = Message(letter.write(), node, letter.verb, ttl=letter.limit)
            sent = _Outstanding(letter, time.monotonic(), count_bytes(message.content))
            # Flower gives no id, or an empty one, for a node that it does not know.
            message_ids = [text for text in self.courier.grid.push_messages([message]) if text]
            if message_ids:
                self._outstanding[message_ids[0]] = sent
                self.courier.at_work.add(node)
                self._busy.add(node)
                self._bytes += sent.bytes_sent
                break
            gone = sent.failed(Failure.GONE, "The hospital is not connected.", 0.0)
            self._finished.append(gone)
        if not queue:
            del self._queues[node]

    def _collect(self) -> Iterator[Delivery[AboutT]]:
        """Take from the mailbox what has come, and give up what will not come any more."""
        if not self._outstanding:
            return
        for reply in self.courier.grid.pull_messages(list(self._outstanding)):
            if (sent := self._ended(reply.metadata.reply_to_message_id)) is not None:
                seconds = time.monotonic() - sent.since
                yield sent.delivery(reply, seconds, self.courier.simulates)
        for message_id, sent in list(self._outstanding.items()):
            seconds = time.monotonic() - sent.since
            if seconds > sent.letter.limit + GRACE:
                self._ended(message_id)
                reason = f"No answer within {sent.letter.limit:g} seconds ({sent.letter.setting})."
                yield sent.failed(Failure.TIMEOUT, reason, seconds)

    def _ended(self, message_id: str) -> _Outstanding[AboutT] | None:
        """Take note that nothing more comes of a message; what it was, None if it is not known."""
        if (sent := self._outstanding.pop(message_id, None)) is not None:
            self.courier.at_work.discard(sent.letter.node)
            self._busy.discard(sent.letter.node)
            self._bytes -= sent.bytes_sent
        return sent


def _failure_of(error: Error, simulates: bool) -> tuple[Failure, str]:
    # A hospital may have written it: one line of a length that a log can take.
    reason = printable(" ".join((error.reason or "").split()))[:1000] or "no reason given"
    # In a deployment no code of Flower's has this text: only a hospital could send it.
    if simulates and error.code == _UNKNOWN and "ActorDiedError" in reason:
        raise SimulationBroken(
            "A process of the simulation died, most often because memory ran out: simulate fewer "
            "hospitals at once (--federation-config client-resources-num-cpus=...)."
        )
    if error.code in list(Failure):
        return Failure(error.code), reason
    return _FLOWER_FAILURES.get(error.code, Failure.CRASHED), reason
