"""A hospital: the complete list of what it can be asked to do.

Flower loads this file in processes that never do any of it, and importing torch takes seconds: the
work stands in another file, which is imported when the first message comes.
"""

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client_app.guard import guard
from client_app.resident import resident

app = ClientApp(mods=[guard, resident])


@app.query("live")
def live(message: Message, context: Context) -> Message:
    """Say that the hospital takes messages."""
    return Message(RecordDict(), reply_to=message)


@app.query("enrol")
def enrol(message: Message, context: Context) -> Message:
    """Check the data, and say who the hospital is and which classes it has."""
    from client_app import work

    return work.enrol(message, context)


@app.query("prepare")
def prepare(message: Message, context: Context) -> Message:
    """Make the hospital's first model, and with `feder` its buffer."""
    from client_app import work

    return work.prepare(message, context)


@app.train()
def visit(message: Message, context: Context) -> Message:
    """Train the model that arrives on the hospital's own images."""
    from client_app import work

    return work.visit(message, context)


@app.train("rewind")
def rewind(message: Message, context: Context) -> Message:
    """Train the model that is back for a while from the hospital to which it went."""
    from client_app import work

    return work.visit(message, context)


@app.evaluate()
def test(message: Message, context: Context) -> Message:
    """Test the models that arrive on the hospital's own test images."""
    from client_app import work

    return work.test(message, context)
