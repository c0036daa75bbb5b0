"""A warm process that stays for all processes of one user: found by its address, or started.

It listens on a socket in a folder that only this user can open. On either end the kernel says who
the other one is, before a byte is read: another user is refused.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import AF_UNIX, socket

from warm.process import is_ours, launch

HELLO = 5.0  # seconds to wait until a message is accepted,
START = 300.0  # and by a process that has yet to start


def connect(folder: Path, key: str, app: str, variables: Mapping[str, str]) -> socket:
    """A connection to the process of a key, which is started if none accepts messages.

    Closing the connection ends the process if it is still at work.

    Args:
        folder: Where the sockets are.
        key: A text; processes of different keys are different ones.
        app: As of `launch`, for a new process.
        variables: The same.

    Raises:
        OSError: The folder is a link, another user's, or open to others.
        ConnectionError: The process has not started.
    """
    with address_of(folder, key) as address:
        if connection := call(address, HELLO):
            return connection
        with socket(AF_UNIX) as listener:
            Path(address).unlink(missing_ok=True)  # of a process that has ended or is stuck
            listener.bind(address)
            listener.listen()
            launch(app, listener, variables).wait()  # until it runs on its own
        if connection := call(address, START):
            return connection
    raise ConnectionError("The resident process has not started; the hospital's log says why.")


@contextmanager
def address_of(folder: Path, key: str) -> Iterator[str]:
    """The address of the process of a key.

    It goes by way of a descriptor of the folder. So it is short enough for a socket wherever the
    folder is, and nobody can put another folder in the place of the one that was checked.

    Raises:
        OSError: The folder is a link, another user's, or open to others.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    opened = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        facts = os.fstat(opened)
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            raise PermissionError(f"user {facts.st_uid}, mode {facts.st_mode & 0o777:o}")
        yield f"/proc/self/fd/{opened}/{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    finally:
        os.close(opened)


def call(address: str, seconds: float) -> socket | None:
    """A connection to the process at an address; None if it is gone, stuck or about to end."""
    connection = socket(AF_UNIX)
    connection.settimeout(seconds)
    with suppress(OSError):
        connection.connect(address)
        if is_ours(connection) and connection.recv(1):
            return connection
    connection.close()
    return None
