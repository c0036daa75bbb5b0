"""What a hospital does with the messages that client_app/app.py lists."""

from collections.abc import Mapping

import torch
from flwr.app import Context, Message

from client_app.clock import Clock
from client_app.first_parcel import first_parcel
from client_app.parcels import unpack
from client_app.presets import fitted_preset
from client_app.received import replayed
from client_app.request import Request
from client_app.run import check_newest
from client_app.visit import train_here
from learning.augmentation import check_augmentation
from learning.evaluation import count_right, normalise_once, probabilities, score
from strategies.protocol.parcel import parcel_in, unbundle


def enrol(message: Message, context: Context) -> Message:
    """Say who the hospital is, or refuse a run that would fail later."""
    clock = Clock(message.metadata.ttl)
    with clock.measure("prepare"):
        request = Request.open(message, context, clock)
        data, settings = request.hospital.data, request.hospital.settings
        request.learner.check(settings)
        check_augmentation(settings.train.augment, data.train.shape)
        if request.order.buffer_size:
            fitted_preset(settings.gan, data.train.shape)
    card: dict[str, str | list[str] | list[int]] = {
        "hospital": request.hospital.name,
        "classes": list(data.classes),
        "shape": list(data.train.shape),
    }
    if request.seal:
        card["identity"] = str(request.seal.identity.member)
    return request.answer({}, card=card)


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
    clock, samples = request.clock, request.hospital.data.test
    metrics: dict[str, float] = {}
    with clock.measure("evaluate"):
        images = normalise_once(samples.images)
    total = torch.zeros((), device=request.hospital.device)
    for lineage, parcel in unbundle(message.content).items():
        network = unpack(request, parcel, tested=True).network
        with clock.measure("evaluate"):
            each = probabilities(network, images, clock.deadline)
            total = total + each
            metrics |= _named(lineage, score(each, samples.labels))
            if request.hospital.settings.evaluate.per_class:
                metrics |= _named(lineage, count_right(each, samples.labels))
    if request.order.ensemble:
        metrics |= _named("ensemble", score(total, samples.labels))
    return request.answer(metrics)


def _named(lineage: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"{lineage}/{name}": value for name, value in metrics.items()}
