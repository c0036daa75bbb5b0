"""A warm process: answers messages for the hospitals of this app, one after the other.

    python -P -m warm <module>:<app> <descriptor of a socket>

On a connected socket it answers for simulated hospitals, until the other side closes it. On one
that listens it is a hospital's own: it leaves whoever has started it, and answers each process of
this user that calls, until none has called for `IDLE` seconds.

If the other side closes the connection before it has its answer, the process ends, in the middle of
a training too. So no process works on for one that was killed.
"""

import importlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from struct import unpack
from threading import Event, Thread
from typing import IO, Any

from flwr.app import Context, Error, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp

from strategies.protocol.may_leave import Failure
from warm.wire import Wire

ROOT = Path(__file__).absolute().parents[1]
IDLE = 900.0  # seconds without a message after which a listening process frees its memory


class Handed(Context):
    """The context of a message that another process hands over, and passes the answer of on."""


def launch(
    app: str,
    opened: socket.socket,
    variables: Mapping[str, str],
    output: int | IO[str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a warm process.

    Args:
        app: The app's module and its name there, as in pyproject.toml.
        opened: Its socket.
        variables: Of its environment, beside those of this process.
        output: Where it prints; None = where this process does.
    """
    path = os.pathsep.join([str(ROOT), *sys.path])
    return subprocess.Popen(
        # -P: what is in the working directory is not this app's code.
        [sys.executable, "-P", "-m", "warm", app, str(opened.fileno())],
        env={**os.environ, **variables, "PYTHONPATH": path},
        pass_fds=[opened.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output == subprocess.PIPE else output,
    )


def main(app: str, opened: socket.socket) -> None:
    """Answer messages on a socket by an app: its module, and its name there."""
    listens = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if listens and os.fork():
        os._exit(0)
    module, _, name = app.partition(":")
    loaded = importlib.import_module(module)
    client: ClientApp = getattr(loaded, name)
    if listens:
        serve(opened, client)
    else:
        loaded.simulate()
        _answer(opened, client)


def serve(listener: socket.socket, app: ClientApp) -> None:
    """Answer one caller after the other, until none has come for `IDLE` seconds."""
    listener.settimeout(IDLE)
    while True:
        try:
            caller, _ = listener.accept()
        except TimeoutError:
            return
        with caller:
            if is_ours(caller):
                try:
                    caller.sendall(b"!")
                except ConnectionError:  # the caller has given this process up
                    return
                _answer(caller, app)


def is_ours(connection: socket.socket) -> bool:
    """Whether the process at the other end is this user's; the kernel says so."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, user, _ = unpack("iII", peer)
    return bool(user == os.geteuid())


def _answer(connection: socket.socket, app: ClientApp) -> None:
    """Answer messages until the other side closes the connection."""
    wire, idle = Wire(connection), Event()
    run_config: dict[str, Any] = {}
    idle.set()
    Thread(target=_end_with, args=(connection, idle), daemon=True).start()
    with suppress(EOFError, ConnectionError):
        while True:
            (verb, ttl, node_config, settings), content = wire.receive()
            run_config = run_config if settings is None else dict(settings)
            idle.clear()
            # The other constructors work only in processes that Flower begins.
            metadata = Metadata(0, "", 0, 0, "", "", time.time(), ttl, verb)
            message: Message = Message(content=content, metadata=metadata)  # type: ignore[call-overload]
            context = Handed(0, 0, dict(node_config), RecordDict(), dict(run_config))
            try:
                answer = app(message, context)
            except Exception as error:  # an answer too, as in Flower's engine
                reason = f"{type(error)}:<'{error}'>"
                answer = Message(Error(Failure.CRASHED, reason), reply_to=message)
            idle.set()
            wire.send_answer(answer)
    wire.close()


def _end_with(connection: socket.socket, idle: Event) -> None:
    """End this process, whatever it does, when nobody waits for its answer any more."""
    hang_up = select.poll()
    hang_up.register(connection, 0)  # the system tells it unasked
    hang_up.poll()
    if not idle.is_set():
        os._exit(1)
