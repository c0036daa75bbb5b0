"""The wire between a warm process and its caller: a socket, and shared memory.

A large `ArrayRecord` is written once, into a file without a name, and the file's descriptor goes
through the socket. So the kernel frees the file when the last process closes it or ends. The rest
of a message goes through the socket itself (warm/records.py). Nothing is pickled.

One side asks, then the other side answers: neither reads past the end of a message.
"""

import mmap
import os
import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import ExitStack
from socket import recv_fds, send_fds, socket
from typing import Any, Generic, TypeVar, cast

from flwr.app import ArrayRecord, Error, Message, RecordDict

from strategies.protocol.may_leave import Failed
from warm import records

SMALL = 2**14  # bytes; a smaller record goes through the socket
KEPT = 2**28, 256  # bytes and number of records that a side keeps
NONE = 0, 0
FILES = 250  # most files in one message; the kernel's limit is 253

ValueT = TypeVar("ValueT")


class Shelf(Generic[ValueT]):
    """The values that were sent or received last, by key."""

    def __init__(self) -> None:
        self._values: OrderedDict[int, tuple[ValueT, int]] = OrderedDict()
        self._bytes = 0

    def find(self, key: int) -> ValueT | None:
        """The value of a key; None if there is none."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: int, value: ValueT, size: int) -> None:
        """Add a value of `size` bytes."""
        self._values[key] = value, size
        self._bytes += size

    def clear(self, kept: tuple[int, int]) -> list[ValueT]:
        """Remove the oldest values beyond a number of bytes and of values; returns them."""
        forgotten = []
        while self._bytes > kept[0] or len(self._values) > kept[1]:
            _, (value, size) = self._values.popitem(last=False)
            self._bytes -= size
            forgotten.append(value)
        return forgotten


class Outbox:
    """Files of large records, each written once for all wires."""

    def __init__(self) -> None:
        # The key is `id(record)`. The shelf holds the record, so that no other can get this id.
        self._written: Shelf[tuple[int, int, ArrayRecord]] = Shelf()
        self._count = 0

    def place(self, record: ArrayRecord) -> tuple[int, int]:
        """The number of a record (from 1) and the descriptor of its file."""
        found = self._written.find(id(record))
        if found is None:
            self._count += 1
            found = self._count, _write(record), record
            self._written.put(id(record), found, size_of(record))
        return found[:2]

    def clear(self, kept: tuple[int, int]) -> None:
        """Close the oldest files beyond a number of bytes and of files."""
        for _, descriptor, _ in self._written.clear(kept):
            os.close(descriptor)


class Wire:
    """One end of the wire.

    Args:
        connection: A connected socket of the family AF_UNIX.
        shared: An outbox for several wires with the same records. Then this end keeps the records
            that it sends, and the other end the records that it receives. None = the other way
            round.
    """

    def __init__(self, connection: socket, shared: Outbox | None = None) -> None:
        self.connection = connection
        self._bytes = connection.makefile("rb")
        self._outbox, self._received = shared or Outbox(), Shelf[ArrayRecord]()
        self._run_config: Mapping[str, Any] = {}  # as sent last
        self._keep_sent, self._keep_received = (KEPT, NONE) if shared else (NONE, KEPT)

    def close(self) -> None:
        """Close this end."""
        self._bytes.close()
        self.connection.close()

    def ask(
        self, message: Message, node_config: Mapping[str, Any], run_config: Mapping[str, Any]
    ) -> None:
        """Send a message with its node-config and, if it has changed, its run-config.

        Raises:
            ParcelError: The message is too large.
            OSError: The other process has ended, or does not read.
        """
        asked, changed = message.metadata, run_config is not self._run_config
        self._run_config = run_config
        settings = [*run_config.items()] if changed else None
        facts = [asked.message_type, asked.ttl, [*node_config.items()], settings]
        self.send(facts, message.content)

    def answer_to(self, message: Message) -> Message:
        """The answer to the message of `ask`.

        Raises:
            EOFError: The other process has ended.
            OSError: The other process has ended, or has not answered before the socket's time-out.
        """
        failure, content = self.receive()
        if failure:
            return Message(Failed(*failure), reply_to=message)
        return Message(content, reply_to=message)

    def send_answer(self, answer: Message) -> None:
        """Send the answer to the last received message."""
        if answer.has_error():
            error: Error = answer.error
            rule = error.rule if isinstance(error, Failed) else ""
            self.send([error.code, error.reason, rule], RecordDict())
        else:
            self.send([], answer.content)

    def send(self, facts: list[Any], content: RecordDict) -> None:
        """Send facts and records."""
        numbers: dict[str, int] = {}  # of all records, in order; 0 = the record has no file
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
        """The facts and records that the other end has sent."""
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
        """A copy of a large record, with the same arrays."""
        record = self._received.find(number)
        if record is None:
            with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as memory:
                record = cast(ArrayRecord, records.receive(memory)[1]["record"])
            self._received.put(number, record, size_of(record))
            self._received.clear(self._keep_received)
        return ArrayRecord(dict(record))


def size_of(record: ArrayRecord) -> int:
    """The size of the arrays of a record, in bytes."""
    return sum(len(array.data) for array in record.values())


def _write(record: ArrayRecord) -> int:
    """The descriptor of a new file with a record: in memory if the system supports it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fedhandoff")
    else:
        with tempfile.TemporaryFile() as unnamed:
            descriptor = os.dup(unnamed.fileno())
    with open(descriptor, "wb", closefd=False) as file:
        records.write(file.write, [], RecordDict({"record": record}))
    return descriptor
