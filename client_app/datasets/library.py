"""A library of a hospital's decoded images: files of pixels that are mapped into memory.

A library belongs to one listing of images (client_app.datasets.listing) and is one folder:

    index.sqlite                 the facts of each file, and the place of its pixels
    <C>x<H>x<W>-<fit>.pixels     images of one form, uint8 [M, C, H, W], one after the other

Size and time of change identify a file; a hash of its content identifies its pixels. A changed file
is decoded again; a moved or copied file is not. Pixels of images that are no longer listed are
overwritten with zeros, in a copy that replaces the file: a process that has mapped the file may
still train on them. Their place in the copy is used for another image. The index is written only
after the pixels are on disk: a kill at any moment loses only a few seconds of work.
"""

import hashlib
import json
import math
import os
import shutil
import sqlite3
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from itertools import count, groupby
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from client_app.authority.limits import check_disk, decoding_threads
from client_app.authority.policy import MachineRules
from client_app.datasets.files import read_file, read_header, read_pixels
from client_app.datasets.image import Header, UnusableImage
from client_app.datasets.listing import Entry
from client_app.datasets.resize import Form, common_size
from client_app.errors import DataError
from client_app.store import hold_lock, own_folder
from strategies.protocol.console import Pace
from strategies.protocol.files import replacing

SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    path TEXT, slice INTEGER,   -- slice: -1 if the file is one image
    size INTEGER, modified INTEGER,
    header TEXT,                -- a Header's fields as JSON; null if it has none
    reason TEXT,                -- why it cannot be used; '' if no reason is known
    content TEXT,               -- SHA-256 of the file; '' before the whole file is read
    PRIMARY KEY (path, slice)
);
CREATE TABLE IF NOT EXISTS pixels (
    form TEXT, content TEXT, slice INTEGER,
    row INTEGER,                -- in the file of pixels of that form; -1 if decoding failed
    reason TEXT,                -- of the failure
    PRIMARY KEY (form, content, slice)
);
"""
# Images between two commits: few enough to decode again, enough to keep all cores busy.
CHUNK = 256

ImportProgress = Callable[[str, int, int], None]
ItemT = TypeVar("ItemT")
_Key = tuple[str, int]  # path or content, and slice


@dataclass(frozen=True, eq=False)
class DecodedImages:
    """The images of a listing of n, in one form."""

    pixels: NDArray[np.uint8]  # uint8 [M, C, H, W], mapped from a file
    # int64 [n], row of each image in `pixels`; -1 = the image cannot be used
    rows: NDArray[np.int64]
    reasons: list[str]  # [n], why an image cannot be used; empty if it can
    headers: list[Header | None]  # [n], header of each file; None if it could not be read
    contents: list[str]  # [n], SHA-256 of each file; empty if the file could not be read


@dataclass
class _File:
    """The facts of a file: a row of the table `files`."""

    size: int
    modified: int
    header: Header | None
    reason: str
    content: str = ""


def open_library(
    folder: Path,
    entries: Sequence[Entry],
    form: Form,
    progress: ImportProgress | None = None,
    retry: bool = False,
    machine: MachineRules | None = None,
) -> DecodedImages:
    """Open images; first decode the new and the changed ones.

    Args:
        folder: Folder of the library, `images/<name>` in a store; created if missing.
        entries: The images. The library forgets all others.
        form: The form of the opened images.
        progress: Called with the name of the step, the number of images done, and of all images.
        retry: Whether to try unusable images again though they have not changed: a package may
            have been installed.
        machine: Limits on memory and disk; None = no limit.

    Raises:
        DataError: The images differ in size, and the form has no size. Or the index
            cannot be read or written.
        PolicyError: The store would be larger than `machine` allows.
    """
    own_folder(folder)  # private, since the index has paths
    with (
        hold_lock(folder / "lock", "decodes these images"),  # hospitals may share a data set
        _open_index(folder / "index.sqlite") as index,
    ):
        for draft in folder.glob(".*.part"):  # of a process that was killed
            draft.unlink()
        if retry:
            index.execute("DELETE FROM files WHERE reason != ''")
            index.execute("DELETE FROM pixels WHERE reason != ''")
        library = _Library(folder, index, machine, progress or _log_progress())
        files = library.look_at(entries)
        opened = library.decode(entries, files, form)
        library.forget_all_but(files)
        return opened


def prepare(content: bytes, slice_: int | None, form: Form, shape: tuple[int, int, int]) -> Tensor:
    """Return the image in the content of a file as input for networks: uint8 [C, H, W].

    A grey image gets C equal channels.

    Raises:
        UnusableImage: The image cannot be decoded, or has another shape.
    """
    image = form.apply(torch.from_numpy(read_pixels(content, slice_, form.size))[None])[0]
    if image.shape[0] not in (1, shape[0]) or image.shape[1:] != shape[1:]:
        found, wanted = (" x ".join(map(str, each)) for each in (image.shape, shape))
        raise UnusableImage(f"is {found} where {wanted} is needed (channels x height x width)")
    return image.expand(shape[0], -1, -1)


class _Library:
    """The folder of a library, its index, and the limits of the machine."""

    def __init__(
        self,
        folder: Path,
        index: sqlite3.Connection,
        machine: MachineRules | None,
        progress: ImportProgress,
    ) -> None:
        self.folder, self.index, self.machine = folder, index, machine
        self.progress = progress

    def look_at(self, entries: Sequence[Entry]) -> dict[_Key, _File]:
        """Return the facts of each file; read the headers of new and changed files."""
        rows = self.index.execute(
            "SELECT path, slice, size, modified, header, reason, content FROM files"
        )
        known = {
            (path, slice_): _File(size, modified, _from_json(header), reason, content)
            for path, slice_, size, modified, header, reason, content in rows
        }
        files, changed = {}, []
        for entry in entries:
            now, before = _stat(entry.file), known.get(_key(entry))
            if before is not None and (before.size, before.modified) == now:
                files[_key(entry)] = before
            else:
                changed.append((entry, now))
        for chunk, threads in self._chunks("looking at", changed, os.cpu_count() or 1):
            looks = threads.map(_look, [entry for entry, _ in chunk])
            new = {
                _key(entry): _File(*now, header, reason)
                for (entry, now), (header, reason) in zip(chunk, looks, strict=True)
            }
            self._save(new)
            files |= new
        return files

    def decode(
        self, entries: Sequence[Entry], files: Mapping[_Key, _File], form: Form
    ) -> DecodedImages:
        """Return all images in a form; decode those that the library does not have."""
        shape = _shape([file.header for file in files.values() if file.header], form)
        name = f"{'x'.join(map(str, shape))}-{form.fit}"
        place = self.folder / f"{name}.pixels"
        # The file of pixels may be too short: deleted, or the disk was full.
        kept = (place.stat().st_size if place.exists() else 0) // max(1, math.prod(shape))
        self.index.execute("DELETE FROM pixels WHERE form = ? AND row >= ?", [name, kept])
        rows = self.index.execute(
            "SELECT content, slice, row, reason FROM pixels WHERE form = ?", [name]
        )
        found = {(content, slice_): (row, reason) for content, slice_, row, reason in rows}
        missing = [
            entry
            for entry in entries
            if not files[_key(entry)].reason and _content(entry, files) not in found
        ]
        work = partial(_decode, form=form, shape=shape, known=frozenset(found))
        used = {row for row, _ in found.values()}
        free = (row for row in count() if row not in used)
        new_files = [files[_key(entry)] for entry in missing]
        largest = max((f.size + f.header.memory for f in new_files if f.header), default=0)
        if missing:
            check_disk(self.machine, self.folder.parents[1], len(missing) * math.prod(shape))
        at_once = decoding_threads(self.machine, largest)
        for chunk, threads in self._chunks("importing", missing, at_once):
            new = {}
            with _open(place) as pixels:
                for entry, decoded in zip(chunk, threads.map(work, chunk), strict=True):
                    content, image, reason = decoded
                    file = files[_key(entry)]
                    file.content, file.reason = content, "" if content else reason
                    if content and (key := _content(entry, files)) not in found:
                        row = -1 if image is None else next(free)
                        if image is not None:
                            os.pwrite(pixels, image, row * len(image))
                        found[key] = new[key] = (row, reason)
            self.index.executemany(
                "INSERT INTO pixels VALUES (?, ?, ?, ?, ?)",
                [(name, *key, *value) for key, value in new.items()],
            )
            self._save({_key(entry): files[_key(entry)] for entry in chunk})
        # The reason belongs to the content, or to the file if it could not be read.
        results = [
            found.get(_content(entry, files), (-1, files[_key(entry)].reason)) for entry in entries
        ]
        last = max((row for row, _ in results), default=-1)
        return DecodedImages(
            # Copy on write, since torch wants writable arrays. An empty array cannot be mapped.
            np.memmap(place, np.uint8, "c", shape=(last + 1, *shape))
            if last >= 0
            else np.zeros((0, *shape), np.uint8),
            np.array([row for row, _ in results]),
            [reason for _, reason in results],
            [files[_key(entry)].header for entry in entries],
            [files[_key(entry)].content for entry in entries],
        )

    def forget_all_but(self, files: Collection[_Key]) -> None:
        """Forget all other files, and overwrite the pixels that only they had."""
        known = self.index.execute("SELECT path, slice FROM files").fetchall()
        gone = [key for key in known if key not in files]
        self.index.executemany("DELETE FROM files WHERE path = ? AND slice = ?", gone)
        orphans = "WHERE (content, slice) NOT IN (SELECT content, slice FROM files)"
        # Remove the hashes first: after a kill, an image that returns must not be found black.
        self.index.execute(f"UPDATE pixels SET content = rowid {orphans}")
        self.index.commit()
        found = self.index.execute(f"SELECT form, row FROM pixels {orphans} ORDER BY form")
        for name, rows in groupby(found.fetchall(), lambda each: each[0]):
            size = math.prod(map(int, name.partition("-")[0].split("x")))
            _blank(self.folder / f"{name}.pixels", [row * size for _, row in rows], size)
        self.index.execute(f"DELETE FROM pixels {orphans}")
        self.index.commit()

    def _save(self, files: Mapping[_Key, _File]) -> None:
        """Write the facts of some files to the index."""
        self.index.executemany(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (*key, file.size, file.modified, _to_json(file.header), file.reason, file.content)
                for key, file in files.items()
            ],
        )
        self.index.commit()

    def _chunks(
        self, step: str, items: Sequence[ItemT], at_once: int
    ) -> Iterator[tuple[Sequence[ItemT], Executor]]:
        """Yield chunks of the items, with threads to work on them."""
        with ThreadPoolExecutor(at_once) as threads:
            for start in range(0, len(items), CHUNK):
                self.progress(step, start, len(items))
                yield items[start : start + CHUNK], threads


def _key(entry: Entry) -> _Key:
    return str(entry.file), -1 if entry.slice is None else entry.slice


def _content(entry: Entry, files: Mapping[_Key, _File]) -> _Key:
    """The key of an entry's pixels."""
    return files[_key(entry)].content, _key(entry)[1]


def _to_json(header: Header | None) -> str:
    return json.dumps(header and astuple(header))


def _from_json(text: str) -> Header | None:
    return Header(*fields) if (fields := json.loads(text)) else None


def _stat(file: Path) -> tuple[int, int]:
    """Size in bytes and time of change in ns; -1 if the file cannot be looked up."""
    try:
        found = file.stat()
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns


def _look(entry: Entry) -> tuple[Header | None, str]:
    """The header of a file, or the reason why the file cannot be used."""
    try:
        return read_header(entry.file, entry.slice), ""
    except UnusableImage as error:
        return None, str(error)


def _shape(headers: Collection[Header], form: Form) -> tuple[int, int, int]:
    """(C, H, W) of all images in a form; grey ones among colour get three equal channels."""
    channels = max([1, form.channels, *(header.channels for header in headers)])
    if form.size:
        return channels, form.size, form.size
    height, width = common_size("of the hospital", ((each.height, each.width) for each in headers))
    return channels, height, width


def _decode(
    entry: Entry, form: Form, shape: tuple[int, int, int], known: Container[_Key]
) -> tuple[str, bytes | None, str]:
    """The hash of a file's content, its pixels if not yet known, and the reason of a failure."""
    try:
        content = read_file(entry.file)
    except UnusableImage as error:
        return "", None, str(error)
    digest = hashlib.sha256(content).hexdigest()
    if (digest, _key(entry)[1]) in known:
        return digest, None, ""
    try:
        image = prepare(content, entry.slice, form, shape)
    except UnusableImage as error:
        return digest, None, str(error)
    return digest, image.contiguous().numpy().tobytes(), ""


def _log_progress() -> ImportProgress:
    """Return a function that logs the progress of an import from time to time."""
    paces: dict[str, Pace] = {}

    def progress(step: str, done: int, total: int) -> None:
        paces.setdefault(step, Pace(f"{step} images"))(done, total)

    return progress


@contextmanager
def _open_index(file: Path) -> Iterator[sqlite3.Connection]:
    """Open the index of a library; an error of SQLite becomes a `DataError`."""
    try:
        with closing(sqlite3.connect(file)) as index:
            index.executescript(SCHEMA)
            yield index
    except sqlite3.Error as error:
        raise DataError(
            "The index of the hospital's decoded images cannot be read or written "
            f"({type(error).__name__}): free space on the store's disk, or remove the store's "
            "folder 'images'; it is made again."
        ) from error


def _blank(file: Path, starts: Sequence[int], size: int) -> None:
    """Replace a file by a copy that has `size` zeros at each start; a negative start is none."""
    end = file.stat().st_size if file.exists() else 0
    # A file that was deleted or cut off does not grow: lost images must not come back black.
    if not (starts := [start for start in starts if 0 <= start < end]):
        return
    with replacing(file) as draft, _open(draft) as pixels:
        shutil.copyfile(file, draft)
        for start in starts:
            os.pwrite(pixels, bytes(size), start)


@contextmanager
def _open(file: Path) -> Iterator[int]:
    """Open a file for writing at any position; flush it to disk at the end of the block."""
    place = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield place
        os.fsync(place)
    finally:
        os.close(place)
