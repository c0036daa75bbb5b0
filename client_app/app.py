"""A hospital's app: the complete list of the messages that a hospital answers.

Flower also loads this file in processes that answer no message, and importing torch takes seconds.
So the handlers are in another file, which is imported when a message needs it.
"""

import gc
import sys
from importlib import import_module

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client_app.authority import node_config
from client_app.release.guard import guard
from client_app.resident import resident
from strategies.protocol.console import Console

__all__ = ["app", "simulate"]  # Flower and a warm process (warm/process.py) use only this file

# The prefix of a line takes up to 27 columns: Ray's is about the process of a simulated hospital,
# and the prefix of a SuperNode's supervisor is the time.
Console.install(clock="", width=73)

app = ClientApp(mods=[guard, resident])


def simulate() -> None:
    """Prepare this process for simulated hospitals. Then it is forked, once for each worker."""
    # The first optimizer would import torch._dynamo in each worker.
    _load("client_app.handlers", "client_app.visit", "torch._dynamo")
    node_config.simulate()


def _load(*names: str) -> None:
    """Import modules, which stay. To search them for garbage would take a fifth of the time."""
    if new := [name for name in names if name not in sys.modules]:
        gc.disable()
        for name in new:
            import_module(name)
        gc.freeze()
        gc.enable()


@app.query("live")
def live(message: Message, context: Context) -> Message:
    """Answer that the hospital can be reached."""
    return Message(RecordDict(), reply_to=message)


@app.query("enrol")
def enrol(message: Message, context: Context) -> Message:
    """Introduce the hospital, or refuse a run that would fail here."""
    _load("client_app.handlers")
    from client_app import handlers

    return handlers.enrol(message, context)


@app.query("prepare")
def prepare(message: Message, context: Context) -> Message:
    """Make the hospital's first model, and its buffer if the order asks for one."""
    _load("client_app.handlers")
    from client_app import handlers

    return handlers.prepare(message, context)


@app.train()
@app.train("rewind")
def visit(message: Message, context: Context) -> Message:
    """Train the model of the message on the hospital's own images.

    On a `rewind` leg it is another hospital's model, which then returns there (FedRewind).
    """
    _load("client_app.visit")
    from client_app.visit import train_here

    return train_here(message, context)


@app.evaluate()
def test(message: Message, context: Context) -> Message:
    """Test the models of the message on the hospital's own test images."""
    _load("client_app.handlers")
    from client_app import handlers

    return handlers.test(message, context)
