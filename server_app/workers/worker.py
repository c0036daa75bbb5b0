"""A warm process: answers messages to simulated hospitals, one after the other.

    python -P -m server_app.workers.worker <descriptor of a connection> <folder of records>

It ends with the process that started it, in the middle of a training too.
"""

import importlib
import os
import sys
import threading
import time
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from server_app.workers.wire import Inbox, dumps, loads, write

CLIENT_APP_RAISED = 2  # Flower's code for it (its enum ErrorCode is not public)


def main(connection: Connection, folder: Path) -> None:
    """Answer until the other side closes the connection."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    for name in ("task_id", "run_id", "node_id"):
        setattr(TaskIdentity, name, 0)
    # By its name, as Flower does: the server's code does not import a hospital's.
    app: ClientApp = importlib.import_module("client_app.app").app
    inbox, names = Inbox(folder), count()

    def place(record: ArrayRecord) -> str:
        name = f"{os.getpid()}-{next(names)}"
        write(record, folder / name)
        return name

    run_config: dict[str, Any] = {}
    while True:
        try:
            changed, message, context = loads(connection.recv_bytes(), inbox.find)
        except EOFError:
            return
        run_config = run_config if changed is None else changed
        context.run_config = dict(run_config)
        answer = _answer(app, message, context)
        connection.send_bytes(dumps((answer, context.state), place))


def _answer(app: ClientApp, message: Message, context: Context) -> Message:
    """The app's answer; what goes wrong in it is an answer too, as in Flower's engine."""
    try:
        return app(message, context)
    except Exception as error:
        return Message(Error(CLIENT_APP_RAISED, f"{type(error)}:<'{error}'>"), reply_to=message)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), Path(sys.argv[2]))
