"""Models of no use: a hospital's own blow-up stays at home; what one sends anyway spoils nobody's.

Real hospitals with the networks and images of a simulation, behind a fake grid.
"""

import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from client_app.app import app as hospital_app
from client_app.authority.judge import Judge
from server_app.app import app as server_app
from server_app.assessments import assess
from server_app.summary import measure_round
from strategies.engine.courier import Courier
from strategies.engine.engine import Engine
from strategies.engine.run import Run
from strategies.engine.shelf import Shelf
from strategies.engine.state import State
from strategies.engine.strategy import RunError
from strategies.engine.undoing import SERVER
from strategies.protocol.may_leave import Failure
from strategies.protocol.parcel import Manifest, load, pack, unbundle
from strategies.registry import strategy_of
from tests.fakes import (
    CountingHospital,
    FakeGrid,
    Ledger,
    Sealing,
    context,
    failing,
    federation,
    go,
    models_of,
    run_config,
    run_here,
    settings,
    write_archive,
)

HANDED_ON = ["cwt", "rwt", "cwc", "cwt-serial", "feder", "fedrewind", "asynchronous"]
AVERAGED = ["fedavg", "fedprox", "fedbn", "fedspace"]


def chosen(tmp_path, strategy, **changes):
    write_archive(tmp_path / "data.npz", 60)
    plain = {
        "strategy": "rwt" if strategy == "asynchronous" else strategy,
        "asynchronous": strategy == "asynchronous",
        "dataset": f"npz:{tmp_path / 'data.npz'}",
        "partition": "iid",
        "model": {"fedspace": "rotation-mlp", "fedbn": "cnn"}.get(strategy, "mlp"),
        "mlp__hidden": "8",
        "num_server_rounds": 2,
        "train__epochs": 3 if strategy == "fedrewind" else 1,
        "train__optimizer": "sgd",
        "feder__buffer_size": 0,
        "min_hospitals": 1,
        "output_dir": str(tmp_path / "runs"),
    }
    return run_config(**{**plain, **changes})


def places(tmp_path, config, own=None, count=3):
    store = {"store-dir": str(tmp_path / "store")}
    return [context(k, count, config, **store, **(own or {}).get(k, {})) for k in range(count)]


def summary_of(result):
    return json.loads((result / "summary.json").read_text())


def largest(result):
    """The largest number in each model at the end."""
    return {
        path.stem: max(
            float(np.abs(array.numpy().astype("f8")).max())
            for array in load(path).array_records["model"].values()
        )
        for path in (result / "parcels").iterdir()
    }


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [*HANDED_ON, *AVERAGED, "standalone"])
@pytest.mark.parametrize("rate", [1e9, 1e4])
def test_a_blow_up_is_the_failure_of_its_hospital_and_nobody_elses(tmp_path, strategy, rate):
    own = {1: {"train.learning-rate": rate}}
    result, _ = run_here(places(tmp_path, chosen(tmp_path, strategy), own))
    failures = summary_of(result)["failures"]
    assert failures
    assert {(f["hospital"], f["outcome"]) for f in failures} == {("hospital-1", "diverged")}
    assert max(largest(result).values()) < 1e3
    for failure in failures:
        for word in (
            "hospital-1",
            # Without rounds an order has the number of its visit.
            "in round " if strategy == "asynchronous" else f"round {failure['round']}",
            "diverged",
            "Lower train.learning-rate",
        ):
            assert word in failure["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 100.0), ("adam", 100.0), ("adam", 30.0)])
def test_a_rate_that_is_far_too_large_is_no_plain_success(tmp_path, model, optimizer, rate):
    changes = {"train__optimizer": optimizer, "train__learning_rate": rate, "train__epochs": 3}
    config = chosen(tmp_path, "cwt", model=model, **changes)
    with suppress(RunError):  # no hospital may have trained any model
        run_here(places(tmp_path, config))
    (result,) = (tmp_path / "runs").iterdir()
    assert summary_of(result)["status"] != "completed"
    assert max(largest(result).values()) <= 1e6


def numbers(change):
    """Changes the weights and statistics of a model, each by its name, and keeps its dtype."""

    def changed(parcel):
        arrays = parcel.array_records["model"]
        floats = {name: each.numpy() for name, each in arrays.items() if "float" in each.dtype}
        changed = {k: Array(change(k, v).astype(v.dtype)) for k, v in floats.items()}
        return ArrayRecord({**arrays, **changed})

    return changed


GARBAGE = {
    "huge": numbers(lambda name, array: array + 1e30),
    "large in each layer": numbers(lambda name, array: array + 9e5),
    "not a number": numbers(lambda name, array: array * np.nan),
    "negative variances": numbers(lambda n, a: a - 9 if n.endswith("running_var") else a),
    "means far away": numbers(lambda n, a: a + 9e5 if n.endswith("running_mean") else a),
    "steep": numbers(lambda n, a: a * 5e4 if n.endswith("weight") else a),
}
FAR = GARBAGE["means far away"]


class Garbage:
    """A hospital whose answers to `train` hold another model than it has trained.

    Its own software judges nothing.
    """

    def __init__(self, place, change, rounds):
        self.place, self.change, self.rounds = place, change, rounds

    def __call__(self, message):
        answer = hospital_app(message, self.place)
        if not message.metadata.message_type.startswith("train") or answer.has_error():
            return answer
        label = Manifest.read(answer.content)
        if label.round not in self.rounds:
            return answer
        records = {k: v for k, v in answer.content.array_records.items() if k in ("memory",)}
        sent = pack({"model": self.change(answer.content), **records}, label)
        return Message(RecordDict({**answer.content, **sent}), reply_to=message)


def spoilt(tmp_path, strategy, change, rounds=range(9), **changes):
    """A run in which `hospital-1` sends garbage in some rounds."""
    all_of_them = places(tmp_path, chosen(tmp_path, strategy, **changes))
    handlers: dict[int, Any] = {
        p.node_id: (lambda message, p=p: hospital_app(message, p)) for p in all_of_them
    }
    handlers[101] = Garbage(all_of_them[1], change, rounds)
    server_app(FakeGrid(handlers), all_of_them[0])
    (result,) = (tmp_path / "runs").iterdir()
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        *(("cwt", kind) for kind in GARBAGE),
        *((strategy, "means far away") for strategy in HANDED_ON[1:]),
    ],
)
def test_garbage_that_is_sent_anyway_spoils_no_lineage(tmp_path, strategy, kind):
    result = spoilt(tmp_path, strategy, GARBAGE[kind], model="cnn")
    failures = summary_of(result)["failures"]
    assert {f["hospital"] for f in failures if f["verb"] != "evaluate"} == {"hospital-1"}
    assert max(largest(result).values()) < 1e3
    matrix = summary_of(result)["accuracy_matrix"]
    assert all(isinstance(each, float) for row in matrix for each in row)  # all are tested again


@pytest.mark.slow
def test_a_run_with_garbage_is_replayed_in_its_order(tmp_path):
    found: list[Any] = []
    for name in ("first", "again"):
        (folder := tmp_path / name).mkdir()
        replay = {"async__replay": str(found[0])} if found else {}
        found.append(spoilt(folder, "asynchronous", FAR, model="cnn", **replay))
    assert any(f["outcome"] == "useless" for f in summary_of(found[0])["failures"])
    assert models_of(found[0]) == models_of(found[1])


@pytest.mark.slow
def test_garbage_in_the_last_round_is_not_what_the_run_ends_with(tmp_path):
    result = spoilt(tmp_path, "cwt", FAR, rounds=[2], model="cnn")
    failures = summary_of(result)["failures"]
    undone = {(f["hospital"], f["outcome"]) for f in failures if f["verb"] == "undo"}
    assert undone == {("hospital-1", "useless")}
    assert max(largest(result).values()) < 1e3


@pytest.mark.slow
def test_an_average_that_is_of_no_use_is_not_what_the_run_ends_with(tmp_path):
    """The server cannot tell from numbers that these statistics are absurd; hospitals can."""
    result = spoilt(tmp_path, "fedavg", FAR, rounds=[2], model="cnn")
    failures = summary_of(result)["failures"]
    assert (SERVER, "undo") in {(f["hospital"], f["verb"]) for f in failures}
    assert "train" not in {f["verb"] for f in failures}
    assert max(largest(result).values()) < 1e3


@pytest.mark.slow
@pytest.mark.parametrize("strategy", AVERAGED)
@pytest.mark.parametrize("kind", ["huge", "large in each layer", "not a number", "steep"])
def test_garbage_is_not_averaged(tmp_path, strategy, kind):
    result = spoilt(tmp_path, strategy, GARBAGE[kind])
    failures = summary_of(result)["failures"]
    assert {(f["hospital"], f["outcome"]) for f in failures} == {("hospital-1", "diverged")}
    assert max(largest(result).values()) < 1e3


def test_weights_that_are_all_zero_are_of_no_use(tmp_path):
    result = spoilt(tmp_path, "cwt", numbers(lambda name, array: array * 0))
    failures = {(f["hospital"], f["outcome"]) for f in summary_of(result)["failures"]}
    assert ("hospital-1", "useless") in failures
    assert min(largest(result).values()) > 0


def test_a_model_that_has_unlearnt_everything_is_merely_bad(tmp_path):
    """Its weights are drawn anew."""
    rng = np.random.default_rng(0)
    result = spoilt(tmp_path, "cwt", numbers(lambda name, array: rng.permuted(array)))
    assert summary_of(result)["failures"] == []


@pytest.mark.parametrize("strategy", ["fedavg", "cwt-serial"])
def test_the_bad_first_model_of_one_hospital_begins_no_lineage_of_all(strategy):
    class Odd(CountingHospital):
        def prepare(self, message, order):
            label = Manifest(self.name, "counter", order.classes)
            content = RecordDict({**self.parcel(1e5, label), "metrics": MetricRecord()})
            return Message(content, reply_to=message)

    state, _ = counted(federation(3, h0=Odd("h0")), strategy=strategy)
    (model,) = state.models.values()
    assert state.shelf.arrays(model.parcel)["visits"].numpy()[0] < 100


class Fussy(CountingHospital):
    """Refuses models that `useless` names, by who trained them last."""

    def __init__(self, name, *useless):
        super().__init__(name)
        self.useless, self.refused = useless, 0

    def train(self, message, order):
        visited = Manifest.read(message.content).visited
        if visited and visited[-1] in self.useless:
            self.refused += 1
            return failing(message, Failure.USELESS, "It is of no use: its loss is not finite.")
        return super().train(message, order)


def counted(handlers, **changes):
    ledger = Ledger()
    chosen = settings(**{"strategy": "cwt", "num_server_rounds": 4, **changes})
    return go(chosen, FakeGrid(handlers), ledger), ledger


def failures(ledger):
    return {(e.hospital, e.outcome, e.verb) for e in ledger.events if e.outcome != "ok"}


def test_a_refused_visit_is_undone_and_the_hospital_trains_the_copy_before():
    """Of each lineage the visit at h1 is lost, and no other."""
    state, ledger = counted(federation(3, h2=Fussy("h2", "h1"), h0=Fussy("h0", "h1")))
    assert failures(ledger) == {("h1", "useless", "undo")}
    for model in state.models.values():
        assert "h1" not in state.shelf.label(model.parcel).visited[:-1]
    reasons = {e.reason for e in ledger.events if e.outcome == "useless"}
    assert all("received the model that 'h1' made in round" in reason for reason in reasons)


def test_a_hospital_that_refuses_everything_takes_back_one_visit_and_is_then_named():
    state, ledger = counted(federation(3, h2=Fussy("h2", "h0", "h1", "h2")))
    assert ("h2", "useless", "train") in failures(ledger)
    assert all(model.round > 1 for model in state.models.values())


def test_an_average_that_is_refused_names_no_hospital():
    class Refusing(CountingHospital):
        def train(self, message, order):
            if Manifest.read(message.content).round == 2:
                return failing(message, Failure.USELESS, "It is of no use.")
            return super().train(message, order)

    _, ledger = counted(federation(3, h2=Refusing("h2")), strategy="fedavg")
    assert failures(ledger) == {(SERVER, "useless", "undo")}
    reasons = {e.reason for e in ledger.events if e.outcome == "useless"}
    assert all(reason.endswith(" Lower train.learning-rate.") for reason in reasons)
    assert len([e for e in ledger.of("train") if e.round == 3 and e.outcome == "ok"]) == 3


class Examiner(CountingHospital):
    """After the last round it may refuse models that h1 trained last; others find them bad."""

    def __init__(self, name, refusing):
        super().__init__(name)
        self.refuses = name in refusing

    def evaluate(self, message, order):
        told: dict[str, Any] = {}
        names = {key.partition("/")[0] for key in message.content if "/" in key}
        for name in names:
            label = Manifest.read(RecordDict({"manifest": message.content[f"{name}/manifest"]}))
            bad = order.final and label.visited[-1:] == ["h1"]
            told |= (
                {f"{name}/refused": float(Failure.USELESS)}
                if bad and self.refuses
                else {f"{name}/accuracy": 0.1 if bad else 0.5}
            )
        if order.ensemble and all(f"{name}/accuracy" in told for name in names):
            told["ensemble/accuracy"] = min(told[f"{name}/accuracy"] for name in names)
        return Message(RecordDict({"metrics": MetricRecord(told)}), reply_to=message)


def test_the_last_figures_are_those_of_the_models_that_the_run_ends_with():
    """After one round the copy before is the first model, of hop 0; h1 and h3 took the bad one."""
    hospitals = {100 + k: Examiner(f"h{k}", ["h0", "h2"]) for k in range(4)}
    state, ledger = counted(hospitals, num_server_rounds=1)
    labels = [state.shelf.label(model.parcel) for model in state.models.values()]
    assert "h1" not in {name for label in labels for name in label.visited}
    tests = measure_round(1, ledger.events, cross=True).tests
    assert len(tests) == 16
    assert {test["accuracy"] for test in tests.values()} == {0.5}


def test_all_models_are_tested_together_after_one_of_them_was_undone():
    """The first ensemble of h1 and h3 has the bad model; h0 and h2 could not test it."""
    hospitals = {100 + k: Examiner(f"h{k}", ["h0", "h2"]) for k in range(4)}
    _, ledger = counted(hospitals, num_server_rounds=1)
    told = [e.metrics["accuracy"] for e in ledger.events if e.verb == "ensemble"]
    assert sorted(told) == [0.1, 0.1, 0.5, 0.5, 0.5, 0.5]
    round_ = measure_round(1, ledger.events, cross=True)
    assert round_.figures["ensemble_accuracy"] == 0.5
    rows = [row for row in assess(round_, ledger.events, ["a", "b"]) if row["kind"] == "ensemble"]
    assert [row["accuracy"]["value"] for row in rows] == [0.5] * 4


@pytest.mark.parametrize(("refusing", "undone"), [(["h0"], False), (["h0", "h2"], True)])
def test_one_of_three_testers_undoes_no_model(refusing, undone):
    """The lineage that h1 trained last is tested by all; h1's own word does not count."""

    state, ledger = counted({100 + k: Examiner(f"h{k}", refusing) for k in range(4)})
    last = {state.shelf.label(model.parcel).visited[-1] for model in state.models.values()}
    assert ("h1" not in last) == undone
    assert (("h1", "useless", "undo") in failures(ledger)) == undone


class Careful(Sealing):
    """Finds the copy of h0's lineage from round 6 useless: `refusing` hospitals do so in a test.

    Of sealed copies it trains none that is older than one that it has trained. `away` from a verb
    is a hospital that fails from round 3 on.
    """

    def __init__(self, name, folder, refusing=(), away=""):
        super().__init__(name, folder)
        self.refuses, self.away = name in refusing, away

    def fails(self, verb, round_):
        return self.away == f"{self.name} {verb}" and round_ > 2

    def train(self, message, order):
        return (
            failing(message) if self.fails("train", order.round) else super().train(message, order)
        )

    def evaluate(self, message, order):
        if self.fails("evaluate", order.round):
            return failing(message)
        told: dict[str, Any] = {}
        for name, parcel in unbundle(message.content).items():
            label = Manifest.read(parcel)
            useless = self.refuses and (label.lineage, label.round) == ("h0", 6)
            told |= (
                {f"{name}/refused": float(Failure.USELESS)} if useless else {f"{name}/accuracy": 1}
            )
        return Message(RecordDict({"metrics": MetricRecord(told)}), reply_to=message)


def careful(folder, count, *about):
    return federation(count, **{f"h{k}": Careful(f"h{k}", folder, *about) for k in range(count)})


IN_A_ROW: dict[str, tuple[Any, ...]] = {
    "stays": ({"strategy": "standalone"}, 3, ["h1", "h2"], ""),
    "stays, and is tested there alone": (
        {"strategy": "standalone", "evaluate__cross": False},
        3,
        ["h0"],
        "",
    ),
    # h0's model: h0 trains it in round 1, then h1 in the rounds 2, 4, 6 and 8
    "comes back": ({"strategy": "cwt"}, 2, ["h0"], "h0 train"),
}


@pytest.mark.parametrize("kind", IN_A_ROW)
def test_a_hospital_that_trains_a_model_in_a_row_loses_one_visit(kind, tmp_path):
    """In a sealed run, too, it goes on from there."""
    changes, count, *about = IN_A_ROW[kind]
    before = 4 if kind == "comes back" else 5
    state, ledger = counted(careful(tmp_path, count, *about), num_server_rounds=8, **changes)
    (undone,) = ledger.of("undo")
    assert f" The lineage goes on from its copy of round {before}. " in undone.reason
    trained = [e.round for e in ledger.of("train") if e.lineage == "h0" and e.outcome == "ok"]
    label = state.shelf.label(state.models["h0"].parcel)
    assert (label.round, len(label.visited)) == (8, len(trained) - 1)
    failed = {e.hospital for e in ledger.of("train") if e.outcome != "ok"}
    assert failed == ({"h0"} if kind == "comes back" else set())


def test_no_hospital_alone_makes_its_copy_of_anothers_model_a_good_one(tmp_path):
    """h1 trains h0's model again and again, and h0 cannot test it before round 6."""

    class Ill(Careful):
        def fails(self, verb, round_):
            return super().fails(verb, round_) or (self.name, round_ < 6) == ("h0", True)

    handlers = careful(tmp_path, 2, ["h0"], "h0 train")
    handlers[100] = Ill("h0", tmp_path, ["h0"], "h0 train")
    state, ledger = counted(handlers, num_server_rounds=6)
    (undone,) = ledger.of("undo")
    assert " The lineage goes on from its first copy. " in undone.reason
    assert state.shelf.label(state.models["h0"].parcel).visited == []


def test_the_copy_to_go_back_to_outlives_a_kill(tmp_path):
    """The server is killed when the copy of round 4 is tested, and not yet trained on."""
    changes, count, *about = IN_A_ROW["comes back"]
    chosen, kept = settings(num_server_rounds=8, **changes), []

    def keep(state):
        state.shelf.write(state.parcels)
        kept.append(state.to_json())
        if state.round == 6:
            raise InterruptedError

    grid, ledger = FakeGrid(careful(tmp_path / "stores", count, *about)), Ledger()
    with pytest.raises(InterruptedError):
        go(chosen, grid, Ledger(), tmp_path / "shelf", keep)
    state = State.from_json(json.loads(json.dumps(kept[-1])), Shelf(tmp_path / "shelf"))
    Engine(Run(chosen, strategy_of(chosen), state, Courier(grid), ledger), lambda _: None).go()
    assert [" its copy of round 4. " in event.reason for event in ledger.of("undo")] == [True]


@pytest.mark.slow
def test_honest_runs_are_what_they_are_without_a_judge(tmp_path, monkeypatch):
    """Models and figures do not change by one bit."""
    found = []
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
        result, _ = run_here(places(tmp_path / name, chosen(tmp_path / name, "cwt", model="cnn")))
        found.append((models_of(result), summary_of(result)["accuracy_matrix"]))
        monkeypatch.setattr(Judge, "__init__", lambda *_: None)
        monkeypatch.setattr(Judge, "check_visit", lambda *_: None)
    assert found[0] == found[1]
