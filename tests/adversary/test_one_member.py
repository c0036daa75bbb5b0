"""One member of a consortium cannot end a run: whatever it sends is a failure of its own."""

import base64
from io import BytesIO

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from client_app.app import app
from strategies.engine.shelf import Shelf
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.parcel import Manifest, bundle, hash_arrays, pack
from strategies.protocol.records import to_record
from tests.fakes import (
    CountingHospital,
    FakeGrid,
    Ledger,
    context,
    failing,
    federation,
    go,
    run_config,
    settings,
    write_archive,
)


def run(handlers, names=None, **overrides):
    grid, ledger = FakeGrid(handlers), Ledger()
    grid.names = names or {}
    defaults = {"strategy": "cwt", "num_server_rounds": 2}
    state = go(settings(**{**defaults, **overrides}), grid, ledger)
    return state, ledger


def failures(ledger):
    return [event for event in ledger.events if event.outcome != "ok"]


class Lying(CountingHospital):
    """Changes what it answers: `change` is called with the verb and the content."""

    def __init__(self, name, change):
        super().__init__(name)
        self.change = change

    def __call__(self, message):
        reply = super().__call__(message)
        assert reply is not None
        self.change(message.metadata.message_type, reply.content)
        return reply


def lie(verb, change):
    """A federation of three in which h2 answers `verb` with a changed content."""
    return federation(3, h2=Lying("h2", lambda v, content: change(content) if v == verb else None))


@pytest.mark.parametrize("verb", ["query.prepare", "train"])
@pytest.mark.parametrize(
    "hashes",
    [["model"], [], ["model=0"], ["model=" + "0" * 64] * 2, [7], [""], ["order=" + "0" * 64]],
    ids=str,
)
def test_hashes_that_are_none(verb, hashes):
    state, ledger = run(lie(verb, lambda content: content["manifest"].update(hashes=hashes)))
    assert {(e.hospital, e.verb, e.outcome) for e in failures(ledger)} == {("h2", verb, "parcel")}
    assert {"h0", "h1"} <= set(state.hospitals)


def test_the_text_of_flower_s_simulation_in_an_error_of_a_hospital():
    def dead(message):
        return failing(message, 0, "<class 'ray.exceptions.ActorDiedError'>")

    state, ledger = run(federation(3, h2=dead))
    assert state.hospitals == ["h0", "h1"]
    assert {event.outcome for event in failures(ledger)} == {"crashed"}


def test_a_reason_that_would_fill_the_log_or_write_lines_of_its_own():
    def loud(message):
        return failing(message, Failure.DATA, "bad\nround 1/1 | all is well" + "!" * 10**6)

    _, ledger = run(federation(3, h2=loud))
    (reason,) = {event.reason for event in failures(ledger)}
    assert len(reason) == 1000
    assert reason.startswith("bad round 1/1")


def test_the_card_of_another_hospital():
    """h2 calls itself h0 and is registered as h2."""
    names = {100: "h0", 101: "h1", 102: "h2"}
    state, ledger = run(federation(3, h2=CountingHospital("h0")), names)
    assert state.nodes == {"h0": 100, "h1": 101}
    assert {(e.hospital, e.outcome) for e in failures(ledger)} == {("h2", "settings")}
    assert "calls itself 'h0' and is registered as 'h2'" in failures(ledger)[0].reason


def test_the_name_of_a_hospital_that_is_registered_under_it():
    """Among hospitals without a registration, of whom nobody knows who they are."""
    state, _ = run(federation(3, h2=CountingHospital("h0")), {100: "h0"})
    assert state.nodes == {"h0": 100, "h1": 101}


def test_the_name_of_a_hospital_that_takes_part_already():
    class Watching(Ledger):
        def round_finished(self, server_round):
            super().round_finished(server_round)
            grid.handlers[102] = CountingHospital("h0")

    grid, ledger = FakeGrid(federation(2)), Watching()
    state = go(settings(strategy="cwt", num_server_rounds=3), grid, ledger)
    assert state.nodes == {"h0": 100, "h1": 101}
    assert ledger.rounds == [1, 2, 3]


@pytest.mark.parametrize("name", ["x" * 300, "h2\nh0 stolen", "../h0", "global", "images", "="])
def test_a_name_that_is_none(name):
    state, ledger = run(federation(3, h2=CountingHospital(name)))
    assert state.hospitals == ["h0", "h1"]
    assert {(e.hospital, e.outcome) for e in failures(ledger)} == {("node 102", "undeclared")}


@pytest.mark.parametrize(
    "card",
    [
        {"classes": ["a"] * 2000},
        {"classes": ["a\nb", "c"]},
        {"classes": ["a" * 70_000, "c"]},
        {"shape": [1, 8]},
        {"shape": [1, 8, -8]},
        {"shape": [1, 2**40, 8]},
        {"release": "x" * 10_000},
    ],
    ids=range(7),
)
def test_a_card_with_values_that_cannot_be(card):
    state, ledger = run(lie("query.enrol", lambda content: content["card"].update(card)))
    assert state.hospitals == ["h0", "h1"]
    assert {event.outcome for event in failures(ledger)} == {"undeclared"}


def test_images_of_another_shape():
    class Shaped(Lying):
        def __init__(self, name, side):
            shape = [1, side, side]
            super().__init__(
                name, lambda v, c: ("card" in c and c["card"].update(shape=shape)) or None
            )

    hospitals = {100: Shaped("h0", 8), 101: Shaped("h1", 8), 102: Shaped("h2", 9)}
    state, ledger = run(hospitals)
    assert state.hospitals == ["h0", "h1"]
    assert {(e.hospital, e.outcome) for e in failures(ledger)} == {("h2", "settings")}


def key(point=None):
    """The public half of an identity; `point` is its half that others seal for."""
    public = X25519PrivateKey.generate().public_key().public_bytes_raw()
    signing = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    return base64.b64encode(signing + (point or public)).decode()


LOW_ORDER = [
    bytes(32),
    (1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    (2**255 - 20).to_bytes(32, "little"),
]


@pytest.mark.parametrize(
    "identity",
    [*map(key, LOW_ORDER), "", "no key", key()[:-4], key() + "\n", "h0 " + key()],
    ids=range(9),
)
def test_a_key_that_every_hospital_would_refuse(identity):
    """It is among no members: hospitals refuse a whole order with one bad key."""

    class Keyed(Lying):
        def __init__(self, name, identity):
            super().__init__(
                name, lambda v, c: v == "query.enrol" and c["card"].update(identity=identity)
            )

    hospitals = {100: Keyed("h0", key()), 101: Keyed("h1", key()), 102: Keyed("h2", identity)}
    state, ledger = run(hospitals)
    assert state.hospitals == ["h0", "h1"]
    assert {(e.verb, e.outcome) for e in failures(ledger)} == {("query.enrol", "undeclared")}
    assert state.keys.keys() == {"h0", "h1"}


def test_a_key_that_changes_during_a_run():
    class Keyed(CountingHospital):
        def enrol(self, message, order):
            reply = super().enrol(message, order)
            reply.content.config_records["card"]["identity"] = key()
            return reply

    class Watching(Ledger):
        def round_finished(self, server_round):
            super().round_finished(server_round)
            if 102 in grid.handlers:  # comes back with another key, under another node id
                grid.handlers[202] = grid.handlers.pop(102)

    grid, ledger = FakeGrid({100 + k: Keyed(f"h{k}") for k in range(3)}), Watching()
    state = go(settings(strategy="cwt", num_server_rounds=3), grid, ledger)
    before = state.keys["h2"]
    assert state.nodes["h2"] == 102
    reasons = {e.reason for e in failures(ledger) if e.verb == "query.enrol"}
    assert reasons == {
        "The hospital 'h2' has another key than when it joined the run: the others would refuse it."
    }
    assert state.keys["h2"] == before


def renamed(content):
    content["model"]["x" * 70_000] = content["model"].pop("visits")


def version_2(content):
    """As `numpy.load` reads it too; a checkpoint does not."""
    record = content["model"]
    file = BytesIO()
    np.lib.format.write_array(file, record["visits"].numpy(), version=(2, 0))
    record["visits"] = Array("float32", (1,), "numpy.ndarray", file.getvalue())
    content["manifest"]["hashes"] = [f"model={hash_arrays(record)}"]


def sealed_version_2(content):
    file = BytesIO()
    np.lib.format.write_array(file, np.arange(99, dtype=np.uint8), version=(2, 0))
    sealed = ArrayRecord({"sealed": Array("uint8", (99,), "numpy.ndarray", file.getvalue())})
    content["model"] = sealed
    content["manifest"]["hashes"] = [f"model={hash_arrays(sealed)}"]


@pytest.mark.parametrize("verb", ["query.prepare", "train"])
@pytest.mark.parametrize("change", [renamed, version_2, sealed_version_2])
def test_an_array_that_no_checkpoint_could_hold(verb, change, tmp_path):
    """Whenever a checkpoint is written, it can be read."""

    def keep(state):
        state.shelf.write(state.parcels)
        Shelf(tmp_path).check(state.parcels)

    ledger = Ledger()
    chosen = settings(strategy="cwt", num_server_rounds=2)
    go(chosen, FakeGrid(lie(verb, change)), ledger, tmp_path, keep)
    assert {(e.hospital, e.verb) for e in failures(ledger)} == {("h2", verb)}
    assert {e.outcome for e in failures(ledger)} <= {"parcel", "undeclared"}


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1.0, 1e30])
def test_a_number_of_images_that_would_spoil_an_average(value):
    handlers = lie("train", lambda content: content["metrics"].update({"num-examples": value}))
    state, ledger = run(handlers, strategy="fedavg")
    assert {(e.hospital, e.outcome) for e in failures(ledger)} == {("h2", "undeclared")}
    mean = state.shelf.get(state.models["global"].parcel).array_records["model"]
    assert mean["visits"].numpy().tolist() == [2.0]


@pytest.mark.parametrize("name", ["h9/accuracy", "h0/h1/accuracy", "patient Meier/accuracy"])
def test_figures_of_a_model_that_was_not_sent(name):
    _, ledger = run(lie("evaluate", lambda content: content["metrics"].update({name: 0.5})))
    assert {(e.hospital, e.verb) for e in failures(ledger)} == {("h2", "evaluate")}
    assert len([e for e in ledger.of("evaluate") if e.outcome == "ok"]) == 2 * 2 * 3


def test_another_network_in_an_average():
    """The odd one is not started from."""

    class Odd(CountingHospital):
        def prepare(self, message, order):
            reply = super().prepare(message, order)
            reply.content.config_records["manifest"]["architecture"] = "another"
            return reply

    state, _ = run(federation(3, h0=Odd("h0")), strategy="fedavg")
    label = state.shelf.label(state.models["global"].parcel)
    assert label.architecture == "counter"


def test_a_model_that_cannot_be_tested_loses_its_own_test_alone(tmp_path):
    """At a real hospital, and in what the server makes of its answer.

    The others together are no ensemble of all models.
    """
    write_archive(tmp_path / "data.npz", 12)
    dataset = f"npz:{tmp_path / 'data.npz'}"
    config = run_config(model="mlp", mlp__hidden="4", dataset=dataset, partition="iid")
    order = to_record(Order(1, 1, "hospital-0", ["0", "1"], "plain", "1", ensemble=True))

    def ask(verb, content):
        place = context(0, 1, config, **{"store-dir": str(tmp_path)})
        return app(Message(RecordDict({**content, "order": order}), 100, verb), place).content

    good = RecordDict({k: v for k, v in ask("query.prepare", {}).items() if k != "metrics"})
    garbage = RecordDict({**good, "model": ArrayRecord({"w": Array(np.zeros(3))})})
    weights = good.array_records["model"].items()
    huge = {name: Array(np.full_like(array.numpy(), 3e38)) for name, array in weights}
    overflowing = pack({"model": ArrayRecord(huge)}, Manifest.read(good))
    sent = {"a": good, "b": garbage, "c": good, "d": overflowing}
    figures = ask("evaluate", bundle(sent))["metrics"]
    assert figures["b/refused"] == Failure.PARCEL  # its hash is not that of its label
    assert figures["d/refused"] == Failure.USELESS
    assert {name.partition("/")[0] for name in figures if name.endswith("/accuracy")} == {*"ac"}

    class Refusing(CountingHospital):
        def evaluate(self, message, order):
            metrics = MetricRecord({"h0/accuracy": 0.5, "h1/refused": 4203, "h2/accuracy": 0.5})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)

    _, ledger = run(federation(3, h0=Refusing("h0")))
    assert {(e.hospital, e.lineage, e.outcome) for e in failures(ledger)} == {
        ("h0", "h1", "parcel")
    }
