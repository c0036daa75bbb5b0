"""A visit: one local training of one model, at the hospital where it has arrived."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from flwr.app import RecordDict

from client_app.kept import Kept
from client_app.parcels import Arrived, keep_local, pack
from client_app.request import Request
from learning.evaluation import probabilities, score
from learning.learners.plain import Received
from learning.packing import pack_memory
from learning.samples import Samples
from learning.training import train
from strategies.protocol.parcel import bundle
from strategies.protocol.settings import rng_for


def train_here(
    request: Request, arrived: Arrived, buffers: Sequence[Samples]
) -> tuple[RecordDict, dict[str, float]]:
    """Train the model that has arrived, and test it if the order says so.

    Args:
        request: What is asked, and of whom.
        arrived: The model.
        buffers: Synthetic images to train on.

    Returns:
        The trained model's parcel, with its `snapshots` if they were ordered; and metrics.

    Raises:
        ParcelError: The learner refuses the memory that came with the model.
        DivergedError: The trained network, or its memory, is not finite.
        DeadlineError: The deadline has passed.
    """
    order, hospital, clock = request.order, request.hospital, request.clock
    network, label = arrived.network, arrived.label.after(order)
    place = (*request.visit, hospital.name)
    snapshots: dict[str, RecordDict] = {}

    def keep_snapshot(epoch: int) -> None:
        if order.snapshots and epoch < order.epochs:
            snapshots[f"epoch-{epoch}"] = pack(request, network, replace(label, epochs=epoch))

    received = _received(request, arrived, buffers)
    with clock.measure("train"):
        learner = request.learner(network, _images(request), hospital.settings, received)
        rng = rng_for(hospital.settings.seed, "visit", *place)
        train_settings = hospital.settings.train
        metrics = train(learner, train_settings, order.epochs, rng, clock.deadline, keep_snapshot)
        memory = learner.memory(rng_for(hospital.settings.seed, "importance", *place))
    if order.test:
        test = hospital.data.test
        with clock.measure("evaluate"):
            own = score(probabilities(network, test.images, clock.deadline), test.labels)
        metrics["accuracy-after-visit"] = own["accuracy"]
    parcel = pack(request, network, label, {"memory": pack_memory(memory)} if memory else {})
    keep_local(request, network)
    if rehearsal := learner.rehearsal():
        arrays = {name: tensor.cpu().numpy() for name, tensor in rehearsal.items()}
        Kept(request.run, "rehearsal").save(request.visit, arrays)
    return RecordDict({**parcel, **bundle(snapshots, ["manifest", "model"])}), metrics


def _received(request: Request, arrived: Arrived, buffers: Sequence[Samples]) -> Received:
    """What came with the model, and what the hospital has kept for its stream."""
    kept = Kept(request.run, "rehearsal").before(request.visit)
    device = request.hospital.device
    return Received(
        buffers,
        arrived.memory,
        rehearsal={name: torch.from_numpy(array).to(device) for name, array in kept.items()},
        leg=request.order.leg,
        new_rounds=request.order.round - arrived.label.round,
    )


def _images(request: Request) -> Samples:
    """The images that the order says are trained on, beside buffers."""
    own = request.hospital.data.train
    if request.order.images == "own":
        return own
    if request.order.images == "everyone":
        return request.hospital.everyone()
    return own[torch.empty(0, dtype=torch.int64)]
