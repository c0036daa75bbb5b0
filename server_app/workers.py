"""A grid of simulated hospitals in warm processes of this machine, in place of Flower's engine.

Flower's engine looks for messages ten times a second, and sends each through Ray. Here a message
reaches a waiting process at once. The process runs the same ClientApp, so the figures are the same
bit for bit. Flower's Context has no state here, since the app keeps none in it.
"""

from collections.abc import Iterable
from itertools import count
from selectors import EVENT_READ, DefaultSelector

from flwr.app import Message

from strategies.engine.courier import LocalGrid
from warm.workers import RunConfig, Workers


class WorkersGrid(LocalGrid):
    """The hospitals of one run, in warm processes."""

    def __init__(self, workers: Workers, hospitals: int, run_config: RunConfig) -> None:
        workers.rest()
        self.workers, self.run_config = workers, dict(run_config)
        self.nodes = range(1, hospitals + 1)
        self._numbers = count(1)
        self._queue: dict[str, Message] = {}  # by their ids, in the order of arrival
        self._answers: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        """The ids of all hospitals, which are connected from the start."""
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages; returns their ids, "" for a message to an unknown hospital."""
        ids = []
        for message in messages:
            known = message.metadata.dst_node_id in self.nodes
            number = f"{next(self._numbers)}" if known else ""
            if known:
                message.metadata.__dict__["_message_id"] = number
                self._accept(message)
            ids.append(number)
        self._hand_out()
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The answers that have arrived."""
        self.wait(0)
        ids = [each for each in message_ids if each in self._answers]
        return [self._answers.pop(each) for each in ids]

    def wait(self, seconds: float) -> None:
        """Wait until an answer arrives, at most `seconds`; then send waiting messages."""
        with DefaultSelector() as selector:
            for worker in self.workers.busy():
                selector.register(worker.wire.connection, EVENT_READ, worker)
            answered = [key.data for key, _ in selector.select(seconds)]
        for worker in answered:
            assert worker.message is not None
            number = worker.message.metadata.message_id
            self._answers[number] = self.workers.receive(worker)
        self._hand_out()

    def has_begun(self, message_id: str) -> bool:
        """Whether a process has the message; before, it waits for an idle one."""
        return message_id not in self._queue

    def _accept(self, message: Message) -> None:
        """Take a message with its id, which waits for an idle process."""
        self._queue[message.metadata.message_id] = message

    def _hand_out(self) -> None:
        """Send waiting messages to idle processes."""
        while self._queue:
            number, message = next(iter(self._queue.items()))
            if (worker := self.workers.idle(message.metadata.dst_node_id)) is None:
                return
            del self._queue[number]
            self.workers.send(worker, message, len(self.nodes), self.run_config)
