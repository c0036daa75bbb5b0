"""The courier sends messages to hospitals and returns the outcome of each.

It wraps Flower's Grid for three reasons. Flower's `send_and_receive` sleeps up to 3 seconds between
two looks at the mailbox. It returns no answer before all answers are there. And a simulated
hospital works on two messages at once. The courier adapts its pauses to the answers, yields each
answer as it comes, and keeps at most one message at a hospital. It also finds the hospitals that
take messages: a connected SuperNode may wait for ever for an answer that does not come.

The failure of a message is a `Delivery` with a `failure`, and no exception; so is an answer that
cannot be read. Two exceptions pass: `SimulationBroken`, because Flower's simulation cannot go on
after the loss of one of its actors, and the Grid's own if the SuperLink is lost.
"""

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from logging import WARNING
from typing import Any, Generic, TypeVar

from flwr.app import Error, Message, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from strategies.engine.flower import is_simulation
from strategies.protocol.may_leave import Failure, UndeclaredError, check_answer
from strategies.protocol.names import join_names
from strategies.protocol.records import count_bytes
from strategies.protocol.text import printable

# Seconds between two looks at the mailbox: a share of the time waited so far.
PAUSE_SHARE, SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 0.01, 0.5
# A pause is at least so many times as long as the last look: in a deployment a look has one request
# for each message under way.
PAUSE_AFTER_LOOK = 4.0
# Seconds in which a hospital must answer that it takes messages; at first it may still be starting.
LIVE_TIMEOUT, FIRST_LIVE_TIMEOUT = 60.0, 300.0
# Messages under way to simulated hospitals: so many, or more while their arrays have fewer bytes.
# A machine cannot hold the models of a thousand hospitals.
AT_ONCE, AT_ONCE_BYTES = 64, 256 * 1024**2
LOOK_ROUND = 3.0  # seconds between two searches for hospitals that are new or back
GRACE = 5.0  # seconds after a message's time to live, in which Flower itself may report its end

# Codes of Flower's own errors (its enum ErrorCode is not public); all others are crashes.
_UNKNOWN = 0  # any error of a simulation's actor
_FLOWER_FAILURES = {3: Failure.TIMEOUT, 5: Failure.GONE}

AboutT = TypeVar("AboutT")


class SimulationBroken(RuntimeError):
    """An actor of the simulation died; Flower would fail each message for this actor."""


class LocalGrid(Grid):
    """A grid of simulated hospitals that reports an answer at once."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Wait until an answer has come, at most `seconds`."""

    @abstractmethod
    def has_begun(self, message_id: str) -> bool:
        """Whether a process has the message; before, it waits for an idle one."""

    # Flower's own loops use these, the courier does not.
    set_run: Any = None
    run: Any = None
    create_message: Any = None
    send_and_receive: Any = None


@dataclass(frozen=True)
class Letter(Generic[AboutT]):
    """A message that is not written yet."""

    node: int  # Flower's id of the hospital's node
    verb: str  # the message type
    about: AboutT  # the sender's object that belongs to the message; the courier does not read it
    write: Callable[[], RecordDict]  # makes the content, when the message is sent
    limit: float  # seconds that the hospital may take to answer
    setting: str  # name of this limit, for people; mostly a setting
    hospital: str = ""  # the hospital's name; empty if it is not known yet


@dataclass(frozen=True)
class Awaited:
    """An answer that has not come yet."""

    hospital: str  # name of the hospital; empty if it is not known yet
    verb: str  # the message type
    since: float  # `_Outstanding.since`


@dataclass(frozen=True)
class Delivery(Generic[AboutT]):
    """The outcome of one message."""

    letter: Letter[AboutT]  # the message
    content: RecordDict  # the content of the answer; empty if the hospital failed
    failure: Failure | None  # the kind of failure; None if the hospital did its part
    reason: str  # the failure in words; empty if there is none
    seconds: float  # seconds from sending to answer; in warm processes without the wait for one
    bytes_sent: int  # bytes of the arrays that were sent

    @property
    def bytes_received(self) -> int:
        """Bytes of the arrays in the answer."""
        return count_bytes(self.content)


@dataclass(frozen=True)
class _Outstanding(Generic[AboutT]):
    letter: Letter[AboutT]
    since: float  # when it was sent, or got a process of this machine, by time.monotonic()
    bytes_sent: int

    def delivery(self, reply: Message, seconds: float, simulates: bool) -> Delivery[AboutT]:
        """Check an answer, and make its delivery."""
        if reply.has_error():
            failure, reason = _failure_of(reply.error, simulates)
            if failure is Failure.TIMEOUT:  # Flower's own text does not name the limit
                return self.time_out(seconds)
            return self.fail(failure, reason, seconds)
        try:
            check_answer(self.letter.verb, reply.content)
        except UndeclaredError as error:
            return self.fail(Failure.UNDECLARED, str(error), seconds)
        except Exception as error:
            return self.refuse(error, seconds)
        return Delivery(self.letter, reply.content, None, "", seconds, self.bytes_sent)

    def fail(self, failure: Failure, reason: str, seconds: float) -> Delivery[AboutT]:
        return Delivery(self.letter, RecordDict(), failure, reason, seconds, self.bytes_sent)

    def refuse(self, error: Exception, seconds: float) -> Delivery[AboutT]:
        """The delivery of an answer that cannot be read."""
        reason = f"The hospital's answer cannot be read ({type(error).__name__})."
        return self.fail(Failure.UNDECLARED, reason, seconds)

    def time_out(self, seconds: float) -> Delivery[AboutT]:
        """The delivery of a message that the hospital has not answered in time."""
        reason = f"No answer within {self.letter.limit:g} seconds ({self.letter.setting})."
        return self.fail(Failure.TIMEOUT, reason, seconds)


class Courier:
    """Carries messages between the engine and Flower's Grid.

    `waits_for` is called again and again with the answers that have not come yet.
    """

    def __init__(
        self, grid: Grid, waits_for: Callable[[Sequence[Awaited]], None] = lambda awaited: None
    ) -> None:
        self.grid = grid
        self.waits_for = waits_for
        self.pause = grid.wait if isinstance(grid, LocalGrid) else time.sleep
        self.answering: set[int] = set()  # nodes whose last message was answered in time
        self._heard: set[int] = set()  # nodes that have ever answered
        self._silent: set[int] = set()  # nodes whose last `query.live` timed out
        self.at_work: set[int] = set()  # nodes with a message under way
        self._asking: Exchange[None] = Exchange(self)

    @property
    def simulates(self) -> bool:
        """Whether hospitals are simulated; then all are there from the start, and none joins."""
        return isinstance(self.grid, LocalGrid) or is_simulation(self.grid)

    def node_names(self) -> dict[int, str]:
        """The connected nodes, each with its registered name."""
        return {node.node_id: node.name or f"node {node.node_id}" for node in self.grid.get_nodes()}

    def find_reachable(self, *, ask: bool = True) -> set[int]:
        """The connected nodes that take messages; simulated ones always do.

        A node that did not answer its last message in time, or never had one, is asked; with `ask`
        false it does not count. After a `query.live` that timed out the next one stays under way,
        and the node counts when it has answered.
        """
        connected = set(self.grid.get_node_ids())
        if self.simulates:
            return connected
        asked = connected - self.answering - self.at_work if ask else set()
        names = self.node_names() if asked else {}
        self._asking.post(self.live(n, None, names.get(n, "")) for n in sorted(asked))
        self._asking.settle(self._silent)
        if silent := asked - self.answering:
            named = join_names([names.get(node, f"node {node}") for node in sorted(silent)])
            log(WARNING, "Connected hospitals that do not answer are skipped: %s", named)
        return connected & self.answering

    def live(self, node: int, about: AboutT, hospital: str) -> Letter[AboutT]:
        """A message that asks a node whether it takes messages."""
        limit = LIVE_TIMEOUT if node in self._heard else FIRST_LIVE_TIMEOUT
        setting = "time to say that it takes messages"
        return Letter(node, "query.live", about, RecordDict, limit, setting, hospital)

    def exchange(self, letters: Iterable[Letter[AboutT]]) -> Iterator[Delivery[AboutT]]:
        """Send messages, and yield the outcome of each."""
        exchange: Exchange[AboutT] = Exchange(self)
        exchange.post(letters)
        yield from exchange.deliveries()

    def note_absence(self, node: int) -> None:
        """Note that a node could not be reached: it is asked before its next message."""
        self.answering.discard(node)

    def note_outcome(self, delivery: Delivery[AboutT]) -> None:
        """Note whether the node of a delivery answered."""
        node = delivery.letter.node
        if delivery.failure in (Failure.TIMEOUT, Failure.GONE):
            self.answering.discard(node)
            if (delivery.letter.verb, delivery.failure) == ("query.live", Failure.TIMEOUT):
                self._silent.add(node)
        else:
            self.answering.add(node)
            self._heard.add(node)
            self._silent.discard(node)


class Exchange(Generic[AboutT]):
    """Messages that are under way together, at most one at each hospital.

    `meanwhile` is called every `LOOK_ROUND` seconds during a wait for answers.
    """

    first: Collection[str] = ()  # the hospitals without which the run must not begin

    def __init__(self, courier: Courier, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.courier = courier
        self.meanwhile = meanwhile
        self._queues: dict[int, deque[Letter[AboutT]]] = {}
        self._outstanding: dict[str, _Outstanding[AboutT]] = {}
        self._finished: deque[Delivery[AboutT]] = deque()
        self._looked = time.monotonic()

    @property
    def joining_later(self) -> Collection[str]:
        """The hospitals that take no part yet, though they may be connected."""
        return ()

    def post(self, letters: Iterable[Letter[AboutT]]) -> None:
        """Queue messages; also allowed between two deliveries."""
        for letter in letters:
            self._queues.setdefault(letter.node, deque()).append(letter)

    def withdraw(self, verb: str) -> list[Letter[AboutT]]:
        """Take back the unsent messages of a verb."""
        unsent = [each for queue in self._queues.values() for each in queue if each.verb == verb]
        for letter in unsent:
            self._queues[letter.node].remove(letter)
        self._queues = {node: queue for node, queue in self._queues.items() if queue}
        return unsent

    def deliveries(self) -> Iterator[Delivery[AboutT]]:
        """Yield the outcome of each message as soon as it is known, until no message is left."""
        while self._queues or self._outstanding or self._finished:
            yield self.take()

    def settle(self, silent: Collection[int]) -> None:
        """Take the outcomes of all messages; those at `silent` nodes are not waited for."""
        self._send_waiting()
        self._finished.extend(self._collect())
        while self._finished or {e.letter.node for e in self._outstanding.values()} - {*silent}:
            self.take()

    def take(self) -> Delivery[AboutT]:
        """Wait for the next outcome of a message; there must be a message."""
        last_answer = time.monotonic()
        while not self._finished:
            self._send_waiting()
            look_began = time.monotonic()
            if not self._finished:
                self._finished.extend(self._collect())
            now = time.monotonic()
            if now - self._looked >= LOOK_ROUND:
                self._looked = now
                self.meanwhile()
            if self._finished:
                break
            sent = [(each.letter, each.since) for each in self._outstanding.values()]
            self.courier.waits_for([Awaited(a.hospital, a.verb, since) for a, since in sent])
            pause = min(max(PAUSE_SHARE * (now - last_answer), SHORTEST_PAUSE), LONGEST_PAUSE)
            self.courier.pause(max(pause, min(PAUSE_AFTER_LOOK * (now - look_began), LOOK_ROUND)))
        delivery = self._finished.popleft()
        if not (self._finished or self._outstanding or self._queues):
            self.courier.waits_for([])
        self.courier.note_outcome(delivery)
        return delivery

    @property
    def _has_room(self) -> bool:
        """Whether one more message may be sent now; in a deployment always."""
        if not self.courier.simulates or len(self._outstanding) < AT_ONCE:
            return True
        return sum(each.bytes_sent for each in self._outstanding.values()) < AT_ONCE_BYTES

    def _send_waiting(self) -> None:
        """Send as many messages as there is room for."""
        busy = {each.letter.node for each in self._outstanding.values()}
        for node in [*self._queues]:
            if not self._has_room:
                break
            if node not in busy:
                self._send(node)

    def _send(self, node: int) -> None:
        """Send the first message in a hospital's queue that Flower accepts."""
        queue = self._queues[node]
        while queue:
            letter = queue.popleft()
            # The time to live begins when a message is made.
            message = Message(letter.write(), node, letter.verb, ttl=letter.limit)
            sent = _Outstanding(letter, time.monotonic(), count_bytes(message.content))
            # Flower gives no id, or an empty one, for a node that it does not know.
            message_ids = [text for text in self.courier.grid.push_messages([message]) if text]
            if message_ids:
                self._outstanding[message_ids[0]] = sent
                self.courier.at_work.add(node)
                break
            self._finished.append(sent.fail(Failure.GONE, "The hospital is not connected.", 0.0))
        if not queue:
            del self._queues[node]

    def _collect(self) -> Iterator[Delivery[AboutT]]:
        """Take the answers from the mailbox, and give up overdue messages."""
        grid, simulates, waiting = self.courier.grid, self.courier.simulates, [*self._outstanding]
        # A deployment's Grid decodes what hospitals sent, and loses all answers of a pull if one
        # cannot be decoded. So there each answer is pulled alone.
        pulls = [waiting] if simulates and waiting else [[each] for each in waiting]
        for ids in pulls:
            try:
                replies = [*grid.pull_messages(ids)]
            except Exception as error:
                if simulates:
                    raise
                grid.get_node_ids()  # raises an exception if the SuperLink is lost
                if (sent := self._end(ids[0])) is not None:
                    yield sent.refuse(error, time.monotonic() - sent.since)
                continue
            for reply in replies:
                if (sent := self._end(reply.metadata.reply_to_message_id)) is not None:
                    yield sent.delivery(reply, time.monotonic() - sent.since, simulates)
        for message_id, sent in list(self._outstanding.items()):
            seconds = time.monotonic() - sent.since
            if isinstance(grid, LocalGrid) and not grid.has_begun(message_id):
                self._outstanding[message_id] = replace(sent, since=time.monotonic())
            elif seconds > sent.letter.limit + GRACE:
                self._end(message_id)
                yield sent.time_out(seconds)

    def _end(self, message_id: str) -> _Outstanding[AboutT] | None:
        """Remove a message from those under way, and return it; None if it is unknown."""
        if (sent := self._outstanding.pop(message_id, None)) is not None:
            self.courier.at_work.discard(sent.letter.node)
        return sent


def _failure_of(error: Error, simulates: bool) -> tuple[Failure, str]:
    # A hospital may have written the text: a log gets one line of limited length.
    reason = printable(" ".join((error.reason or "").split()))[:1000] or "no reason given"
    # In a deployment only a hospital could send this text, and Flower never does.
    if simulates and error.code == _UNKNOWN and "ActorDiedError" in reason:
        raise SimulationBroken(
            "A process of the simulation died, most often because memory ran out: simulate fewer "
            "hospitals at once (--federation-config client-resources-num-cpus=...)."
        )
    if error.code in list(Failure):
        return Failure(error.code), reason
    return _FLOWER_FAILURES.get(error.code, Failure.CRASHED), reason
