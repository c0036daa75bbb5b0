"""A resident process that keeps what takes long to load: torch, the images, the device.

Flower starts a process for every message, and that process needs seconds before it can begin. With
`resident` in its node-config, a hospital works in a process that stays. The process that Flower
starts hands the message to it, and passes its answer on. What a message can do
and what leaves the hospital is the same: both run the same app, with its guard.

The two processes talk through `multiprocessing.connection`, which pickles: Flower has no public way
to write a Message and a Context as bytes. Nothing else here is ever unpickled, and this opens no
door. Either end reads only what the other has pickled, and both run the same code as the same user.
The socket is in a folder with mode 0700, and so is the file in the store that names the socket.
Whoever can write there already acts as that user, and could change this code as well.
"""

import hashlib
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Thread

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from client_app.store import DEFAULT
from learning.errors import DeadlineError
from strategies.protocol.files import replacing

APP = Path(__file__).absolute().parents[1]
IDLE = 900.0  # seconds without a message after which the process ends and frees its memory
HELLO = 5.0  # seconds to wait until a message is accepted
GRACE = 5.0  # seconds of grace after the message's deadline


def resident(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Have the message answered by the resident process if the hospital has one (a Flower mod).

    Raises:
        ConnectionError: The process ended without an answer, for lack of memory for instance.
        DeadlineError: The process did not answer in time.
    """
    # Any process can say that the hospital can be reached.
    if message.metadata.message_type == "query.live" or not context.node_config.get("resident"):
        return call_next(message, context)
    there = replace(context, node_config={**context.node_config, "resident": False})
    # Closing the connection ends the process if it is still at work.
    with _connect(_place(context)) as connection:
        try:
            connection.send((message, there))
            if not connection.poll(message.metadata.ttl + GRACE):
                raise DeadlineError("The time allowed for the message ran out.")
            answer: Message = connection.recv()
        except (EOFError, ConnectionError) as error:
            raise ConnectionError("The resident process ended without an answer.") from error
    return answer


def _place(context: Context) -> Path:
    """The file with the address of this hospital's process for this code."""
    store = Path(str(context.node_config.get("store-dir", DEFAULT))).expanduser()
    facts = (APP, sys.executable, sorted(context.node_config.items()))
    return store / "resident" / hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _connect(place: Path) -> Connection:
    """A connection to the process, which is started if none accepts messages."""
    if place.exists():
        last = place.read_text()
        if connection := _call(last):
            return connection
        _clear(Path(last))
    # A name short enough for a socket, in a folder that only this user can open.
    address = f"{tempfile.mkdtemp(prefix='fedhandoff-')}/resident"
    command = [sys.executable, "-m", "client_app.resident", address]
    started = subprocess.run(command, cwd=APP, stdin=subprocess.DEVNULL, check=False)
    connection = None if started.returncode else _call(address)
    if connection is None:
        raise ConnectionError("The resident process has not started; the hospital's log says why.")
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replacing(place) as draft:
        draft.write_text(address)
    return connection


def _call(address: str) -> Connection | None:
    """A connection to the process at an address; None if it is gone, stuck or about to end."""
    caller = socket.socket(socket.AF_UNIX)
    try:
        caller.connect(address)
    except OSError:
        caller.close()
        return None
    connection = Connection(caller.detach())
    try:
        if connection.poll(HELLO) and connection.recv():
            return connection
    except (EOFError, ConnectionError):
        pass
    connection.close()
    return None


def main(address: Path) -> None:
    """Listen at an address, and answer messages in a copy of this process that stays."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        if os.fork():
            os._exit(0)
        try:
            serve(listener)
        finally:
            _clear(address)


def _clear(address: Path) -> None:
    with suppress(OSError):
        address.unlink()
        address.parent.rmdir()


def serve(listener: socket.socket) -> None:
    """Answer one message after the other, until none has come for `IDLE` seconds."""
    listener.settimeout(IDLE)
    while True:
        try:
            caller, _ = listener.accept()
        except TimeoutError:
            return
        with Connection(caller.detach()) as connection:
            _answer(connection)


def _answer(connection: Connection) -> None:
    connection.send(True)
    from client_app.app import app  # which imports this file

    message, context = connection.recv()
    answered = Event()
    Thread(target=_end_with, args=(connection, answered), daemon=True).start()
    answer = app(message, context)
    answered.set()
    connection.send(answer)


def _end_with(connection: Connection, answered: Event) -> None:
    """End this process, whatever it does, when nobody waits for the answer any more."""
    connection.poll(None)  # until the other end closes it: nothing more is sent
    if not answered.is_set():
        os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
