"""FIL-VER as a whole: real hospitals behind a fake grid, digits in two tasks."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from learning import server_training
from learning.errors import DivergedError
from strategies.engine.shelf import Shelf
from strategies.engine.state import Model, State
from strategies.engine.topology import GLOBAL
from strategies.engine.visit import Visit
from strategies.protocol.parcel import Manifest, pack
from strategies.protocol.settings import SettingsError
from strategies.registry import strategy_of
from tests.fakes import FakeGrid, failing, parcels_of, settings
from tests.test_federation import assert_same_models, federate, figures

pytestmark = pytest.mark.usefixtures("_quick_audits")

SMALL = {
    "model": "vee",
    "image_size": 16,
    "tasks": 2,
    "task_cut": "permuted",
    "num_server_rounds": 4,
    "evaluate__every": 2,
    "partition": "iid",
    "train__epochs": 1,
    "train__learning_rate": 0.001,
    "filver__pretrain_epochs": 3,
    "filver__server_steps": 20,
}


def fil_ver(tmp_path, order=0, **changes):
    return federate(tmp_path, "fil-ver", order, **{**SMALL, **changes})


@pytest.fixture(scope="module")
def whole(tmp_path_factory, _quick_audits):
    return fil_ver(tmp_path_factory.mktemp("whole"))


def orders(grid, verb="train"):
    return [m.content["order"] for m in grid.sent if m.metadata.message_type == verb]


@pytest.mark.slow
def test_a_run_pretrains_once_and_then_all_train_the_classifier(whole):
    state, ledger, grid = whole
    assert [event for event in ledger.events if event.outcome != "ok"] == []
    learners = [order["learner"] for order in orders(grid)]
    assert learners == ["fil-ver-encoder", *["fil-ver"] * 12]
    first = orders(grid)[0]
    assert (first["round"], first["hop"], first["epochs"], first["task"]) == (1, 1, 3, 1)
    assert [order["task"] for order in orders(grid)[1:]] == [1] * 6 + [2] * 6
    assert list(state.models) == [GLOBAL]
    assert state.models[GLOBAL].round == 4
    last = [e.metrics["accuracy"] for e in ledger.of("evaluate") if e.round == 4]
    assert np.mean(last) > 0.3


@pytest.mark.slow
def test_each_hospital_sends_a_task_s_embeddings_once(whole):
    state, _, grid = whole
    kinds = [order["embeddings"] for order in orders(grid)]
    assert kinds == ["", *["sampled"] * 3, *[""] * 3, *["sampled"] * 3, *[""] * 3]
    assert sorted(state.embeddings) == [f"{t} hospital-{k}" for t in (1, 2) for k in range(3)]
    for name in state.embeddings.values():
        sent = state.shelf.get(name).array_records["embeddings"]
        count = len(sent["labels"].numpy())
        assert sent["values"].numpy().shape == (count, 1, 256)
        assert count == pytest.approx(0.1 * 1797 * 0.8 / 3, abs=1)


@pytest.mark.slow
def test_events_say_what_was_asked_and_what_came(whole):
    state, ledger, _ = whole
    told = {
        (event.round, event.hospital): event.facts["came"]
        for event in ledger.of("train")
        if event.facts.get("embeddings") == "sampled"
    }
    came = {}
    for key, name in state.embeddings.items():
        task, _, hospital = key.partition(" ")
        labels = state.shelf.get(name).array_records["embeddings"]["labels"]
        came[{"1": 1, "2": 3}[task], hospital] = len(labels.numpy())
    assert told == came


@pytest.mark.slow
def test_the_encoder_travels_once_to_each_hospital_and_never_back(whole):
    state, _, grid = whole
    encoders = state.encoder_arrays.keys()
    assert all(name.startswith("encoder.") for name in encoders)
    carrying: dict[int, int] = {}
    for message in grid.sent:
        node, content = message.metadata.dst_node_id, message.content
        if "encoder" in content.array_records:
            carrying[node] = carrying.get(node, 0) + 1
            assert set(content.array_records["encoder"]) == set(encoders)
        if content["order"]["encoder"]:
            for name, record in content.array_records.items():
                assert name == "encoder" or not set(record) & set(encoders)
    assert carrying == {100: 1, 101: 1, 102: 1}
    final = parcels_of(state)[GLOBAL].array_records["model"]
    for name, array in state.encoder_arrays.items():
        assert final[name].numpy().tobytes() == array.numpy().tobytes()


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_whatever_the_order_of_answers(tmp_path, whole):
    again = fil_ver(tmp_path, order=1)
    assert figures(again[1]) == figures(whole[1])
    assert_same_models(again[0], whole[0])


@pytest.mark.slow
def test_the_server_trains_with_the_round_s_rate_and_without_weights_of_classes(
    tmp_path, monkeypatch
):
    seen = []

    def train(learner, settings, *rest):
        assert learner.settings.train == settings
        seen.append((settings.learning_rate, settings.class_balance, learner.class_weights))
        return {"train-loss": 1.0}

    monkeypatch.setattr("learning.server_training.train", train)
    changes = {"num_server_rounds": 2, "train__halve_every": 2, "train__class_balance": "loss"}
    fil_ver(tmp_path, **changes)
    assert seen == [(0.001, "none", None), (0.0005, "none", None)]


def test_what_is_averaged_is_eq_1_by_hand_and_the_encoder_stays_bit_for_bit(tmp_path):
    """Σ N_j w_j / Σ N_j for N = 1 and 3; a mean of the encoder's 0.1 could be another number."""
    strategy = strategy_of(settings(strategy="fil-ver", model="vee", filver__server_steps=0))
    state = State(Shelf(tmp_path), "run")

    def parcel(weight, *visited):
        arrays = {"encoder.w": 0.1, "classifier.w": weight}
        record = ArrayRecord({name: Array(np.array([w], "f4")) for name, w in arrays.items()})
        label = Manifest(GLOBAL, "net", ["a", "b"], 1, visited=[*visited])
        return state.shelf.put(pack({"model": record}, label))

    state.nodes = {"graz": 1, "wien": 2}
    state.models[GLOBAL] = Model(GLOBAL, GLOBAL, parcel(0.0))
    first = Visit("graz", GLOBAL, "fil-ver-encoder", 1)
    strategy.arrived(state, first, Model(GLOBAL, "graz", parcel(9.0), round=1))
    begun = parcels_of(state)[GLOBAL].array_records["model"]
    assert begun["classifier.w"].numpy() == [0]  # that of the first visit is thrown away
    for hospital, weight, count in (("graz", 2.0, 1), ("wien", 4.0, 3)):
        visit = Visit(hospital, GLOBAL, "fil-ver", 1)
        trained = parcel(weight, hospital)
        model = Model(GLOBAL, hospital, trained, round=1, num_examples=count)
        strategy.arrived(state, visit, model)
    strategy.finish_round(state)
    mean = parcels_of(state)[GLOBAL].array_records["model"]
    assert mean["classifier.w"].numpy() == [(2 * 1 + 4 * 3) / 4]
    assert mean["encoder.w"].numpy() == np.array([0.1], "f4")
    assert state.models[GLOBAL].round == 1


def test_a_server_training_that_diverges_leaves_the_average_as_it_is(tmp_path, monkeypatch):
    def diverge(*_):
        raise DivergedError("Training diverged.")

    monkeypatch.setattr(server_training, "rehearse", diverge)
    strategy: Any = strategy_of(settings(strategy="fil-ver", model="vee"))
    state = State(Shelf(tmp_path), "run")
    arrays = ArrayRecord({"classifier.w": Array(np.array([2.0], "f4"))})
    sent = state.shelf.put(
        pack({"model": arrays, "embeddings": arrays}, Manifest(GLOBAL, "net", ["a", "b"], 1))
    )
    state.embeddings["1 graz"] = sent
    merged = strategy.merge(state, [Model(GLOBAL, "graz", sent, round=1, num_examples=1)])
    assert merged["model"]["classifier.w"].numpy() == [2]


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["stats", "ebr"])
def test_the_other_variants(tmp_path, variant):
    model = "ebr" if variant == "ebr" else "vee"
    state, ledger, _ = fil_ver(
        tmp_path, filver__variant=variant, model=model, num_server_rounds=2, tasks=1
    )
    assert [event for event in ledger.events if event.outcome != "ok"] == []
    parts = {
        state.shelf.get(name).array_records["embeddings"]["values"].numpy().shape[1]
        for name in state.embeddings.values()
    }
    assert parts == {2 if variant == "stats" else 1}


@pytest.mark.slow
def test_offline_one_hospital_trains_on_the_embeddings_of_all_tasks_and_hospitals(tmp_path):
    """Digits: 1437 training images; in two tasks twice as many."""
    changes = {"num_server_rounds": 3, "filver__offline": True, "filver__pretrain": "pooled"}
    state, ledger, grid = fil_ver(tmp_path, **changes)
    assert [event for event in ledger.events if event.outcome != "ok"] == []
    asked = [(order["learner"], order["hospital"], order["task"]) for order in orders(grid)]
    joint = ("fil-ver", "hospital-0", 2)
    assert asked == [("fil-ver-encoder", "hospital-0", 1), joint, joint]
    seen = [event.metrics["num-examples"] for event in ledger.of("train")]
    count = round(0.8 * 1797)
    assert seen == pytest.approx([count, 2 * count, 2 * count], abs=3)
    assert state.embeddings == {}
    assert {order["task"] for order in orders(grid, "evaluate") if order["round"] > 1} == {2}


@pytest.mark.slow
def test_who_comes_and_goes_by_plan(tmp_path):
    """Who has left is not asked, and what it sent stays; who joins later gets the encoder then."""
    plan = tmp_path / "plan.csv"
    plan.write_text("hospital-0,active,active\nhospital-1,active,left\nhospital-2,not-yet,active\n")
    changes = {"enrolment": str(plan), "num_server_rounds": 2, "evaluate__every": 1}
    state, ledger, grid = fil_ver(tmp_path, **changes)
    assert [event for event in ledger.events if event.outcome != "ok"] == []
    expected = {(1, "hospital-0"), (1, "hospital-1"), (2, "hospital-0"), (2, "hospital-2")}
    for verb in ("train", "evaluate"):
        asked = {(order["task"], order["hospital"]) for order in orders(grid, verb)}
        assert asked == expected
    assert sorted(state.embeddings) == sorted(f"{t} {name}" for t, name in expected)
    given = [
        (message.content["order"]["round"], message.metadata.dst_node_id)
        for message in grid.sent
        if "encoder" in message.content.array_records
    ]
    assert sorted(given) == [(1, 100), (1, 101), (2, 102)]


@pytest.mark.slow
def test_hospitals_that_fail_without_a_plan(tmp_path, monkeypatch):
    """The next one trains the encoder; one that is gone in task 2 has left its embeddings."""

    class Failing(FakeGrid):
        def __init__(self, handlers, rng=None):
            super().__init__({node: self.failing(each) for node, each in handlers.items()}, rng)

        def failing(self, handler):
            def answer(message):
                order = message.content["order"]
                place = (order["hospital"], order["learner"], order["task"])
                if message.metadata.message_type == "train" and place in GONE:
                    return failing(message)
                return handler(message)

            return answer

    GONE = {("hospital-0", "fil-ver-encoder", 1), ("hospital-2", "fil-ver", 2)}
    monkeypatch.setattr("tests.test_federation.FakeGrid", Failing)
    state, _, grid = fil_ver(tmp_path, num_server_rounds=2)
    pretrained = [o["hospital"] for o in orders(grid) if o["learner"] == "fil-ver-encoder"]
    assert pretrained == ["hospital-0", "hospital-1"]
    assert "1 hospital-2" in state.embeddings
    assert "2 hospital-2" not in state.embeddings
    assert state.models[GLOBAL].round == 2


def test_settings_that_do_not_fit(tmp_path):
    def refusal(**changes):
        with pytest.raises(SettingsError) as error:
            strategy_of(settings(strategy="fil-ver", **{"model": "vee", **changes}))
        return str(error.value)

    assert "'model' is 'cnn'; it must be 'vee' with filver.variant 'sampled'" in refusal(
        model="cnn"
    )
    assert "it must be 'ebr' with filver.variant 'ebr'" in refusal(filver__variant="ebr")
    assert "'filver.pretrain' is 'pubic'" in refusal(filver__pretrain="pubic")
    assert "'filver.pretrain' is 'public:x.npz'" in refusal(filver__pretrain="public:x.npz")
    assert "'filver.server-steps' is -1" in refusal(filver__server_steps=-1)
    assert "'filver.pretrain-epochs' is 0" in refusal(filver__pretrain_epochs=0)
    strategy = strategy_of(settings(strategy="fil-ver", model="vee"))
    with pytest.raises(SettingsError, match="'sealed' is true; it must be false"):
        strategy.check(sealed=True)
    with pytest.raises(SettingsError, match="'learner' is 'rehearsal'; it must be empty"):
        strategy_of(settings(strategy="feder", learner="rehearsal"))
    assert strategy_of(settings(strategy="cwt", learner="rehearsal")).learner == "rehearsal"
