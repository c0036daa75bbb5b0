"""A hospital: the complete list of what it can be asked to do.

Flower loads this file in processes that never do any of it, and importing torch takes seconds. So
the handlers are in another file, which is imported when a message needs one.
"""

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client_app.authority.node_config import simulate
from client_app.release.guard import guard
from client_app.resident import resident
from strategies.protocol.console import Console

__all__ = ["app", "simulate"]  # Flower and a warm process (warm/process.py) know this file alone

# Ray begins each line of a simulated hospital with 27 columns about its process, a SuperNode's
# supervisor with the time.
Console.install(clock="", width=73)

app = ClientApp(mods=[guard, resident])


@app.query("live")
def live(message: Message, context: Context) -> Message:
    """Say that the hospital can be reached."""
    return Message(RecordDict(), reply_to=message)


@app.query("enrol")
def enrol(message: Message, context: Context) -> Message:
    """Say who the hospital is, or refuse a run that could not be finished here."""
    from client_app import handlers

    return handlers.enrol(message, context)


@app.query("prepare")
def prepare(message: Message, context: Context) -> Message:
    """Make the hospital's first model, and its buffer if the order asks for one."""
    from client_app import handlers

    return handlers.prepare(message, context)


@app.train()
@app.train("rewind")
def visit(message: Message, context: Context) -> Message:
    """Train the model that arrives on the hospital's own images.

    On a `rewind` leg it is another hospital's, before it goes back (FedRewind).
    """
    from client_app.visit import train_here

    return train_here(message, context)


@app.evaluate()
def test(message: Message, context: Context) -> Message:
    """Test the models that arrive on the hospital's own test images."""
    from client_app import handlers

    return handlers.test(message, context)
