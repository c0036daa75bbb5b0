"""Warm processes for simulated hospitals. A process answers for any hospital, one at a time."""

import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

from flwr.app import Error, Message

from strategies.protocol.may_leave import Failure
from warm.process import Stem
from warm.wire import Outbox, Wire

RunConfig = Mapping[str, Any]
PRINTING = 5.0  # seconds; a process that outlives its end may hold its output open


@dataclass
class Worker:
    """A warm process and its present message."""

    process: int
    wire: Wire
    served: set[int] = field(default_factory=set)  # nodes with data that it may have in memory
    message: Message | None = None  # the message that it works on; None = idle


class Workers:
    """Warm processes, which serve one run after the other. One starts if all others work.

    `variables` add to the environment of this process. Without `log`, the output of the processes
    is that of this process. The processes end with the block of `with`.
    """

    def __init__(
        self, processes: int, variables: Mapping[str, str] | None = None, log: IO[str] | None = None
    ) -> None:
        self.processes, self.variables, self.log = processes, dict(variables or {}), log
        self.workers: list[Worker] = []
        self._outbox = Outbox()
        self._printer: threading.Thread | None = None

    def __enter__(self) -> "Workers":
        self._stem = Stem(self.variables, self.log or subprocess.PIPE)
        if lines := self._stem.process.stdout:
            self._printer = threading.Thread(target=_print, args=(lines,), daemon=True)
            self._printer.start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in [*self.workers]:
            with suppress(OSError):  # it has ended already
                self._end(worker)
        self._stem.close()
        self._outbox.clear()
        if self._printer:
            self._printer.join(PRINTING)

    def idle(self, node: int) -> Worker | None:
        """An idle process, preferably with the data of a node; None if all processes work."""
        if len(self.busy()) == len(self.workers) < self.processes:
            process, connection = self._stem.fork()
            self.workers.append(Worker(process, Wire(connection, self._outbox)))
        idle = [worker for worker in self.workers if worker.message is None]
        return min(idle, key=lambda worker: node not in worker.served, default=None)

    def busy(self) -> list[Worker]:
        """The processes that work."""
        return [worker for worker in self.workers if worker.message is not None]

    def send(self, worker: Worker, message: Message, hospitals: int, config: RunConfig) -> None:
        """Send a message for one of `hospitals`, and the run's settings, to an idle process."""
        node = message.metadata.dst_node_id
        worker.message = message
        worker.served.add(node)
        with suppress(ConnectionError):  # the process has ended: `receive` reports it
            worker.wire.ask(
                message, {"partition-id": node - 1, "num-partitions": hospitals}, config
            )

    def receive(self, worker: Worker) -> Message:
        """The answer of a process; an error if the process has ended."""
        message = worker.message
        assert message is not None
        try:
            answer = worker.wire.answer_to(message)
        except (EOFError, OSError):
            reason = (
                f"The hospital's process ended with code {self._end(worker)} (-9 is usually "
                "out of memory): give the machine more memory, use fewer workers, or lower "
                "train.batch-size."
            )
            return Message(Error(Failure.CRASHED, reason), reply_to=message)
        worker.message = None
        return answer

    def rest(self) -> None:
        """Replace the processes that still work, at the end of a run."""
        for worker in self.busy():
            self._end(worker)

    def _end(self, worker: Worker) -> int:
        """End a process; returns its exit code."""
        self.workers.remove(worker)
        worker.wire.close()
        return self._stem.end(worker.process)


def _print(lines: IO[bytes]) -> None:
    """Print the output of a process with Python's `print`: Flower shows only that."""
    with lines:
        for line in lines:
            print(line.decode(errors="replace"), end="", flush=True)
