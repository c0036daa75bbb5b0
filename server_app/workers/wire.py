"""What goes between two processes of one machine: pickles, with large arrays in shared memory.

Both processes are this program's own. An `ArrayRecord` is written once, to a file in memory, and
read once by each process that it is for, however many messages it is in.
"""

import pickle
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord

SMALL = 2**14  # bytes of a record that is pickled like anything else
KEPT = 2**28  # bytes of records that a side remembers
MEMORY = Path("/dev/shm")  # files that are memory, where there is such a folder


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A new folder for records, in memory if this machine has such; removed afterwards."""
    place = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="fedhandoff-", dir=place) as folder:
        yield Path(folder)


def size_of(record: ArrayRecord) -> int:
    """Bytes of the arrays of a record."""
    return sum(len(array.data) for array in record.values())


def write(record: ArrayRecord, path: Path) -> None:
    """Write a record to a file: what its arrays are, then their bytes."""
    arrays = [(name, a.dtype, a.shape, a.stype, len(a.data)) for name, a in record.items()]
    with path.open("wb") as file:
        pickle.dump(arrays, file)
        for array in record.values():
            file.write(array.data)


def read(path: Path) -> ArrayRecord:
    """The record in a file."""
    with path.open("rb") as file:
        return ArrayRecord(
            {
                name: Array(dtype=dtype, shape=shape, stype=stype, data=file.read(size))
                for name, dtype, shape, stype, size in pickle.load(file)
            }
        )


class _Pickler(pickle.Pickler):
    def __init__(self, file: BytesIO, place: Callable[[ArrayRecord], str]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.place = place

    def persistent_id(self, thing: object) -> str | None:
        large = type(thing) is ArrayRecord and size_of(thing) >= SMALL
        return self.place(thing) if large else None  # type: ignore[arg-type]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BytesIO, find: Callable[[str], ArrayRecord]) -> None:
        super().__init__(file)
        self.find = find

    def persistent_load(self, name: str) -> ArrayRecord:
        return self.find(name)


def dumps(thing: object, place: Callable[[ArrayRecord], str]) -> bytes:
    """Pickle a thing; `place` keeps a large record of it, and gives the name it is found by."""
    file = BytesIO()
    _Pickler(file, place).dump(thing)
    return file.getvalue()


def loads(text: bytes, find: Callable[[str], ArrayRecord]) -> Any:
    """What `dumps` was given; `find` gives a large record by its name."""
    return _Unpickler(BytesIO(text), find).load()


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
        """The name of a record's file, which is written if it is not there yet."""
        if id(record) not in self._written:
            self._count += 1
            name = str(self._count)
            write(record, self.folder / name)
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
