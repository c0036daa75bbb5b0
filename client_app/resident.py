"""A resident process, which keeps torch, the images and the device loaded.

Flower starts a process for every message, and that process needs seconds before it can begin. With
`resident` in its node-config, a hospital works in a warm process that stays (warm/resident.py). The
process that Flower starts hands the message to it, and passes the answer on. Both processes run the
same app with its guard. So the same checks hold.
"""

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from socket import socket
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from client_app.authority.node_config import NODE_CONFIG, own_config
from client_app.release.guard import DISK
from client_app.store import DEFAULT, own_folder
from learning.errors import DeadlineError
from strategies.protocol.code import code_hash
from strategies.protocol.files import expand
from strategies.protocol.settings import SettingsError
from warm.process import ROOT, Handed
from warm.resident import connect
from warm.wire import Wire

GRACE = 5.0  # seconds of grace after the message's deadline


def resident(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Pass a message to the hospital's resident process, if it has one (a Flower mod).

    Raises:
        ConnectionError: The process ended without an answer, for example for lack of memory.
        DeadlineError: The process did not answer in time.
    """
    config, asked = own_config(context), message.metadata
    # Any process can answer that the hospital can be reached.
    here = asked.message_type == "query.live" or isinstance(context, Handed)
    if here or not config.get("resident"):
        return call_next(message, context)
    # Closing the connection ends the process if it is still at work.
    with call_resident(config) as connection:
        connection.settimeout(asked.ttl + GRACE)
        wire = Wire(connection)
        try:
            wire.ask(message, {}, context.run_config)
            return wire.answer_to(message)
        except TimeoutError as error:
            raise DeadlineError("The time allowed for the message ran out.") from error
        except (EOFError, ConnectionError) as error:
            raise ConnectionError("The resident process ended without an answer.") from error
        finally:
            wire.close()


def call_resident(config: Mapping[str, Any]) -> socket:
    """A connection to the hospital's resident process for this code.

    Raises:
        ConnectionError: The process has not started.
        SettingsError: This machine, or the folder of the socket, cannot be used.
        OSError: The disk is full, or the store cannot be written to.
    """
    if sys.platform != "linux":
        raise SettingsError("A resident process needs Linux: set 'resident' to false.")
    folder, key = place_of(config)
    try:
        return connect(folder, key, {NODE_CONFIG: json.dumps({**config})})
    except OSError as error:
        if isinstance(error, ConnectionError) or error.errno in DISK:
            raise
        logging.getLogger("flwr").error("%s cannot be used: %s", folder, error)
        raise SettingsError(
            "The hospital's store has no place for a socket: its folder 'resident' must be a "
            "folder of mode 0700 that belongs to the hospital's user, on a file system with "
            "sockets. Remove it, or set 'resident' to false in the node-config."
        ) from error


def place_of(config: Mapping[str, Any]) -> tuple[Path, str]:
    """The folder of the process's socket, and a text that identifies this hospital and code.

    The hospital's store is made if it is missing.
    """
    store = own_folder(expand(str(config.get("store-dir", DEFAULT))))
    return store / "resident", repr((ROOT, code_hash(), sys.executable, sorted(config.items())))
