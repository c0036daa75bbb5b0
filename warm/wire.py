"""The wire between a warm process and the one that asks it: a socket, and memory that both share.

A large `ArrayRecord` is written once, into a file without a name, and its descriptor goes through
the socket. So the kernel frees it with the last process that holds it, however that one ends. The
rest of a message goes through the socket itself (records.py). Nothing is pickled.

One side asks, then the other one answers: neither reads past the end of a message.
"""

import mmap
import os
import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import ExitStack
from socket import recv_fds, send_fds, socket
from typing import Any, Generic, TypeVar

from flwr.app import ArrayRecord, Error, Message, RecordDict

from strategies.protocol.may_leave import Failed
from warm import records

SMALL = 2**14  # bytes of a record that goes through the socket
KEPT = 2**28, 256  # bytes and number of records that a side remembers
NONE = 0, 0
FILES = 250  # in one message; the kernel takes 253

ValueT = TypeVar("ValueT")


class Shelf(Generic[ValueT]):
    """What was sent or received last, by a key."""

    def __init__(self) -> None:
        self._values: OrderedDict[int, tuple[ValueT, int]] = OrderedDict()
        self._bytes = 0

    def find(self, key: int) -> ValueT | None:
        """What is there under a key; None if it is not."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: int, value: ValueT, size: int) -> None:
        """Put a value of so many bytes there."""
        self._values[key] = value, size
        self._bytes += size

    def clear(self, kept: tuple[int, int]) -> list[ValueT]:
        """Forget the oldest values beyond so many bytes, and so many values; those forgotten."""
        forgotten = []
        while self._bytes > kept[0] or len(self._values) > kept[1]:
            _, (value, size) = self._values.popitem(last=False)
            self._bytes -= size
            forgotten.append(value)
        return forgotten


class Outbox:
    """Large records, each written once for all wires that it goes through."""

    def __init__(self) -> None:
        # By identity, so each record is held: another one cannot have its number.
        self._written: Shelf[tuple[int, int, ArrayRecord]] = Shelf()
        self._count = 0

    def place(self, record: ArrayRecord) -> tuple[int, int]:
        """The number of a record, which is above 0, and the descriptor of its file."""
        found = self._written.find(id(record))
        if found is None:
            self._count += 1
            found = self._count, _write(record), record
            self._written.put(id(record), found, size_of(record))
        return found[:2]

    def clear(self, kept: tuple[int, int]) -> None:
        """Close the oldest files beyond so many bytes, and so many files."""
        for _, descriptor, _ in self._written.clear(kept):
            os.close(descriptor)


class Wire:
    """One end of the wire.

    Args:
        connection: A connected socket of the family AF_UNIX.
        shared: The outbox of several wires, through which the same records go again and again:
            this end keeps what it sends, the other one what it receives. None = the other way
            round.
    """

    def __init__(self, connection: socket, shared: Outbox | None = None) -> None:
        self.connection = connection
        self._bytes = connection.makefile("rb")
        self._outbox, self._received = shared or Outbox(), Shelf[ArrayRecord]()
        self._run_config: Mapping[str, Any] = {}  # that was sent last
        self._keep_sent, self._keep_received = (KEPT, NONE) if shared else (NONE, KEPT)

    def close(self) -> None:
        """Close this end."""
        self._bytes.close()
        self.connection.close()

    def ask(
        self, message: Message, node_config: Mapping[str, Any], run_config: Mapping[str, Any]
    ) -> None:
        """Hand a message over, with what its context says.

        Raises:
            ParcelError: It is too large.
            OSError: The other process has gone, or does not read.
        """
        asked, changed = message.metadata, run_config is not self._run_config
        self._run_config = run_config
        settings = [*run_config.items()] if changed else None
        facts = [asked.message_type, asked.ttl, [*node_config.items()], settings]
        self.send(facts, message.content)

    def answer_to(self, message: Message) -> Message:
        """The answer to the message that was handed over.

        Raises:
            EOFError: The other process has gone.
            OSError: The same, or it has not answered in the time that its socket has.
        """
        failure, content = self.receive()
        if failure:
            return Message(Failed(*failure), reply_to=message)
        return Message(content, reply_to=message)

    def send_answer(self, answer: Message) -> None:
        """Answer what was received last."""
        if answer.has_error():
            error: Error = answer.error
            rule = error.rule if isinstance(error, Failed) else ""
            self.send([error.code, error.reason, rule], RecordDict())
        else:
            self.send([], answer.content)

    def send(self, facts: list[Any], content: RecordDict) -> None:
        """Write facts and records."""
        numbers: dict[str, int] = {}  # of all records in their order; 0 = it goes with the bytes
        files: list[int] = []
        small = RecordDict()
        for name, record in content.items():
            numbers[name] = 0
            if isinstance(record, ArrayRecord) and len(files) < FILES and size_of(record) >= SMALL:
                numbers[name], descriptor = self._outbox.place(record)
                files.append(descriptor)
            else:
                small[name] = record
        send_fds(self.connection, [b"\0"], files)
        records.send(self.connection, [facts, [*numbers.items()]], small)
        self._outbox.clear(self._keep_sent)

    def receive(self) -> tuple[list[Any], RecordDict]:
        """What the other end has sent."""
        begun, descriptors, _, _ = recv_fds(self.connection, 1, FILES)
        with ExitStack() as opened:
            for each in descriptors:
                opened.callback(os.close, each)
            if not begun:
                raise EOFError
            (facts, numbers), small = records.receive(self._bytes)
            rest = iter(descriptors)
            return facts, RecordDict(
                {
                    name: self._find(number, next(rest)) if number else small[name]
                    for name, number in numbers
                }
            )

    def _find(self, number: int, descriptor: int) -> ArrayRecord:
        """A large record; a copy, whose arrays are shared."""
        record = self._received.find(number)
        if record is None:
            with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as memory:
                record = records.receive(memory)[1].array_records["record"]
            self._received.put(number, record, size_of(record))
            self._received.clear(self._keep_received)
        return ArrayRecord(dict(record))


def size_of(record: ArrayRecord) -> int:
    """Bytes of the arrays of a record."""
    return sum(len(array.data) for array in record.values())


def _write(record: ArrayRecord) -> int:
    """The descriptor of a new file with a record: in memory, or where a system has no such."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fedhandoff")
    else:
        with tempfile.TemporaryFile() as unnamed:
            descriptor = os.dup(unnamed.fileno())
    with open(descriptor, "wb", closefd=False) as file:
        records.write(file.write, [], RecordDict({"record": record}))
    return descriptor
