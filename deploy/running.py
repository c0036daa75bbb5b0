"""The lock of a folder, from which one server or hospital runs: the file `running.json`.

The lock ends with the process, also after a crash. The file stays, with facts for `status`.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.errors import DeployError
from strategies.protocol.files import check_kind, is_locked, lock_once, open_at_once, read_json

FILE = "running.json"


@contextmanager
def lock(folder: Path, what: str, **facts: str) -> Iterator[None]:
    """Lock a folder for the block.

    `what` names the process in messages. `facts` are for `status`.

    Raises:
        DeployError: The folder cannot be written to, or a process already runs from it.
        OSError: The file is a device, or cannot be written.
    """
    path = folder / FILE
    try:
        descriptor = open_at_once(str(path), os.O_WRONLY | os.O_CREAT)
    except OSError as error:
        raise DeployError(
            f"{path} cannot be written ({error.strerror}): {what} has its files there. Give "
            "this user the right to write there, or choose another folder."
        ) from error
    with os.fdopen(descriptor, "w") as file:
        check_kind(file, path)
        if not lock_once(file.fileno()):
            raise DeployError(
                f"{what} already runs from {folder}, as process "
                f"{read_facts(folder).get('pid', '?')}: end that process first. Each needs its own "
                "folder."
            )
        file.write(json.dumps({**facts, "pid": str(os.getpid())}))
        file.truncate()  # only now: on a full disk the facts of the last start stay
        yield


def read_facts(folder: Path) -> dict[str, str]:
    """The facts about the process that runs, or ran last, from a folder; empty if unknown."""
    try:
        return read_json(folder / FILE, dict[str, str])
    except (OSError, ValueError):  # there is no file, or it is being written
        return {}


def is_running(folder: Path) -> bool:
    """Whether a process runs from a folder."""
    try:
        return is_locked(folder / FILE)
    except FileNotFoundError:
        return False
