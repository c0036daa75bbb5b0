"""Which server or hospital runs from a folder: the file `running.json` there, and a lock on it.

The lock ends with the process, however that ends; the file is left.
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
    """What is told about the process that runs from a folder.

    Args:
        file: A descriptor of the file.
        facts: By name; `pid` and `since` are added.
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
        """Tell what the process has said last."""
        self._facts |= {"said": said, "said-at": time.strftime(TIME)}
        self._write()

    def _write(self) -> None:
        content = json.dumps(self._facts).encode()
        os.pwrite(self._file, content, 0)
        os.ftruncate(self._file, len(content))


@contextmanager
def only_one(folder: Path, what: str, **facts: str) -> Iterator[Running]:
    """Hold a folder for as long as the block lasts.

    Args:
        folder: The server's or hospital's.
        what: Runs from it, for people.
        facts: What `status` is to tell about it.

    Raises:
        DeployError: The folder cannot be written to, or one runs from it already.
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
                f"{what} runs from {folder} already, as process {now.get('pid', '?')}, since "
                f"{now.get('since', '?')}: end that first. Each needs a folder of its own."
            )
        yield Running(file, facts)
    finally:
        os.close(file)


def facts_of(folder: Path) -> dict[str, Any]:
    """What is known of the process that runs, or ran last, from a folder; empty if nothing is."""
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
    """All folders from which processes of this user run, as far as the system tells (Linux)."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = os.readlink(link)
        except OSError:  # another user's, or gone
            continue
        if target.endswith(f"/{FILE}") and runs_from(Path(target).parent):
            found.add(Path(target).parent)
    return sorted(found)


def _held(file: int, kind: int) -> bool:
    """Take the lock, unless somebody else has it; whether it was taken."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
