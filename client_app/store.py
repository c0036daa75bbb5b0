"""A hospital's own folder: what stays there between two messages, and never leaves.

A kill at any moment leaves the old file or the new one (strategies.protocol.files).
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.protocol.archive import load
from strategies.protocol.files import STORES, replacing

DEFAULT = STORES
GB = 1e9


def own_folder(path: Path) -> Path:
    """Make a folder, and those above it that are missing, for this user alone; the folder.

    Raises:
        OSError: One cannot be made; the text says what to do.
    """
    for each in [] if path.is_dir() else [*reversed(path.parents), path]:
        try:
            each.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            cure = "give the hospital another folder with store-dir (--store-dir)"
            text = f"The folder cannot be made ({error.strerror}): {cure}"
            raise OSError(error.errno, text, str(each)) from error
    return path


def disk_used(folder: Path) -> int:
    """Bytes that a folder takes on its disk."""
    used = 0
    for inside, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # a draft of another process
                used += Path(inside, name).lstat().st_blocks * 512
    return used


@contextmanager
def own_draft(path: Path) -> Iterator[Path]:
    """A new file beside `path` for this user alone, to be put in its place; removed afterwards.

    Nobody can have made it, or a link of its name, before: the name is drawn.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=own_folder(path.parent))
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


class Store:
    """Named sets of arrays in one folder.

    Args:
        folder: The hospital's folder; made at the first `save`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep a set of arrays under a name such as "runs/1/local"."""
        path = self.folder / f"{name}.npz"
        own_folder(path.parent)
        with replacing(path) as draft, draft.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    def load(self, name: str) -> dict[str, NDArray[Any]]:
        """The arrays kept under a name; empty if nothing was kept.

        Raises:
            ArchiveError: The file is damaged.
            OSError: It cannot be read.
        """
        path = self.folder / f"{name}.npz"
        return load(path) if path.exists() else {}

    def names(self, folder: str) -> list[str]:
        """What is kept in a folder such as "runs/1": the names below it, such as "home"."""
        return [path.stem for path in (self.folder / folder).glob("*.npz")]

    def discard(self, name: str) -> None:
        """Delete what is kept under a name, if there is anything."""
        (self.folder / f"{name}.npz").unlink(missing_ok=True)
