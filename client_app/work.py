"""What a hospital does with the messages that client_app/app.py lists."""

from flwr.app import Context, Message

from client_app.evaluation import evaluate
from client_app.randomness import seeded
from client_app.task import Task
from client_app.training import train
from strategies.parcel import Manifest, code_hash, parcel_in, unbundle
from strategies.settings import SettingsError, rng_for


def prepare(message: Message, context: Context) -> Message:
    """Check the data and make the hospital's first model."""
    task = Task(message, context)
    if task.order.code != code_hash():
        raise SettingsError(
            "The hospital runs other code than the server. In a simulation, a local SuperLink that "
            "was started in another folder runs that folder's code: stop it and run again."
        )
    with task.timed("prepare"):
        hospital = task.hospital
        architecture = hospital.architecture
        architecture.check()
        start = hospital.name if task.order.own_start else ""
        with seeded(rng_for(hospital.settings.seed, "model", hospital=start)):
            network = architecture.build()
    label = Manifest(hospital.name, architecture.to_json(), list(hospital.data.classes))
    parcel = task.pack(network, label)
    sizes = {
        "num-train": len(hospital.data.train_labels),
        "num-test": len(hospital.data.test_labels),
    }
    return task.answer(sizes, parcel, hospital=hospital.name)


def visit(message: Message, context: Context) -> Message:
    """Train the model that arrives on the hospital's own images."""
    task = Task(message, context)
    order, data, settings = task.order, task.hospital.data, task.hospital.settings
    network, label = task.unpack(parcel_in(message.content))
    with task.timed("train"):
        learner = task.learner(network, settings)
        rng = rng_for(settings.seed, "visit", order.round, order.hop, order.hospital)
        metrics = train(learner, data, settings.train, order.epochs, rng, task.deadline)
    if order.test:
        with task.timed("evaluate"):
            own = evaluate(network, data, task.deadline)
        metrics["accuracy-after-visit"] = own["accuracy"]
    return task.answer(metrics, task.pack(network, label.after(order)))


def test(message: Message, context: Context) -> Message:
    """Test the models that arrive on the hospital's own test images."""
    task = Task(message, context)
    metrics: dict[str, float] = {}
    for lineage, parcel in unbundle(message.content).items():
        network, _ = task.unpack(parcel)
        with task.timed("evaluate"):
            figures = evaluate(network, task.hospital.data, task.deadline)
        metrics |= {f"{lineage}/{name}": value for name, value in figures.items()}
    return task.answer(metrics)
