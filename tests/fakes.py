"""Federations in one process: a grid that works at once, and hospitals that fail on demand."""

import json
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from client_app.app import app as hospital_app
from client_app.authority.node_config import simulate
from client_app.run import check_newest
from client_app.store import Store
from deploy.demo import HOSPITALS
from server_app.app import app as server_app
from strategies.engine.courier import Courier
from strategies.engine.engine import Engine
from strategies.engine.events import Event, Journal
from strategies.engine.run import Run
from strategies.engine.shelf import Shelf
from strategies.engine.state import State
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.parcel import (
    Manifest,
    check_parcel,
    hash_arrays,
    load,
    pack,
    parcel_in,
    unbundle,
)
from strategies.protocol.records import from_record
from strategies.protocol.settings import Settings, defaults
from strategies.protocol.sums import HOME
from strategies.registry import strategy_of

Handler = Callable[[Message], Message | None]
all_defaults = cache(defaults)  # the file is read once, not by each of thousands of tests
LATER = 0.3  # the share of answers that are not there yet at a look into the mailbox
NETWORKS = {"fil-ver": "vee", "fedspace": "rotation-mlp"}  # of methods that need their own


def run_config(**overrides: Any) -> dict[str, Any]:
    """The default settings, changed for tests.

    `sealed` is false, because it needs keys. The network, or `train.freeze`, fits the strategy.
    `baseline` and `workers` are off: no second run starts, and no other process. With this
    `partition-alpha` also a hospital of few images has all classes.

    Keys of `overrides` may have _ for - and __ for a dot.
    """
    changes = {k.replace("__", ".").replace("_", "-"): v for k, v in overrides.items()}
    flat = all_defaults()
    assert changes.keys() <= flat.keys(), changes.keys() - flat.keys()
    network = NETWORKS.get(overrides.get("strategy", ""), flat["model"])
    own = {"sealed": False, "workers": 0, "baseline": "", "partition-alpha": 0.5, "model": network}
    if overrides.get("strategy") == "sums":
        own["train.freeze"] = "body"
    return {**flat, **own, **changes}


def settings(**overrides: Any) -> Settings:
    return Settings.parse(run_config(**overrides))


def write_archive(path: Path, count: int) -> None:
    """An archive for `npz:`: twice `count` random images of 8 x 8 pixels, of two classes."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part in ("train", "test"):
        arrays[f"x_{part}"] = rng.integers(0, 256, (count, 8, 8), dtype=np.uint8)
        arrays[f"y_{part}"] = rng.integers(0, 2, count, dtype=np.uint8)
    np.savez(path, allow_pickle=False, **arrays)


def metrics_of(result: Path) -> list[tuple[Any, ...]]:
    """What was measured in a run, without how long it took, in an order of its own."""
    lines = map(json.loads, (result / "metrics.jsonl").read_text().splitlines())
    return sorted(
        (line["verb"], line["round"], line["hospital"], line["lineage"], name, value)
        for line in lines
        for name, value in line["metrics"].items()
        if not name.startswith("seconds-")
    )


def models_of(result: Path, folder: Path | None = None) -> dict[tuple[str, str], bytes]:
    """The arrays of all models at the end of a run, by lineage and name.

    Args:
        result: The run's directory.
        folder: Of a consortium as in deploy/demo.py, whose parcels are sealed and are opened.
    """
    from client_app.authority.identity import Identity
    from client_app.authority.sealing import Seal

    found: dict[tuple[str, str], bytes] = {}
    for path in (result / "parcels").iterdir():
        parcel = load(path)
        if folder:
            stores = {name: folder / name / "store" / name for name in HOSPITALS}
            own = {name: Identity.load(name, store / "identity") for name, store in stores.items()}
            sealed = parcel.array_records["model"]["sealed"].numpy().tobytes()
            head = json.loads(sealed[4 : 4 + int.from_bytes(sealed[:4], "big")])
            members = {name: identity.member for name, identity in own.items()}
            seal = Seal(own[HOSPITALS[0]], members, head["run"])
            parcel = seal.open(parcel, check_parcel(parcel))
        arrays = parcel.array_records["model"]
        found |= {(path.stem, name): array.numpy().tobytes() for name, array in arrays.items()}
    return found


class FakeGrid(Grid):
    """Delivers messages to handlers, in an order that `rng` decides, a few at each pull.

    A handler that returns None never answers. `query.live` the grid answers itself, except at
    `stuck` nodes, and does not list in `sent`.
    """

    def __init__(self, handlers: Mapping[int, Handler], rng: np.random.Generator | None = None):
        self.handlers = dict(handlers)
        self.rng = rng or np.random.default_rng(0)
        self.names: dict[int, str] = {}
        self.stuck: set[int] = set()
        self.waiting: dict[str, Message] = {}
        self.ids = count()
        self.sent: list[Message] = []

    def get_node_ids(self) -> list[int]:
        return list(self.handlers)

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node, name=self.names.get(node, "")) for node in self.handlers]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            if message.metadata.dst_node_id not in self.handlers:
                ids.append("")
                continue
            waiting, now = [each.metadata for each in self.waiting.values()], time.time()
            busy = [each.dst_node_id for each in waiting if each.created_at + each.ttl > now]
            assert message.metadata.dst_node_id not in busy, "two messages at one hospital"
            message.metadata.__dict__["_message_id"] = f"message-{next(self.ids)}"
            if message.metadata.message_type != "query.live":
                self.sent.append(message)
            self.waiting[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        ids = sorted(message_ids)
        replies = []
        for message_id in self.rng.permutation(ids):
            if self.rng.random() < LATER:
                continue
            message = self.waiting[message_id]
            if message.metadata.message_type != "query.live":
                try:
                    reply = self.handlers[message.metadata.dst_node_id](message)
                except AssertionError as error:
                    pytest.fail(str(error))  # the courier catches every `Exception`
            elif message.metadata.dst_node_id in self.stuck:
                reply = None
            else:
                reply = Message(RecordDict(), reply_to=message)
            if reply is not None:
                del self.waiting[message_id]
                replies.append(reply)
        return replies

    set_run: Any = None  # the courier does not use these
    run: Any = None
    create_message: Any = None
    send_and_receive: Any = None


class Ledger:
    """A journal that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.rounds: list[int] = []

    def record(self, event: Event) -> None:
        self.events.append(event)

    def round_finished(self, server_round: int) -> None:
        self.rounds.append(server_round)

    def of(self, verb: str) -> list[Event]:
        return [event for event in self.events if event.verb == verb]


def go(
    chosen: Settings,
    grid: Grid,
    journal: Journal,
    shelf: Path | None = None,
    keep: Callable[[State], None] = lambda state: None,
) -> State:
    """Do a whole run; where it stands afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        state = State(Shelf(shelf or Path(folder)), uuid.uuid4().hex)
        try:
            Engine(Run(chosen, strategy_of(chosen), state, Courier(grid), journal), keep).go()
        finally:
            for model in state.models.values():
                state.shelf.get(model.parcel)  # into memory: the folder goes
        return state


def parcels_of(state: State) -> dict[str, RecordDict]:
    """The last good parcel of each model."""
    return {name: state.shelf.get(model.parcel) for name, model in state.models.items()}


class CountingHospital:
    """A hospital without torch: its model is [number of visits], and training adds one.

    Where images arrive in tasks, it adds the task.

    Its buffer is one image with its name; those that it has been sent are in `buffers`, by hash.
    """

    def __init__(self, name: str, num_examples: float = 1.0):
        self.name = name
        self.num_examples = num_examples
        self.classes = ["a", "b"]
        self.buffers: dict[str, ArrayRecord] = {}
        self.replayed: list[list[str]] = []  # names of the hospitals replayed, at each visit

    def __call__(self, message: Message) -> Message | None:
        order = from_record(Order, message.content.config_records["order"])
        handlers = {
            "query.enrol": self.enrol,
            "query.prepare": self.prepare,
            "train": self.train,
            "train.rewind": self.train,
            "evaluate": self.evaluate,
        }
        return handlers[message.metadata.message_type](message, order)

    def enrol(self, message: Message, order: Order) -> Message:
        card = ConfigRecord({"hospital": self.name, "classes": self.classes})
        return Message(RecordDict({"metrics": MetricRecord(), "card": card}), reply_to=message)

    def prepare(self, message: Message, order: Order) -> Message:
        label = Manifest(self.name, "counter", order.classes)
        parcel = self.parcel(0.0, label)
        if order.buffer_size:
            name = np.frombuffer(self.name.encode(), dtype=np.uint8)
            buffer = ArrayRecord({"images": Array(name), "labels": Array(np.zeros(1, "i8"))})
            self.buffers[hash_arrays(buffer)] = buffer
            parcel = pack({"model": parcel.array_records["model"], "buffer": buffer}, label)
        content = RecordDict({**parcel, "metrics": MetricRecord()})
        return Message(content, reply_to=message)

    def train(self, message: Message, order: Order) -> Message | None:
        label = check_parcel(parcel_in(message.content))
        visits = message.content.array_records["model"]["visits"].numpy()[0]
        for hash_, sent in unbundle(message.content).items():
            self.buffers[hash_] = sent.array_records["buffer"]
        buffers = [self.buffers[hash_] for hash_ in order.hash_of.values()]
        self.replayed.append([buffer["images"].numpy().tobytes().decode() for buffer in buffers])
        parcel = self.parcel(visits + max(order.task, 1), label.advance(order))
        if order.learner == "sums" and order.leg != HOME:
            shapes = {"counts": (2,), "firsts": (2, 1), "seconds": (2, 1)}
            arrays = {name: Array(np.zeros(shape, "i8")) for name, shape in shapes.items()}
            records = {"model": parcel.array_records["model"], "sums": ArrayRecord(arrays)}
            parcel = pack(records, label.advance(order))
        metrics = MetricRecord({"num-examples": self.num_examples, "train-loss": 1.0})
        return Message(RecordDict({**parcel, "metrics": metrics}), reply_to=message)

    def evaluate(self, message: Message, order: Order) -> Message:
        lineages = unbundle(message.content)
        metrics = MetricRecord({f"{lineage}/accuracy": 0.5 for lineage in lineages})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def parcel(self, visits: float, label: Manifest) -> RecordDict:
        return pack({"model": ArrayRecord({"visits": Array(np.array([visits], "f4"))})}, label)


class Withholding(CountingHospital):
    """A hospital whose synthetic images may not leave it."""

    def prepare(self, message: Message, order: Order) -> Message:
        if order.buffer_size:
            return failing(message, Failure.RELEASE, "Image 3 is too near.")
        return super().prepare(message, order)


class Sealing(CountingHospital):
    """Trains no older model than it has trained: of sealed parcels a hospital can tell."""

    def __init__(self, name: str, folder: Path):
        super().__init__(name)
        self.run = Store(folder / name)

    def train(self, message: Message, order: Order) -> Message | None:
        check_newest(self.run, Manifest.read(message.content))
        return super().train(message, order)


def federation(count: int, **changes: Handler) -> dict[int, Any]:
    """Counting hospitals h0, h1, ... at nodes 100, 101, ...; `changes` replaces some by name."""
    return {100 + k: changes.get(f"h{k}", CountingHospital(f"h{k}")) for k in range(count)}


def failing(message: Message, code: int = 2, reason: str = "boom") -> Message:
    return Message(Error(code, reason), reply_to=message)


def run_here(places: Sequence[Context]) -> tuple[Path, FakeGrid]:
    """A run of the whole app in this process, without Flower's engines; its result folder.

    Args:
        places: What Flower would hand to the handlers of each hospital.
    """

    def hospital(place: Context) -> Handler:
        return lambda message: hospital_app(message, place)

    simulate()
    grid = FakeGrid({place.node_id: hospital(place) for place in places})
    server_app(grid, places[0])
    (result,) = Path(str(places[0].run_config["output-dir"])).iterdir()
    return result, grid


def context(index: int, hospitals: int, config: Mapping[str, Any], **node_config: Any) -> Context:
    """What Flower hands to a handler at a simulated hospital."""
    node = {"partition-id": index, "num-partitions": hospitals, **node_config}
    return Context(1, 100 + index, node, RecordDict(), dict(config))


def deployment(config: Mapping[str, Any], **node_config: Any) -> Context:
    """What Flower hands to a handler at a hospital of its own; _ in a key stands for -."""
    node: dict[str, Any] = {key.replace("_", "-"): str(value) for key, value in node_config.items()}
    return Context(1, 100, node, RecordDict(), dict(config))


def deployed(folder: Path, site: str = "graz", **settings: Any) -> Context:
    """What Flower hands to a handler at a hospital of its own, which has 24 images in `folder`.

    Its policy allows open runs, of so few. Keys of `settings` are written as in `run_config`.
    """
    import PIL.Image  # here, because most tests do without

    for number in range(24):
        image = folder / "images" / "ab"[number % 2] / f"{number}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8), np.uint8)
        PIL.Image.fromarray(pixels).save(image)
    rules = "runs.sealed-only = false\nimages.min-train-patients = 20"
    (folder / "policy.toml").write_text(rules, "utf-8")
    own = {"site": site, "store-dir": str(folder / "store")}
    own |= {"data-dir": str(folder / "images"), "policy": str(folder / "policy.toml")}
    return Context(1, 100, {**own}, RecordDict(), run_config(**settings))
