"""A hospital's store: a folder that stays between messages and never leaves the hospital.

If the process is killed while it writes, the old or the new file is there, whole
(strategies.protocol.files).
"""

import logging
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from client_app.authority.node_config import OwnError
from strategies.protocol import archive
from strategies.protocol.files import STORES, open_at_once, replacing

DEFAULT = STORES
GB = 1e9
SMALL = 2**20  # bytes
PATIENCE = 5.0  # seconds of waiting for a lock until a line is logged


def own_folder(path: Path) -> Path:
    """Make a folder, and missing folders above it, for this user only; returns the folder.

    Raises:
        OSError: A folder cannot be made; the text has the cure.
    """
    for each in [] if path.is_dir() else [*reversed(path.parents), path]:
        try:
            each.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            cure = "choose another folder as store in hospital.toml, or with --store-dir"
            text = f"The folder cannot be made ({error.strerror}): {cure}"
            raise OSError(error.errno, text, str(each)) from error
    return path


def append_text(path: Path, text: str) -> None:
    """Add text at the end of a file, on the disk; a new file is for this user alone."""
    with open(path, "a", encoding="utf-8", opener=open_at_once) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def hold_lock(lock: Path, work: str, most: float = math.inf) -> Iterator[None]:
    """Do the work of a file `lock` while no other process does it; a long wait is logged.

    `work` is for the log, such as "decodes these images".

    Raises:
        TimeoutError: The other process has not ended within `most` seconds.
    """
    file = FileLock(lock)
    try:
        file.acquire(min(most, PATIENCE))
    except TimeoutError:
        logging.getLogger("flwr").info("Another process %s. This one waits for it (%s)", work, lock)
        file.acquire(max(0.0, most - PATIENCE))
    try:
        yield
    finally:
        file.release()


def disk_used(folder: Path) -> int:
    """The size of a folder on the disk, in bytes."""
    used = 0
    for inside, _, names in os.walk(folder):
        for name in names:
            # Without Path, which takes twice as long: this runs before each message.
            with suppress(FileNotFoundError):  # a draft of another process
                used += os.lstat(f"{inside}/{name}").st_blocks * 512
    return used


class DamagedError(OwnError, archive.ArchiveError):
    """A file of a store is damaged; the hospital's own log has its path and the cure."""

    def __init__(self, path: Path, error: Exception) -> None:
        cure = "Restore it from a copy. Without one, the hospital can take part in the next run"
        super().__init__("store", f"{path} is damaged ({error}). {cure}.")


@lru_cache(maxsize=1024)  # one process may serve many simulated hospitals
def _load_once(path: Path, inode: int, written: int) -> Mapping[str, NDArray[Any]]:
    return _load(path)


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        return archive.load(path)
    except archive.ArchiveError as error:
        raise DamagedError(path, error) from error


@dataclass(frozen=True)
class Store:
    """Named sets of arrays in one folder, which is made at the first `save`."""

    folder: Path

    def save(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep a set of arrays under a name such as "runs/1/local"."""
        path = self.folder / f"{name}.npz"
        own_folder(path.parent)
        with replacing(path) as draft, draft.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    def load(self, name: str) -> dict[str, NDArray[Any]]:
        """The arrays kept under a name; empty if nothing was kept.

        Raises:
            DamagedError: The file is damaged.
            OSError: The file cannot be read.
        """
        path = self.folder / f"{name}.npz"
        return _load(path) if path.exists() else {}

    def load_small(self, name: str) -> Mapping[str, NDArray[Any]]:
        """As `load`; an unchanged file of at most `SMALL` bytes is read once in a process."""
        path = self.folder / f"{name}.npz"
        if not path.exists():
            return {}
        status = path.stat()
        if status.st_size > SMALL:  # a server decides on the size, and begins many runs
            return self.load(name)
        return _load_once(path, status.st_ino, status.st_mtime_ns)

    def names(self, folder: str) -> list[str]:
        """The names of the sets in a folder such as "runs/1": the last parts, such as "home"."""
        return [file.stem for file in (self.folder / folder).glob("*.npz")]

    def discard(self, name: str) -> None:
        """Delete the set of arrays under a name, if there is one."""
        (self.folder / f"{name}.npz").unlink(missing_ok=True)
