"""The resident process of a hospital: it answers messages in the place of those that Flower starts.

Who starts it, and hands messages to it: client_app/resident.py.
"""

import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from socket import AF_UNIX
from threading import Event, Thread

from flwr.app import Message, Metadata, RecordDict

from client_app.app import app
from client_app.authority.node_config import NODE_CONFIG
from client_app.release.guard import Failed
from client_app.resident import address_of, is_ours
from strategies.protocol.handover import Handed, receive, send

IDLE = 900.0  # seconds without a message after which the process ends and frees its memory


def main() -> None:
    """Listen, and answer messages in a copy of this process that stays."""
    with socket.socket(AF_UNIX) as listener:
        with address_of(json.loads(os.environ[NODE_CONFIG])) as address:
            Path(address).unlink(missing_ok=True)  # of a process that has ended or is stuck
            listener.bind(address)
        listener.listen()
        if os.fork():
            os._exit(0)
        serve(listener)


def serve(listener: socket.socket) -> None:
    """Answer one message after the other, until none has come for `IDLE` seconds."""
    listener.settimeout(IDLE)
    while True:
        try:
            caller, _ = listener.accept()
        except TimeoutError:
            return
        with caller:
            if not is_ours(caller):
                continue
            try:
                _answer(caller)
            except (EOFError, ConnectionError):  # the caller has given this process up
                return


def _answer(caller: socket.socket) -> None:
    caller.sendall(b"!")
    with caller.makefile("rb") as messages:
        (verb, ttl, run_config), content = receive(messages)
    answered = Event()
    Thread(target=_end_with, args=(caller, answered), daemon=True).start()
    answer = app(_arrived(content, verb, ttl), Handed(0, 0, {}, RecordDict(), dict(run_config)))
    answered.set()
    if answer.has_error():
        error = answer.error
        rule = error.rule if isinstance(error, Failed) else ""
        send(caller, [error.code, error.reason, rule], RecordDict())
    else:
        send(caller, [], answer.content)


def _arrived(content: RecordDict, verb: str, ttl: float) -> Message:
    """The message, as it came; ids that matter to Flower alone are in the process that it began."""
    # The other constructors work only in processes that Flower begins.
    metadata = Metadata(0, "", 0, 0, "", "", time.time(), ttl, verb)
    return Message(content=content, metadata=metadata)  # type: ignore[call-overload, no-any-return]


def _end_with(caller: socket.socket, answered: Event) -> None:
    """End this process, whatever it does, when nobody waits for the answer any more."""
    with suppress(ConnectionError):  # the other end was killed
        caller.recv(1)  # until it closes: nothing more is sent
    if not answered.is_set():
        os._exit(1)


if __name__ == "__main__":
    main()
