"""What a hospital does with the messages that client_app/app.py lists."""

from dataclasses import replace

import torch
from flwr.app import Context, Message, RecordDict

from client_app.task import Task
from learning.evaluation import count_right, normalise_once, probabilities, score
from learning.packing import pack_buffer, pack_memory
from learning.randomness import seeded
from learning.training import train
from strategies.protocol.code import code_hash
from strategies.protocol.parcel import Manifest, bundle, hash_arrays, parcel_in, unbundle
from strategies.protocol.settings import SettingsError, rng_for


def enrol(message: Message, context: Context) -> Message:
    """Check the data, and say who the hospital is and which classes it has."""
    task = Task(message, context)
    if task.order.code != code_hash():
        raise SettingsError(
            "The hospital runs other code than the server. In a simulation, a local SuperLink that "
            "was started in another folder runs that folder's code: stop it and run again."
        )
    with task.timed("prepare"):
        hospital = task.hospital
        card: dict[str, str | list[str]] = {
            "hospital": hospital.name,
            "classes": list(hospital.data.classes),
        }
        if task.seal:
            card["identity"] = str(task.seal.identity.member)
    return task.answer({}, card=card)


def prepare(message: Message, context: Context) -> Message:
    """Make the hospital's first model, and with `feder` its buffer."""
    task = Task(message, context)
    with task.timed("prepare"):
        hospital = task.hospital
        architecture = hospital.architecture
        architecture.check()
        task.learner.check(hospital.settings)
        if task.order.images == "everyone":
            hospital.everyone()
        start = hospital.name if task.order.own_start else ""
        with seeded(rng_for(hospital.settings.seed, "model", hospital=start)):
            network = architecture.build()
        if hospital.settings.pretrained:
            from learning.models.pretrained import load_pretrained  # and with it torchvision

            load_pretrained(network, architecture, hospital.settings.pretrained)
        data = hospital.data
        metrics: dict[str, float] = {
            "num-train": len(data.train),
            "num-test": len(data.test),
            "num-quarantined": data.quarantined,
        }
        beside, card = {}, {}
        if task.order.buffer_size:
            from client_app.buffer import make_buffer  # with it come imports that take seconds

            made = make_buffer(hospital, task.order.buffer_size, task.deadline)
            beside["buffer"] = pack_buffer(made.samples)
            metrics |= made.figures
            card["release"] = f"{len(made.samples)} synthetic images passed the release check."
    label = Manifest(hospital.name, architecture.to_json(), list(data.classes))
    parcel = task.pack(network, label, **beside)
    if buffer := parcel.array_records.get("buffer"):
        task.keep(hash_arrays(buffer), buffer)
    return task.answer(metrics, parcel, card)


def visit(message: Message, context: Context) -> Message:
    """Train the model that arrives on the hospital's own images."""
    task = Task(message, context)
    order, settings, test = task.order, task.hospital.settings, task.hospital.data.test
    parcel, label = task.open(parcel_in(message.content))
    network = task.unpack(parcel, label)
    task.refuse_replay(label)
    received = task.received(parcel, network, label)
    trained = label.after(order)
    snapshots: dict[str, RecordDict] = {}

    def keep_snapshot(epoch: int) -> None:
        if order.snapshots and epoch < order.epochs:
            snapshots[f"epoch-{epoch}"] = task.pack(network, replace(trained, epochs=epoch))

    with task.timed("train"):
        learner = task.learner(network, task.samples, settings, received)
        place = (order.round, order.hop, order.hospital)
        rng = rng_for(settings.seed, "visit", *place)
        metrics = train(learner, settings.train, order.epochs, rng, task.deadline, keep_snapshot)
        memory = learner.memory(rng_for(settings.seed, "importance", *place))
    if order.test:
        with task.timed("evaluate"):
            own = score(probabilities(network, test.images, task.deadline), test.labels)
        metrics["accuracy-after-visit"] = own["accuracy"]
    beside = {"memory": pack_memory(memory)} if memory else {}
    answer = {**task.pack(network, trained, **beside), **bundle(snapshots, ["manifest", "model"])}
    return task.answer(metrics, RecordDict(answer))


def test(message: Message, context: Context) -> Message:
    """Test the models that arrive on the hospital's own test images."""
    task = Task(message, context)
    samples = task.hospital.data.test
    metrics: dict[str, float] = {}
    with task.timed("evaluate"):
        images = normalise_once(samples.images)
    total = torch.zeros((), device=task.hospital.device)
    for lineage, parcel in unbundle(message.content).items():
        network = task.unpack(*task.open(parcel))
        with task.timed("evaluate"):
            each = probabilities(network, images, task.deadline)
            total = total + each
            metrics |= _named(lineage, score(each, samples.labels))
            if task.hospital.settings.evaluate.per_class:
                metrics |= _named(lineage, count_right(each, samples.labels))
    if task.order.ensemble:
        metrics |= _named("ensemble", score(total, samples.labels))
    return task.answer(metrics)


def _named(lineage: str, metrics: dict[str, float]) -> dict[str, float]:
    return {f"{lineage}/{name}": value for name, value in metrics.items()}
