"""What goes between two processes of one machine: records, the large ones in shared memory.

A large `ArrayRecord` is written once, to a file in memory, and read once by each process that it is
for, however many messages it is in. The rest goes through a socket. Nothing is pickled
(strategies/protocol/handover.py).
"""

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import socket
from typing import Any, BinaryIO

from flwr.app import ArrayRecord, RecordDict

from strategies.protocol import handover

SMALL = 2**14  # bytes of a record that goes through the socket
KEPT = 2**28  # bytes of records that a side remembers
MEMORY = Path("/dev/shm")  # files that are memory, where there is such a folder
PREFIX = "fedhandoff-workers-"
NEW = 60.0  # seconds in which the process that made a folder has locked it


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A new folder for records, in memory if this machine has such; removed afterwards.

    A process that was killed leaves its folder, and with it memory: the next one removes it.
    """
    place = MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())
    for folder in place.glob(f"{PREFIX}*"):
        if _is_left(folder):
            shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=place) as name:
        lock = os.open(name, os.O_RDONLY)
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)  # which ends with this process, however that ends
            yield Path(name)
        finally:
            os.close(lock)


def _is_left(folder: Path) -> bool:
    """Whether the process that made a folder has ended."""
    try:
        if time.time() - folder.stat().st_mtime < NEW:
            return False
        lock = os.open(folder, os.O_RDONLY)
    except OSError:  # removed meanwhile, or another user's
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # it lives, or the file system has no locks
        return False
    finally:
        os.close(lock)
    return True


def size_of(record: ArrayRecord) -> int:
    """Bytes of the arrays of a record."""
    return sum(len(array.data) for array in record.values())


def write(record: ArrayRecord, path: Path) -> bool:
    """Write a record to a file; False, and no file, if the folder has no room for it.

    Many containers have 64 MB of shared memory.
    """
    try:
        with path.open("wb") as file:
            handover.write(file.write, [], RecordDict({"record": record}))
    except OSError as error:
        path.unlink(missing_ok=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False
    return True


def read(path: Path) -> ArrayRecord:
    """The record in a file."""
    with path.open("rb") as file:
        return handover.receive(file)[1].array_records["record"]


def send(
    connection: socket, facts: list[Any], content: RecordDict, place: Callable[[ArrayRecord], str]
) -> None:
    """Write facts and records.

    `place` keeps a large record and returns its name; "" if it has no room: then the record goes
    through the socket, too.
    """
    names: list[tuple[str, str]] = []  # of all records in their order, and of those kept elsewhere
    small = RecordDict()
    for name, record in content.items():
        kept = ""
        if isinstance(record, ArrayRecord) and size_of(record) >= SMALL:
            kept = place(record)
        names.append((name, kept))
        if not kept:
            small[name] = record
    handover.send(connection, [facts, names], small)


def receive(file: BinaryIO, find: Callable[[str], ArrayRecord]) -> tuple[list[Any], RecordDict]:
    """What `send` was given; `find` gives a large record by its name.

    Raises:
        EOFError: The other process has gone.
    """
    (facts, names), small = handover.receive(file)
    return facts, RecordDict({name: find(kept) if kept else small[name] for name, kept in names})


class Outbox:
    """Records that one process writes for several others, each once.

    Args:
        folder: Where their files are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # By identity, so each record is held here: another one cannot have its number.
        self._written: OrderedDict[int, tuple[str, ArrayRecord]] = OrderedDict()
        self._bytes = self._count = 0

    def place(self, record: ArrayRecord) -> str:
        """The name of a record's file, which is written if it is not there yet; "" = no room."""
        if id(record) not in self._written:
            self._count += 1
            name = str(self._count)
            if not write(record, self.folder / name):
                return ""
            self._written[id(record)] = name, record
            self._bytes += size_of(record)
        self._written.move_to_end(id(record))
        return self._written[id(record)][0]

    def clear(self, under_way: set[str]) -> None:
        """Delete the oldest files above `KEPT` bytes that no message under way refers to."""
        for key, (name, record) in list(self._written.items()):
            if self._bytes <= KEPT:
                break
            if name not in under_way:
                del self._written[key]
                self._bytes -= size_of(record)
                (self.folder / name).unlink()


class Inbox:
    """Records that another process has written, each read once.

    Args:
        folder: Where their files are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: OrderedDict[str, ArrayRecord] = OrderedDict()
        self._bytes = 0

    def find(self, name: str) -> ArrayRecord:
        """The record of a name; a copy, whose arrays are shared."""
        if name not in self._read:
            self._read[name] = read(self.folder / name)
            self._bytes += size_of(self._read[name])
        self._read.move_to_end(name)
        found = self._read[name]
        while self._bytes > KEPT and len(self._read) > 1:
            _, oldest = self._read.popitem(last=False)
            self._bytes -= size_of(oldest)
        return ArrayRecord(dict(found))
