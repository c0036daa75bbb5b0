"""A grid of simulated hospitals in warm processes of this machine.

Flower's engine looks for messages ten times a second, and sends each through Ray. Here a message is
at a waiting process at once. It runs the same ClientApp, so a run has the same figures to the last
bit. Flower's Context has no state here: the app keeps none in it.
"""

import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from select import select
from socket import socket, socketpair
from typing import IO, Any, BinaryIO

from flwr.app import ArrayRecord, Error, Message

from server_app.workers.wire import Outbox, read, receive, send, shared_folder
from strategies.engine.courier import LocalGrid
from strategies.protocol.may_leave import Failure

RunConfig = Mapping[str, Any]


@dataclass
class _Worker:
    """A process, and what it does."""

    process: subprocess.Popen[bytes]
    connection: socket
    answers: BinaryIO  # what comes on the connection
    knows: RunConfig | None = None  # the settings that it was sent last
    served: set[int] = field(default_factory=set)  # nodes whose data it may have in memory
    message: Message | None = None  # what it works on; None = nothing
    records: set[str] = field(default_factory=set)  # the large records of that message


class Workers:
    """Warm processes, which serve one run after the other.

    Args:
        processes: How many.
        environment: Variables for them, beside those of this process.
        log: Where they print; None = where this process does.

    Use it as a context: the processes end with it.
    """

    def __init__(
        self,
        processes: int,
        environment: Mapping[str, str] | None = None,
        log: IO[str] | None = None,
    ) -> None:
        self.processes, self.environment, self.log = processes, dict(environment or {}), log
        self.workers: list[_Worker] = []
        self._stack = ExitStack()

    def __enter__(self) -> "Workers":
        self.folder = self._stack.enter_context(shared_folder())
        self.outbox = Outbox(self.folder)
        self.workers = [self._start() for _ in range(self.processes)]
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.process.terminate()
        for worker in self.workers:
            worker.process.wait()
            _close(worker)
        self._stack.close()

    def idle(self, node: int) -> _Worker | None:
        """A process without work, rather one that has the data of a node; None if there is none."""
        idle = [worker for worker in self.workers if worker.message is None]
        return min(idle, key=lambda worker: node not in worker.served, default=None)

    def busy(self) -> list[_Worker]:
        """The processes that work."""
        return [worker for worker in self.workers if worker.message is not None]

    def send(self, worker: _Worker, message: Message, hospitals: int, config: RunConfig) -> None:
        """Give an idle process a message to one of so many hospitals, and the run's settings."""

        def put(record: ArrayRecord) -> str:
            name = self.outbox.place(record)
            worker.records |= {name} - {""}
            return name

        asked = message.metadata
        changed = [] if worker.knows is config else [*config.items()]
        facts = [asked.message_type, asked.ttl, asked.dst_node_id - 1, hospitals, changed]
        worker.knows, worker.message = config, message
        worker.served.add(asked.dst_node_id)
        with suppress(ConnectionError):  # it has died: `receive` finds that out
            send(worker.connection, facts, message.content, put)

    def receive(self, worker: _Worker) -> Message:
        """The answer of a process that has one, or has died."""
        message = worker.message
        assert message is not None
        try:
            failure, content = receive(worker.answers, self._take)
        except (EOFError, OSError):
            code = self._replace(worker)
            reason = (
                f"The hospital's process ended with code {code} (-9 is usually out of memory): "
                "give the machine more memory, or use fewer workers."
            )
            return Message(Error(Failure.CRASHED, reason), reply_to=message)
        worker.message = None
        worker.records.clear()
        self.outbox.clear({name for each in self.workers for name in each.records})
        if failure:
            return Message(Error(*failure), reply_to=message)
        return Message(content, reply_to=message)

    def rest(self) -> None:
        """End what processes still do for a run that is over."""
        for worker in self.busy():
            worker.process.terminate()
            self._replace(worker)

    def _replace(self, worker: _Worker) -> int:
        """Start a process for one that ends; its exit code."""
        code = worker.process.wait()
        _close(worker)
        self.workers[self.workers.index(worker)] = self._start()
        return code

    def _take(self, name: str) -> ArrayRecord:
        path = self.folder / name
        record = read(path)
        path.unlink()
        return record

    def _start(self) -> _Worker:
        ours, theirs = socketpair()
        descriptor = theirs.fileno()
        # -P: what is in the working directory is not this app's code.
        command = [sys.executable, "-P", "-m", "server_app.workers.worker"]
        process = subprocess.Popen(
            [*command, str(descriptor), str(self.folder)],
            env={**os.environ, **self.environment, "PYTHONPATH": os.pathsep.join(sys.path)},
            pass_fds=[descriptor],
            stdout=self.log or subprocess.PIPE,
            stderr=self.log or subprocess.STDOUT,
        )
        if process.stdout:
            threading.Thread(target=_print, args=(process.stdout,), daemon=True).start()
        theirs.close()
        return _Worker(process, ours, ours.makefile("rb"))


def _print(lines: IO[bytes]) -> None:
    """Print what a process prints: Flower shows what this one does, by Python's `print` alone."""
    with lines:
        for line in lines:
            print(line.decode(errors="replace"), end="", flush=True)


def _close(worker: _Worker) -> None:
    worker.answers.close()
    worker.connection.close()


class WorkersGrid(LocalGrid):
    """The hospitals of one run, in warm processes.

    Args:
        workers: The processes.
        hospitals: How many are simulated.
        run_config: The settings of the run.
    """

    def __init__(self, workers: Workers, hospitals: int, run_config: RunConfig) -> None:
        workers.rest()
        self.workers, self.run_config = workers, dict(run_config)
        self.nodes = range(1, hospitals + 1)
        self._numbers = count(1)
        self._queue: deque[Message] = deque()
        self._answers: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        """All hospitals are there from the start."""
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Hand messages over; the ids of those for hospitals that there are."""
        ids = []
        for message in messages:
            known = message.metadata.dst_node_id in self.nodes
            number = f"{next(self._numbers)}" if known else ""
            if known:
                message.metadata.__dict__["_message_id"] = number
                self._queue.append(message)
            ids.append(number)
        self._hand_out()
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The answers that have come."""
        self._collect(0)
        ids = [each for each in message_ids if each in self._answers]
        return [self._answers.pop(each) for each in ids]

    def wait(self, seconds: float) -> None:
        """Wait until an answer has come, but no longer than some seconds."""
        self._collect(seconds)

    def _hand_out(self) -> None:
        """Give idle processes the messages that wait."""
        while self._queue:
            node = self._queue[0].metadata.dst_node_id
            if (worker := self.workers.idle(node)) is None:
                return
            message = self._queue.popleft()
            self.workers.send(worker, message, len(self.nodes), self.run_config)

    def _collect(self, seconds: float) -> None:
        """Take the answers that are there, or come in time, and hand out what waits."""
        busy = {worker.connection: worker for worker in self.workers.busy()}
        if not busy:
            time.sleep(seconds)
        answered, _, _ = select([*busy], [], [], seconds) if busy else ([], [], [])
        for connection in answered:
            worker = busy[connection]
            assert worker.message is not None
            number = worker.message.metadata.message_id
            self._answers[number] = self.workers.receive(worker)
        self._hand_out()
