"""What a hospital does with the messages that client_app/app.py lists: unpack, one call, pack."""

from flwr.app import Context, Message

from client_app.clock import Clock
from client_app.enrolment import card_of, check_run
from client_app.first_parcel import first_parcel
from client_app.parcels import unpack
from client_app.received import replayed
from client_app.request import Request
from client_app.run import check_newest
from client_app.testing import test_here
from client_app.visit import train_here
from strategies.protocol.parcel import parcel_in, unbundle


def enrol(message: Message, context: Context) -> Message:
    """Say who the hospital is, or refuse a run that could not be finished here."""
    clock = Clock(message.metadata.ttl)
    with clock.measure("prepare"):
        request = Request.open(message, context, clock)
        check_run(request)
    return request.answer({}, card=card_of(request))


def prepare(message: Message, context: Context) -> Message:
    """Make the hospital's first model, and its buffer if the order asks for one."""
    clock = Clock(message.metadata.ttl)
    with clock.measure("prepare"):
        request = Request.open(message, context, clock)
        parcel, metrics, card = first_parcel(request)
    return request.answer(metrics, parcel, card)


def visit(message: Message, context: Context) -> Message:
    """Train the model that arrives on the hospital's own images."""
    request = Request.open(message, context, Clock(message.metadata.ttl))
    arrived = unpack(request, parcel_in(message.content))
    if request.seal:
        check_newest(request.run, arrived.label)
    parcel, metrics = train_here(request, arrived, replayed(request))
    return request.answer(metrics, parcel)


def test(message: Message, context: Context) -> Message:
    """Test the models that arrive on the hospital's own test images."""
    request = Request.open(message, context, Clock(message.metadata.ttl))
    return request.answer(test_here(request, unbundle(message.content)))
