"""A resident process that keeps what takes long to load: torch, the images, the device.

Flower starts a process for every message, and that process needs seconds before it can begin. With
`resident` in its node-config, a hospital works in a process that stays. The process that Flower
starts hands the message to it (strategies/protocol/handover.py), and passes its answer on. What a
message can do and what leaves the hospital is the same: both run the same app, with its guard.

The resident process listens on a socket in a folder of the store that only this user can open. On
either end the kernel says who the other one is, before a byte is read: another user is refused.
"""

import hashlib
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import AF_UNIX, SOL_SOCKET
from struct import unpack
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from client_app.authority.node_config import NODE_CONFIG, own_config
from client_app.release.guard import Failed
from client_app.store import DEFAULT
from learning.errors import DeadlineError
from strategies.protocol.code import code_hash
from strategies.protocol.handover import Handed, receive, send
from strategies.protocol.settings import SettingsError

APP = Path(__file__).absolute().parents[1]
HELLO = 5.0  # seconds to wait until a message is accepted
GRACE = 5.0  # seconds of grace after the message's deadline


def resident(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Have the message answered by the resident process if the hospital has one (a Flower mod).

    Raises:
        ConnectionError: The process ended without an answer, for lack of memory for instance.
        DeadlineError: The process did not answer in time.
        SettingsError: Others can open the folder of the socket.
        ParcelError: The message is too large.
    """
    config, asked = own_config(context), message.metadata
    # Any process can say that the hospital can be reached.
    here = asked.message_type == "query.live" or isinstance(context, Handed)
    if here or not config.get("resident"):
        return call_next(message, context)
    facts = [asked.message_type, asked.ttl, list(context.run_config.items())]
    # Closing the connection ends the process if it is still at work.
    with _connect(config) as connection, connection.makefile("rb") as answers:
        connection.settimeout(asked.ttl + GRACE)
        try:
            send(connection, facts, message.content)
            failure, content = receive(answers)
        except TimeoutError as error:
            raise DeadlineError("The time allowed for the message ran out.") from error
        except (EOFError, ConnectionError) as error:
            raise ConnectionError("The resident process ended without an answer.") from error
    if failure:
        return Message(Failed(*failure), reply_to=message)
    return Message(content, reply_to=message)


def _connect(config: Mapping[str, Any]) -> socket.socket:
    """A connection to the process, which is started if none accepts messages."""
    with address_of(config) as address:
        if connection := _call(address):
            return connection
        started = subprocess.run(
            [sys.executable, "-m", "client_app.resident_process"],
            cwd=APP,
            env={**os.environ, NODE_CONFIG: json.dumps({**config})},
            stdin=subprocess.DEVNULL,
            check=False,
        )
        connection = None if started.returncode else _call(address)
    if connection is None:
        raise ConnectionError("The resident process has not started; the hospital's log says why.")
    return connection


@contextmanager
def address_of(config: Mapping[str, Any]) -> Iterator[str]:
    """The address of this hospital's process for this code.

    It goes by way of a descriptor of the folder. So it is short enough for a socket wherever the
    store is, and nobody can put another folder in the place of the one that was checked.

    Raises:
        SettingsError: The folder is a link, another user's, or open to others.
    """
    if sys.platform != "linux":
        raise SettingsError("A resident process needs Linux: set 'resident' to false.")
    store = Path(str(config.get("store-dir", DEFAULT))).expanduser()
    try:
        folder = _open_own(store / "resident")
    except OSError as error:
        logging.getLogger("flwr").error("%s cannot be used: %s", store / "resident", error)
        raise SettingsError(
            "The folder 'resident' in the hospital's store must be a folder of mode 0700 that "
            "belongs to the hospital's user: remove what is there."
        ) from error
    try:
        process = repr((APP, code_hash(), sys.executable, sorted(config.items())))
        yield f"/proc/self/fd/{folder}/{hashlib.sha256(process.encode()).hexdigest()[:16]}"
    finally:
        os.close(folder)


def _open_own(folder: Path) -> int:
    """A descriptor of a folder that only this user can open, which is made if it is not there.

    Raises:
        OSError: It is a link, not a folder, another user's, or open to others.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    opened = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW)
    facts = os.fstat(opened)
    if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        os.close(opened)
        raise PermissionError(f"user {facts.st_uid}, mode {facts.st_mode & 0o777:o}")
    return opened


def _call(address: str) -> socket.socket | None:
    """A connection to the process at an address; None if it is gone, stuck or about to end."""
    connection = socket.socket(AF_UNIX)
    connection.settimeout(HELLO)
    with suppress(OSError):
        connection.connect(address)
        if is_ours(connection) and connection.recv(1):
            return connection
    connection.close()
    return None


def is_ours(connection: socket.socket) -> bool:
    """Whether the process at the other end is this user's; the kernel says so."""
    _, user, _ = unpack("iII", connection.getsockopt(SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.geteuid())
