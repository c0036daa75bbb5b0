"""The courier carries messages to hospitals and brings back what became of each of them.

It wraps Flower's Grid, for three reasons. Flower's own `send_and_receive` sleeps up to 3 seconds
between two looks at the mailbox; it hands over nothing before everything is there; and a simulated
hospital that is sent two messages works on both at once. The courier looks in time with the
answers, yields each as it comes, and keeps at most one message at a hospital. It also knows who can
be reached: a SuperNode can be connected, and wait for ever for an answer that does not come.

Whatever goes wrong with a message ends up as a `Delivery` with a `failure`, never as an exception,
except `SimulationBroken`: Flower's simulation cannot go on after the loss of one of its actors.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from logging import WARNING

from flwr.app import Error, Message, RecordDict
from flwr.common import log
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.superlink.grid import InMemoryGrid

from strategies.protocol.may_leave import Failure, UndeclaredError, check_answer
from strategies.protocol.parcel import count_bytes

# Seconds between two looks at the mailbox: a share of the time waited so far, so that looking costs
# little and an answer lies there for a small part of the time that it took.
PAUSE_SHARE, SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 0.01, 0.5
LIVE_TIMEOUT = 60.0  # seconds that a hospital may take to say that it is there
GRACE = 5.0  # seconds after which an answer is given up that Flower itself should have given up

# Codes of Flower's own errors (its enum ErrorCode is not public).
_FLOWER_FAILURES = {
    1: Failure.CRASHED,
    2: Failure.CRASHED,
    3: Failure.TIMEOUT,
    5: Failure.GONE,
    8: Failure.CRASHED,
}


class SimulationBroken(RuntimeError):
    """An actor of the simulation died; Flower would fail every message it hands to it."""


@dataclass(frozen=True)
class Delivery:
    """What became of one message.

    Attributes:
        node: Flower's id of the hospital's node.
        verb: The message type.
        sent: The content that went out.
        content: The content that came back; empty if the hospital failed.
        failure: Why the hospital did not do its part; None if it did.
        reason: The failure in words; empty if there is none.
        seconds: From sending to answer.
    """

    node: int
    verb: str
    sent: RecordDict
    content: RecordDict
    failure: Failure | None
    reason: str
    seconds: float

    @property
    def bytes_sent(self) -> int:
        """Bytes of the arrays that went out."""
        return count_bytes(self.sent)

    @property
    def bytes_received(self) -> int:
        """Bytes of the arrays that came back."""
        return count_bytes(self.content)


@dataclass(frozen=True)
class _Outstanding:
    message: Message
    since: float  # time.monotonic()


class Courier(Grid):
    """Flower's Grid with a mailbox of its own.

    Args:
        grid: The grid of the run.
        hop_timeout: Seconds a hospital may take to answer one message,
        prepare_timeout: and the same before the first hop, for `query.enrol` and `query.prepare`.
    """

    def __init__(self, grid: Grid, hop_timeout: float, prepare_timeout: float) -> None:
        self.grid = grid
        self.hop_timeout = hop_timeout
        self.prepare_timeout = prepare_timeout
        self._answering: set[int] = set()  # nodes whose last message was answered in time

    def reachable(self) -> set[int]:
        """Nodes that are connected and take messages.

        Those that have not answered their last message in time, or never had one, are asked.
        """
        connected = set(self.grid.get_node_ids())
        asked = connected - self._answering
        questions = [Message(RecordDict(), node, "query.live") for node in sorted(asked)]
        list(self.send_and_receive(questions))
        if silent := asked - self._answering:
            names = {node.node_id: node.name for node in self.grid.get_nodes()}
            log(
                WARNING,
                "Connected, but busy or stuck, and passed over: %s",
                ", ".join(names.get(node) or f"node {node}" for node in sorted(silent)),
            )
        return connected & self._answering

    def send_and_receive(  # type: ignore[override]  # Flower passes it on to our strategy untouched
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Delivery]:
        """Send messages, to each hospital one at a time, and yield what becomes of each.

        `timeout` is Flower's, for all messages together, and ignored: every message has its own.
        """
        queues: dict[int, deque[Message]] = {}
        for message in messages:
            queues.setdefault(message.metadata.dst_node_id, deque()).append(message)
        outstanding: dict[str, _Outstanding] = {}
        idle = list(queues)
        last_answer = time.monotonic()
        while idle or outstanding:
            for node in idle:
                yield from self._send(queues[node], outstanding)
            finished = list(self._collect(outstanding))
            for delivery in finished:
                if delivery.failure in (Failure.TIMEOUT, Failure.GONE):
                    self._answering.discard(delivery.node)
                else:
                    self._answering.add(delivery.node)
            yield from finished
            idle = [delivery.node for delivery in finished if queues[delivery.node]]
            if finished:
                last_answer = time.monotonic()
            elif outstanding:
                waited = time.monotonic() - last_answer
                time.sleep(min(max(PAUSE_SHARE * waited, SHORTEST_PAUSE), LONGEST_PAUSE))

    def _send(
        self, queue: deque[Message], outstanding: dict[str, _Outstanding]
    ) -> Iterator[Delivery]:
        """Send the first message of a queue that can be sent."""
        while queue:
            message = queue.popleft()
            # Made anew: the time to live counts from when a message is made, not when it is sent.
            fresh = Message(
                message.content,
                message.metadata.dst_node_id,
                message.metadata.message_type,
                ttl=self._limit(message)[0],
            )
            since = time.monotonic()
            # Flower gives no id, or an empty one, for a node that it does not know.
            message_ids = [text for text in self.grid.push_messages([fresh]) if text]
            if message_ids:
                outstanding[message_ids[0]] = _Outstanding(fresh, since)
                return
            yield _failed(fresh, Failure.GONE, "The hospital is not connected.", 0.0)

    def _collect(self, outstanding: dict[str, _Outstanding]) -> Iterator[Delivery]:
        """Take from the mailbox what has come, and give up what will not come any more."""
        replies = self.grid.pull_messages(list(outstanding)) if outstanding else []
        for reply in replies:
            sent = outstanding.pop(reply.metadata.reply_to_message_id, None)
            if sent is not None:
                yield _delivery(sent.message, reply, time.monotonic() - sent.since)
        for message_id, sent in list(outstanding.items()):
            seconds = time.monotonic() - sent.since
            limit, setting = self._limit(sent.message)
            if seconds > limit + GRACE:
                del outstanding[message_id]
                reason = f"No answer within {limit:g} seconds ({setting})."
                yield _failed(sent.message, Failure.TIMEOUT, reason, seconds)

    def _limit(self, message: Message) -> tuple[float, str]:
        """Seconds a hospital may take to answer, and the setting that says so."""
        if message.metadata.message_type == "query.live":
            return LIVE_TIMEOUT, "LIVE_TIMEOUT"
        if message.metadata.message_type.startswith("query."):
            return self.prepare_timeout, "prepare-timeout"
        return self.hop_timeout, "hop-timeout"

    @property
    def others_may_join(self) -> bool:
        """Whether there may be more hospitals later; a simulation has all of its from the start."""
        return not isinstance(self.grid, InMemoryGrid)

    # The rest of the Grid is Flower's.

    def get_node_ids(self) -> Iterable[int]:
        """Ids of the nodes that are connected."""
        return self.grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """The nodes that are connected."""
        return self.grid.get_nodes()

    @property
    def run(self) -> Run:
        """The run that the grid works for."""
        return self.grid.run

    def set_run(self, run: Run) -> None:
        """Set the run that the grid works for."""
        self.grid.set_run(run)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message."""
        return self.grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages without waiting."""
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Take the answers that are there."""
        return self.grid.pull_messages(message_ids)


def _delivery(message: Message, reply: Message, seconds: float) -> Delivery:
    """Judge an answer."""
    if reply.has_error():
        return _failed(message, *_failure_of(reply.error), seconds)
    verb = message.metadata.message_type
    try:
        check_answer(verb, reply.content)
    except UndeclaredError as error:
        return _failed(message, Failure.UNDECLARED, str(error), seconds)
    node = message.metadata.dst_node_id
    return Delivery(node, verb, message.content, reply.content, None, "", seconds)


def _failure_of(error: Error) -> tuple[Failure, str]:
    reason = error.reason or "no reason given"
    if "ActorDiedError" in reason:
        raise SimulationBroken(
            "A process of the simulation died, most often because memory ran out: simulate fewer "
            "hospitals at once (--federation-config client-resources-num-cpus=...)."
        )
    if error.code in list(Failure):
        return Failure(error.code), reason
    return _FLOWER_FAILURES.get(error.code, Failure.CRASHED), reason


def _failed(message: Message, failure: Failure, reason: str, seconds: float) -> Delivery:
    metadata = message.metadata
    return Delivery(
        metadata.dst_node_id,
        metadata.message_type,
        message.content,
        RecordDict(),
        failure,
        reason,
        seconds,
    )
