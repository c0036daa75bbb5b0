"""The server or hospital that runs from a folder: the file `running.json`, with a lock.

The lock ends with the process, also after a crash. The file stays.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.errors import DeployError

FILE = "running.json"
TIME = "%Y-%m-%d %H:%M:%S"


class Running:
    """The facts about the process that runs from a folder.

    Args:
        file: A descriptor of the file.
        facts: The facts, by name; `pid` and `since` are added.
    """

    def __init__(self, file: int, facts: dict[str, str]) -> None:
        self._file = file
        self._facts: dict[str, Any] = {
            **facts,
            "pid": os.getpid(),
            "since": time.strftime(TIME),
        }
        self._write()

    def note(self, said: str) -> None:
        """Write the last line of the process's log into the file."""
        self._facts |= {"said": said, "said-at": time.strftime(TIME)}
        self._write()

    def _write(self) -> None:
        content = json.dumps(self._facts).encode()
        os.pwrite(self._file, content, 0)
        os.ftruncate(self._file, len(content))


@contextmanager
def only_one(folder: Path, what: str, **facts: str) -> Iterator[Running]:
    """Lock a folder for the block.

    Args:
        folder: The server's or hospital's folder.
        what: A name of the process, for messages.
        facts: Facts about the process for `status`.

    Raises:
        DeployError: The folder cannot be written to, or a process already runs from it.
    """
    path = folder / FILE
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise DeployError(
            f"{folder} cannot be written to ({error.strerror}): {what} keeps its files there, so "
            "give this user the right to, or choose another folder."
        ) from error
    try:
        if not _held(file, fcntl.LOCK_EX):
            now = facts_of(folder)
            raise DeployError(
                f"{what} already runs from {folder}, as process {now.get('pid', '?')}, since "
                f"{now.get('since', '?')}: end that process first. Each needs its own folder."
            )
        yield Running(file, facts)
    finally:
        os.close(file)


def facts_of(folder: Path) -> dict[str, Any]:
    """The facts about the process that runs, or ran last, from a folder; empty if unknown."""
    try:
        facts: dict[str, Any] = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):  # none, or it is being written
        return {}
    return facts


def runs_from(folder: Path) -> bool:
    """Whether a process runs from a folder."""
    try:
        file = os.open(folder / FILE, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _held(file, fcntl.LOCK_SH)
    finally:
        os.close(file)


def folders() -> list[Path]:
    """All folders from which processes of this user run (only on Linux)."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = os.readlink(link)
        except OSError:  # another user's process, or ended
            continue
        if target.endswith(f"/{FILE}") and runs_from(Path(target).parent):
            found.add(Path(target).parent)
    return sorted(found)


def _held(file: int, kind: int) -> bool:
    """Try to take the lock; whether it was free."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
