"""A warm process: answers messages for the hospitals of this app, one after the other.

    python -P -m warm <descriptor of a socket>

On a connected socket it forks a process for each socket that arrives (`Stem`). Such a process
answers for simulated hospitals, until the other side closes its socket. On a listening socket it is
a hospital's own process: it detaches from its parent, and answers each calling process of this
user, until there was no call for `IDLE` seconds.

If the other side closes the connection before it has its answer, the process ends, also during
training. So no process works for a caller that was killed.
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
from signal import SIGTERM
from struct import pack, unpack
from threading import Event, Thread
from typing import IO, Any

from flwr.app import Context, Error, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp

from strategies.protocol.may_leave import Failure
from warm.wire import Wire

ROOT = Path(__file__).absolute().parents[1]
APP = "client_app.app"  # the module of the app
IDLE = 900.0  # seconds without a message after which a listening process frees its memory


class Stem:
    """The caller's side of a process that has imported the app, and is forked for each worker.

    So torch is imported once, and its memory is shared. The forked process has imported modules and
    computed nothing. Its only other threads are those of BLAS, which a forked process starts anew.
    """

    def __init__(self, variables: Mapping[str, str], output: int | IO[str]) -> None:
        self.connection, theirs = socket.socketpair()
        with theirs:
            self.process = launch(theirs, variables, output)

    def fork(self) -> tuple[int, socket.socket]:
        """A new process, and a connection to it.

        Raises:
            ConnectionError: The app could not be imported.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                return self._ask(0, [theirs.fileno()]), ours
            except ConnectionError:
                ours.close()
                raise

    def end(self, process: int) -> int:
        """End a process of `fork`; returns its exit code, as of `subprocess.Popen`."""
        os.kill(process, SIGTERM)
        return self._ask(process, [])

    def close(self) -> None:
        """End the process that is forked."""
        self.process.terminate()
        self.process.wait()
        self.connection.close()

    def _ask(self, process: int, files: list[int]) -> int:
        with suppress(ConnectionError):
            socket.send_fds(self.connection, [pack("i", process)], files)
            if answer := self.connection.recv(4):
                return int(unpack("i", answer)[0])
        raise ConnectionError("The process of the simulated hospitals has ended; see its log.")


def _fork_or_wait(connection: socket.socket, app: ClientApp) -> None:
    """Answer a `Stem` until it closes the connection."""
    while True:
        asked, files, _, _ = socket.recv_fds(connection, 4, 1)
        if not asked:
            return
        (process,) = unpack("i", asked)
        if process:
            answer = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        elif not (answer := os.fork()):
            connection.close()
            _answer(socket.socket(fileno=files[0]), app)
            return
        else:
            os.close(files[0])
        connection.sendall(pack("i", answer))


class Handed(Context):
    """The context of a message from another process, which passes the answer on."""


def launch(
    opened: socket.socket, variables: Mapping[str, str], output: int | IO[str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a warm process.

    `opened` is the socket of the process. `variables` add to the environment of this process.
    Without `output`, the process has that of this process.
    """
    path = os.pathsep.join([str(ROOT), *sys.path])
    return subprocess.Popen(
        # -P: Python must not import from the working directory.
        [sys.executable, "-P", "-m", "warm", str(opened.fileno())],
        env={**os.environ, **variables, "PYTHONPATH": path},
        pass_fds=[opened.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output == subprocess.PIPE else output,
        # Ctrl-C ends the caller, and so a process of its own (`_end_with`). A hospital's process
        # stays in the group that its supervisor ends.
        process_group=None if _listens(opened) else 0,
    )


def main(opened: socket.socket) -> None:
    """Answer messages on a socket."""
    listens = _listens(opened)
    if listens and os.fork():
        os._exit(0)
    loaded = importlib.import_module(APP)
    if listens:
        serve(opened, loaded.app)
    else:
        loaded.simulate()
        _fork_or_wait(opened, loaded.app)


def _listens(opened: socket.socket) -> bool:
    return bool(opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def serve(listener: socket.socket, app: ClientApp) -> None:
    """Answer one caller after the other, until there was none for `IDLE` seconds."""
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
                except ConnectionError:  # the caller no longer waits for this process
                    return
                _answer(caller, app)


def is_ours(connection: socket.socket) -> bool:
    """Whether the process at the other end belongs to this user, by the kernel's record."""
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
            if _has_hung_up(connection, 0):  # `_end_with` may have found this process idle
                break
            # The other constructors work only in processes that Flower starts.
            metadata = Metadata(0, "", 0, 0, "", "", time.time(), ttl, verb)
            message: Message = Message(content=content, metadata=metadata)  # type: ignore[call-overload]
            context = Handed(0, 0, dict(node_config), RecordDict(), dict(run_config))
            try:
                answer = app(message, context)
            except Exception as error:  # the error is the answer, as in Flower's engine
                reason = f"{type(error)}:<'{error}'>"
                answer = Message(Error(Failure.CRASHED, reason), reply_to=message)
            idle.set()
            wire.send_answer(answer)
    wire.close()


def _end_with(connection: socket.socket, idle: Event) -> None:
    """End this process, also at work, when the other side closes the connection."""
    if _has_hung_up(connection, None) and not idle.is_set():
        os._exit(1)


def _has_hung_up(connection: socket.socket, wait: int | None) -> bool:
    """Whether the other side has closed the connection; None waits until it has."""
    hang_up = select.poll()
    hang_up.register(connection, 0)  # a hang-up is always reported
    return bool(hang_up.poll(wait))
