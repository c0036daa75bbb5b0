"""The check of orders: a run may order only what its method declares.

An order may ask for less. The server checks each order that it sends, so a method that declares too
little fails at once. A deployed hospital checks each order that it receives.
"""

from strategies.engine.strategy import Strategy
from strategies.engine.visit import Visit
from strategies.protocol.order import Order
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import Settings


def find_timeout(settings: Settings, verb: str) -> tuple[str, float]:
    """The setting with the time limit of a message type, and its seconds."""
    if verb.startswith("query."):
        return "prepare-timeout", settings.prepare_timeout
    return "hop-timeout", settings.hop_timeout


def check_order(
    strategy: Strategy, verb: str, order: Order, hospital: str, *, sealed: bool
) -> None:
    """Refuse an order that the method of a run never gives.

    Three fields are not compared: `hospital`, `run` and `hop`. They name the recipient and its
    place in the run. Classes stay the same in a run (client_app.run.check_same).

    Raises:
        ParcelError: A field has a value that the method never orders; names the first, and the
            value.
    """
    settings, rounds = strategy.settings, strategy.settings.num_server_rounds
    trains, tests = verb in ("train", "train.rewind"), verb == "evaluate"
    kinds = [kind for kind in strategy.kinds() if kind.verb == verb]
    if not trains:
        kinds = [Visit("", "", strategy.learner, 0, verb, images=strategy.images)]
    inside: dict[str, bool] = {}
    for name in ("learner", "images", "leg"):
        kinds = [kind for kind in kinds if vars(kind)[name] == vars(order)[name]]
        inside[name] = len(kinds) > 0
    first, latest = (1, rounds) if trains or tests else (0, 0)
    tasks = {strategy.task_at(order.round, hospital)}
    if verb == "query.enrol":
        tasks = {0}
    if tests and first <= order.round <= latest:  # models may be tested rounds later
        tasks |= {strategy.task_at(each, hospital) for each in range(1, order.round)}
    streamed = {*range(1, settings.tasks + 1)} if settings.own_streams else set()
    arrived = sorted({*order.arrived} & streamed) == sorted(order.arrived)
    if order.arrived:  # attacks compare training images of `task` with test images of these tasks
        arrived = arrived and (trains or tests) and order.task in order.arrived
    last = order.round == rounds
    tested = last or order.round % settings.evaluate.every == 0
    everywhere = settings.evaluate.cross is True
    each_visit = strategy.tests_every_visit and everywhere and settings.evaluate.epochs
    inside |= {
        "round": first <= order.round <= latest,
        "epochs": order.epochs <= max((kind.epochs for kind in kinds), default=0),
        "asynchronous": order.asynchronous == settings.asynchronous,
        "task": order.task in tasks,
        "arrived": arrived,
        "buffer_size": order.buffer_size in (0, strategy.buffer_size),  # the policy judges it
        "embeddings": order.embeddings in {"", *(kind.embeddings for kind in kinds)},
        "sealed": order.sealed == sealed,
        # Without classes a hospital would take its own, which other orders of the run do not have.
        "classes": verb == "query.enrol" or len(order.classes) > 0,
    }
    may_be_set = {
        "test": tested and any(kind.test for kind in kinds),
        "snapshots": trains and tested and each_visit,
        "own_start": verb == "query.prepare" and strategy.own_start,
        "replay": trains and strategy.buffer_size > 0,
        "ensemble": tests and last and everywhere and settings.evaluate.ensemble,
        "encoder": strategy.has_encoder,
        "final": tests and last,
        "members": sealed,
        "members_hash": sealed,
        "code": verb == "query.enrol",
    }
    inside |= {name: may or not vars(order)[name] for name, may in may_be_set.items()}
    for name, fits in inside.items():
        if not fits:
            raise ParcelError(
                f"The order '{verb}' has {name} {vars(order)[name]!r:.80}, which strategy "
                f"'{settings.strategy}' never orders with the settings of this run."
            )
