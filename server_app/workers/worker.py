"""A warm process: answers messages to simulated hospitals, one after the other.

    python -P -m server_app.workers.worker <descriptor of a socket> <folder of records>

It ends with the process that started it, in the middle of a training too.
"""

import importlib
import os
import sys
import threading
import time
from itertools import count
from pathlib import Path
from socket import socket
from typing import Any

from flwr.app import ArrayRecord, Context, Error, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp

from server_app.workers.wire import Inbox, receive, send, write
from strategies.protocol.may_leave import Failure


def main(connection: socket, folder: Path) -> None:
    """Answer until the other side closes the socket."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    # By its name, as Flower does: the server's code does not import a hospital's.
    importlib.import_module("client_app.authority.node_config").simulate()
    app: ClientApp = importlib.import_module("client_app.app").app
    inbox, names = Inbox(folder), count()
    run_config: dict[str, Any] = {}

    def place(record: ArrayRecord) -> str:
        name = f"{os.getpid()}-{next(names)}"
        return name if write(record, folder / name) else ""

    with connection, connection.makefile("rb") as messages:
        while True:
            try:
                (verb, ttl, index, hospitals, changed), content = receive(messages, inbox.find)
            except EOFError:
                return
            run_config = dict(changed) or run_config
            place_of = {"partition-id": index, "num-partitions": hospitals}
            context = Context(0, index, place_of, RecordDict(), dict(run_config))
            answer = _answer(app, _arrived(content, verb, ttl), context)
            if answer.has_error():
                send(connection, [answer.error.code, answer.error.reason], RecordDict(), place)
            else:
                send(connection, [], answer.content, place)


def _arrived(content: RecordDict, verb: str, ttl: float) -> Message:
    # The other constructors work only in processes that Flower begins.
    metadata = Metadata(0, "", 0, 0, "", "", time.time(), ttl, verb)
    return Message(content=content, metadata=metadata)  # type: ignore[call-overload, no-any-return]


def _answer(app: ClientApp, message: Message, context: Context) -> Message:
    """The app's answer; what goes wrong in it is an answer too, as in Flower's engine."""
    try:
        return app(message, context)
    except Exception as error:
        return Message(Error(Failure.CRASHED, f"{type(error)}:<'{error}'>"), reply_to=message)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main(socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
