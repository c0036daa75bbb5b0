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
from typing import Any, cast

from flwr.app import ArrayRecord, Error, Message, RecordDict

from strategies.protocol.may_leave import Failed
from strategies.protocol.records import size_of
from warm import records

SMALL = 2**14  # bytes; a smaller record goes through the socket
KEPT = 2**26, 256  # bytes and number of the records whose files stay for other messages
FILES = 250  # most files in one message; the kernel's limit is 253


class Outbox:
    """Files of large records, each written once for all wires."""

    def __init__(self) -> None:
        # The key is `id(record)`. The entry holds the record, so that no other can get this id.
        self._files: OrderedDict[int, tuple[int, ArrayRecord]] = OrderedDict()
        self._bytes = 0

    def place(self, record: ArrayRecord) -> int:
        """The descriptor of the file of a record."""
        key = id(record)
        if key not in self._files:
            self._files[key] = _write(record), record
            self._bytes += size_of(record)
        self._files.move_to_end(key)
        return self._files[key][0]

    def clear(self, most_bytes: int = 0, most_files: int = 0) -> None:
        """Close the oldest files beyond a number of bytes and of files."""
        while self._bytes > most_bytes or len(self._files) > most_files:
            _, (descriptor, record) = self._files.popitem(last=False)
            self._bytes -= size_of(record)
            os.close(descriptor)


class Wire:
    """One end of the wire.

    The socket is of the family AF_UNIX. Wires with the same records share an outbox; without it a
    record is sent once.
    """

    def __init__(self, connection: socket, shared: Outbox | None = None) -> None:
        self.connection = connection
        self._bytes = connection.makefile("rb")
        self._outbox, self._kept = (shared, KEPT) if shared else (Outbox(), (0, 0))
        self._run_config: Mapping[str, Any] = {}  # as sent last

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
        files: dict[str, int] = {}
        for name, record in content.items():
            if isinstance(record, ArrayRecord) and len(files) < FILES and size_of(record) >= SMALL:
                files[name] = self._outbox.place(record)
        small = RecordDict({name: each for name, each in content.items() if name not in files})
        send_fds(self.connection, [b"\0"], [*files.values()])
        names = [(name, name in files) for name in content]
        records.write(self.connection.sendall, [facts, names], small)
        self._outbox.clear(*self._kept)

    def receive(self) -> tuple[list[Any], RecordDict]:
        """The facts and records that the other end has sent."""
        begun, descriptors, _, _ = recv_fds(self.connection, 1, FILES)
        with ExitStack() as opened:
            for each in descriptors:
                opened.callback(os.close, each)
            if not begun:
                raise EOFError
            (facts, names), small = records.receive(self._bytes)
            rest = iter(descriptors)
            return facts, RecordDict(
                {name: _read(next(rest)) if large else small[name] for name, large in names}
            )


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


def _read(descriptor: int) -> ArrayRecord:
    """The record in a file of `_write`."""
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as memory:
        return cast(ArrayRecord, records.receive(memory)[1]["record"])
