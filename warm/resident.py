"""A warm process that stays for all processes of one user: `connect` finds or starts it.

It listens on a socket in a folder that only this user can open. Before a byte is read, each end
asks the kernel for the user at the other end. Another user is refused.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import AF_UNIX, socket

from warm.process import is_ours, launch

HELLO = 5.0  # seconds to wait until a running process accepts the call
START = 300.0  # seconds to wait until a new process accepts the call


def connect(folder: Path, key: str, variables: Mapping[str, str]) -> socket:
    """A connection to the process of a key. A process is started if none accepts the call.

    Closing the connection ends the process if it is still at work. `variables` add to the
    environment of a new process.

    Raises:
        OSError: See `address_of`.
        ConnectionError: The process has not started.
    """
    with address_of(folder, key) as address:
        if connection := call(address, HELLO):
            return connection
        with socket(AF_UNIX) as listener:
            Path(address).unlink(missing_ok=True)  # its process has ended or is stuck
            listener.bind(address)
            listener.listen()
            launch(listener, variables).wait()  # until it runs on its own
        if connection := call(address, START):
            return connection
    raise ConnectionError("The resident process has not started; the hospital's log says why.")


@contextmanager
def address_of(folder: Path, key: str) -> Iterator[str]:
    """The address of the process of a key in a folder of sockets.

    It names the folder by a descriptor. So it is short enough for a socket, and nobody can replace
    the folder after the check.

    Raises:
        OSError: The folder is a link, belongs to another user, or is open to others.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    opened = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        facts = os.fstat(opened)
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            raise PermissionError(f"user {facts.st_uid}, mode {facts.st_mode & 0o777:o}")
        yield f"/proc/self/fd/{opened}/{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    finally:
        os.close(opened)


def call(address: str, seconds: float) -> socket | None:
    """A connection to the process at an address; None if it has ended, is stuck or is ending."""
    connection = socket(AF_UNIX)
    connection.settimeout(seconds)
    with suppress(OSError):
        connection.connect(address)
        if is_ours(connection) and connection.recv(1):
            return connection
    connection.close()
    return None
