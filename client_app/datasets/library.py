"""A library of a hospital's decoded images: files of pixels that are mapped into memory.

A library belongs to one listing of images (client_app.datasets.listing) and is one folder:

    index.sqlite                 the facts of each file, and the place of its pixels
    <C>x<H>x<W>-<fit>.pixels     images of one form, uint8 [M, C, H, W], one after the other

Size and time of change identify a file; a hash of its content identifies its pixels. A changed file
is decoded again; a moved or copied file is not. After an update of `DECODERS` all files are decoded
again. Pixels of images that are no longer listed are overwritten with zeros, in a copy that
replaces the file: a process that has mapped the file may still train on them. Their place in the
copy is used for another image. The index is written only after the pixels are on disk: a kill at
any moment loses only a few seconds of work.
"""

import hashlib
import json
import math
import os
import shutil
import sqlite3
import zlib
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from itertools import count, groupby
from pathlib import Path

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
    size INTEGER,
    modified INTEGER,           -- time of change; -1 if the file could not be read
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
DECODERS = ("dicom", "files", "image", "nifti", "resize")
_SOURCES = [Path(__file__).with_name(f"{name}.py").read_bytes() for name in DECODERS]
VERSION = zlib.crc32(b"".join(_SOURCES)) // 2  # SQLite keeps 31 bits
# Images between two commits: few enough to decode again, enough to keep all cores busy.
CHUNK = 256

_Key = tuple[str, int]  # path or content, and slice


@dataclass
class File:
    """A listed file, or a slice of one: its facts in the table `files`, and its row of pixels."""

    entry: Entry
    size: int  # bytes
    modified: int  # time of change; -1 if the file could not be read
    header: Header | None = None  # None if it could not be read
    reason: str = ""  # why the image cannot be used; empty if it can
    content: str = ""  # SHA-256 of the file; empty if the file could not be read
    row: int = -1  # row of the image among the pixels of one form; -1 = it cannot be used

    @property
    def place(self) -> _Key:
        """The key of the table `files`."""
        return str(self.entry.file), -1 if self.entry.slice is None else self.entry.slice

    @property
    def memory(self) -> int:
        """Bytes that the file takes at most: it may be one long header, which a reader copies."""
        return 3 * self.size + (self.header.memory if self.header else 0)

    @property
    def key(self) -> _Key:
        """The key of the file's pixels in any form."""
        return self.content, self.place[1]


@dataclass(frozen=True, eq=False)
class DecodedImages:
    """The images of a listing, in one form."""

    pixels: NDArray[np.uint8]  # uint8 [M, C, H, W], mapped from a file
    files: list[File]  # the files of the listing, in its order


def open_library(
    folder: Path,
    entries: Sequence[Entry],
    form: Form,
    retry: bool = False,
    machine: MachineRules | None = None,
) -> DecodedImages:
    """Open images; first decode the new and the changed ones.

    Args:
        folder: Folder of the library, `images/<name>` in a store; created if missing.
        entries: The images. The library forgets all others.
        form: The form of the opened images.
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
        library = _Library(folder, index, machine)
        files = library.look_at(entries)
        opened = library.decode(files, form)
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


@dataclass(frozen=True)
class _Library:
    """The folder of a library, its index, and the limits of the machine."""

    folder: Path
    index: sqlite3.Connection
    machine: MachineRules | None

    def look_at(self, entries: Sequence[Entry]) -> list[File]:
        """Return the facts of each file; read the headers of new and changed files."""
        rows = self.index.execute(
            "SELECT path, slice, size, modified, header, reason, content FROM files"
        )
        known = {(path, slice_): facts for path, slice_, *facts in rows}
        files, changed = [File(entry, *_stat(entry.file)) for entry in entries], []
        for file in files:
            size, modified, header, reason, content = known.get(file.place, [None] * 5)
            if (size, modified) == (file.size, file.modified):
                fields = json.loads(header)
                file.header = Header(*fields) if fields else None
                file.reason, file.content = reason, content
            else:
                changed.append(file)
        for chunk, threads in self._chunks("looking at", changed):
            list(threads.map(_look, chunk))
            self._save(chunk)
        return files

    def decode(self, files: list[File], form: Form) -> DecodedImages:
        """Return all images in a form; decode those that the library does not have."""
        shape = _shape([file.header for file in files if file.header], form)
        name = f"{'x'.join(map(str, shape))}-{form.fit}"
        place = self.folder / f"{name}.pixels"
        # The file of pixels may be too short: deleted, or the disk was full.
        kept = (place.stat().st_size if place.exists() else 0) // max(1, math.prod(shape))
        self.index.execute("DELETE FROM pixels WHERE form = ? AND row >= ?", [name, kept])
        rows = self.index.execute(
            "SELECT content, slice, row, reason FROM pixels WHERE form = ?", [name]
        )
        found = {(content, slice_): (row, reason) for content, slice_, row, reason in rows}
        missing = [file for file in files if not file.reason and file.key not in found]
        work = partial(_decode, form=form, shape=shape, known=frozenset(found))
        used = {row for row, _ in found.values()}
        free = (row for row in count() if row not in used)
        if missing:
            check_disk(self.machine, self.folder.parents[1], len(missing) * math.prod(shape))
        for chunk, threads in self._chunks("importing", missing):
            new = {}
            with _open(place) as pixels:
                for file, decoded in zip(chunk, threads.map(work, chunk), strict=True):
                    file.content, image, reason = decoded
                    if not file.content:  # it could not be read: try again next time
                        file.reason, file.modified = reason, -1
                    elif file.key not in found:
                        row = -1 if image is None else next(free)
                        if image is not None:
                            os.pwrite(pixels, image, row * len(image))
                        found[file.key] = new[file.key] = (row, reason)
            self.index.executemany(
                "INSERT INTO pixels VALUES (?, ?, ?, ?, ?)",
                [(name, *key, *value) for key, value in new.items()],
            )
            self._save(chunk)
        # The reason belongs to the content, or to the file if it could not be read.
        for file in files:
            file.row, file.reason = found.get(file.key, (-1, file.reason))
        whole = (1 + max((file.row for file in files), default=-1), *shape)
        if not whole[0]:  # an empty array cannot be mapped
            return DecodedImages(np.zeros(whole, np.uint8), files)
        # Copy on write, since torch wants writable arrays.
        return DecodedImages(np.memmap(place, np.uint8, "c", shape=whole), files)

    def forget_all_but(self, files: Sequence[File]) -> None:
        """Forget all other files, and overwrite the pixels that only they had."""
        listed = {file.place for file in files}
        known = self.index.execute("SELECT path, slice FROM files").fetchall()
        gone = [place for place in known if place not in listed]
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

    def _save(self, files: Sequence[File]) -> None:
        """Write the facts of some files to the index."""
        for file in files:
            header = json.dumps(file.header and astuple(file.header))
            facts = *file.place, file.size, file.modified, header, file.reason, file.content
            self.index.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", facts)
        self.index.commit()

    def _chunks(
        self, step: str, files: Sequence[File]
    ) -> Iterator[tuple[Sequence[File], Executor]]:
        """Yield chunks of the files, with as many threads to work on them as memory allows."""
        pace = Pace(f"{step} images")
        at_once = decoding_threads(self.machine, max((f.memory for f in files), default=0))
        with ThreadPoolExecutor(at_once) as threads:
            for start in range(0, len(files), CHUNK):
                pace(start, len(files))
                yield files[start : start + CHUNK], threads


def _stat(file: Path) -> tuple[int, int]:
    """Size in bytes and time of change in ns; -1 if the file cannot be looked up."""
    try:
        found = file.stat()
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns


def _look(file: File) -> None:
    """Read the header of a file, or note why the file cannot be used."""
    try:
        file.header = read_header(file.entry.file, file.entry.slice)
    except UnusableImage as error:
        file.reason = str(error)
        # A number means that the disk or the network failed, not the file: try again next time.
        if isinstance(error.__context__, OSError) and error.__context__.errno:
            file.modified = -1


def _shape(headers: Sequence[Header], form: Form) -> tuple[int, int, int]:
    """(C, H, W) of all images in a form; grey ones among colour get three equal channels."""
    channels = max([1, form.channels, *(header.channels for header in headers)])
    if form.size:
        return channels, form.size, form.size
    height, width = common_size("of the hospital", ((each.height, each.width) for each in headers))
    return channels, height, width


def _decode(
    file: File, form: Form, shape: tuple[int, int, int], known: Container[_Key]
) -> tuple[str, bytes | None, str]:
    """The hash of a file's content, its pixels if not yet known, and the reason of a failure."""
    try:
        content = read_file(file.entry.file)
    except UnusableImage as error:
        return "", None, str(error)
    digest = hashlib.sha256(content).hexdigest()
    if (digest, file.place[1]) in known:
        return digest, None, ""
    try:
        image = prepare(content, file.entry.slice, form, shape)
    except UnusableImage as error:
        return digest, None, str(error)
    return digest, image.contiguous().numpy().tobytes(), ""


@contextmanager
def _open_index(file: Path) -> Iterator[sqlite3.Connection]:
    """Open the index of a library; an error of SQLite becomes a `DataError`."""
    try:
        with closing(sqlite3.connect(file)) as index:
            index.executescript(SCHEMA)
            if index.execute("PRAGMA user_version").fetchone() != (VERSION,):
                index.executescript(
                    "DELETE FROM files; UPDATE pixels SET content = rowid;"
                    f"PRAGMA user_version = {VERSION}"
                )
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
