"""Whole federations whose images arrive in tasks: real hospitals behind a fake grid."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from client_app.app import app as hospital_app
from server_app.results import Results
from strategies.engine.courier import Courier
from strategies.engine.engine import Engine
from strategies.engine.run import Run
from strategies.protocol.settings import Settings
from strategies.protocol.streams import arrived_tasks, task_at
from strategies.registry import STRATEGIES, strategy_of
from tests.fakes import NETWORKS, FakeGrid, Ledger, context, go, run_config, write_archive
from tests.test_federation import figures

pytestmark = pytest.mark.usefixtures("_quick_buffers")
HOSPITALS = 2


def config_of(folder: Path, **changes):
    return run_config(
        **{
            "num_server_rounds": 4,
            "tasks": 2,
            "task_cut": "permuted",
            "partition": "iid",
            "model": "mlp",
            "mlp__hidden": "16",
            "train__epochs": 1,
            "train__learning_rate": 0.01,
            "feder__buffer_size": 8,
            "output_dir": str(folder / "runs"),
            **changes,
        }
    )


def federate(folder: Path, order=0, **changes):
    """Run a federation; `order` seeds the order in which hospitals answer."""
    config, ledger = config_of(folder, **changes), Ledger()

    def hospital(index):
        place = context(index, HOSPITALS, config, **{"store-dir": str(folder / "store")})
        return lambda message: hospital_app(message, place)

    grid = FakeGrid({100 + k: hospital(k) for k in range(HOSPITALS)}, np.random.default_rng(order))
    return go(Settings.parse(config), grid, ledger), ledger, grid


def small(folder: Path) -> str:
    """A data set of two classes that is trained on at once."""
    write_archive(folder / "small.npz", 30)
    return f"npz:{folder / 'small.npz'}"


def means(ledger, name) -> Mapping[int, float]:
    """The mean of a figure over all tests of a round, by round."""
    told: dict[int, list[float]] = {}
    for event in ledger.of("evaluate"):
        if name in event.metrics:
            told.setdefault(event.round, []).append(event.metrics[name])
    return {server_round: float(np.mean(values)) for server_round, values in told.items()}


@pytest.mark.slow
def test_fedavg_forgets_what_it_no_longer_sees(tmp_path):
    """Digits, and then digits with their pixels in another order."""
    changes = {"train__epochs": 6, "train__batch_size": 16, "num_server_rounds": 2}
    _, ledger, _ = federate(tmp_path, strategy="fedavg", **changes)
    assert [event for event in ledger.events if event.outcome != "ok"] == []
    first, second = (means(ledger, f"accuracy-of-task-{task}") for task in (1, 2))
    assert (sorted(first), sorted(second)) == ([1, 2], [2])
    assert min(first[1], second[2]) > 0.85
    assert first[2] < first[1] - 0.2
    overall = means(ledger, "accuracy")
    assert overall[1] == first[1]
    assert overall[2] == pytest.approx((first[2] + second[2]) / 2)


def test_shared_outputs_are_named_and_told_apart_by_nobody(tmp_path):
    changes = {"task_cut": "shared-classes", "strategy": "rwt", "num_server_rounds": 2}
    changes |= {"evaluate__cross": False}
    state, ledger, _ = federate(tmp_path, **changes)
    assert state.classes == [str(k) for k in range(10)]
    assert state.outputs == ["0/5", "1/6", "2/7", "3/8", "4/9"]
    for model in state.models.values():
        assert state.shelf.label(model.parcel).classes == state.outputs
    assert means(ledger, "accuracy-of-task-1")[1] > 0.5


QUICK = ("fedavg", "feder", "centralized")


@pytest.mark.parametrize(
    "strategy",
    [
        s if s in QUICK else pytest.param(s, marks=pytest.mark.slow)
        for s in STRATEGIES
        if s != "sums"  # features have no pixels to permute (tests/test_sums.py)
    ],
)
def test_every_strategy_trains_on_tasks(tmp_path, strategy):
    """Orders are for the task of their round; centralised training has all tasks from the start."""
    changes = {"strategy": strategy, "dataset": small(tmp_path), "num_server_rounds": 2}
    changes |= {"model": {"fedbn": "cnn", **NETWORKS}.get(strategy, "mlp")}
    changes |= {"image_size": 16} if strategy == "fil-ver" else {}
    changes |= {"train__epochs": 3} if strategy == "fedrewind" else {}
    _, ledger, grid = federate(tmp_path, **changes)
    assert [event for event in ledger.events if event.outcome != "ok"] == []
    tasks = {
        (message.content["order"]["round"], message.content["order"]["task"])
        for message in grid.sent
        if message.metadata.message_type.partition(".")[0] in ("train", "evaluate")
    }
    last = strategy == "centralized"
    assert tasks == {(1, 2 if last else 1), (2, 2)}
    assert means(ledger, "accuracy-of-task-2").keys() == ({1, 2} if last else {2})


@pytest.mark.parametrize("stream", [{"task_order": "shuffled"}, {"task_spread": 0.5}])
def test_centralised_training_has_all_tasks_whatever_their_order(tmp_path, stream):
    changes = {"strategy": "centralized", "dataset": small(tmp_path), "num_server_rounds": 4}
    _, ledger, grid = federate(tmp_path, **changes, **stream)
    assert [event for event in ledger.events if event.outcome != "ok"] == []
    orders = [m.content["order"] for m in grid.sent if "order" in m.content]
    assert {(o["task"], *o["arrived"]) for o in orders if o["round"]} == {(2,)}
    assert means(ledger, "accuracy-of-task-1").keys() == {1, 2, 3, 4}


HANDED_ON = [
    *({"strategy": "fedavg"}, {"strategy": "cwt"}, {"strategy": "cwt-serial"}),
    *({"strategy": "rwt"}, {"strategy": "rwt", "asynchronous": True}, {"strategy": "standalone"}),
]


@pytest.mark.parametrize(
    ("learner", "changes"),
    [
        pytest.param(
            learner, changes, marks=[pytest.mark.slow] * (learner != "derpp" or number > 0)
        )
        for learner in ("derpp", "er-ace", "lwf", "oewc")
        for number, changes in enumerate(HANDED_ON)
    ],
)
def test_learners_of_streams_work_with_every_hand_off(tmp_path, learner, changes):
    dataset = small(tmp_path)
    _, ledger, grid = federate(
        tmp_path, learner=learner, dataset=dataset, num_server_rounds=2, **changes
    )
    assert [event for event in ledger.events if event.outcome != "ok"] == []
    orders = [m.content["order"] for m in grid.sent if m.metadata.message_type == "train"]
    assert {(order["learner"], order["task"]) for order in orders} == {(learner, 1), (learner, 2)}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_metrics_whatever_the_order_of_answers(tmp_path):
    changes = {"strategy": "rwt", "dataset": small(tmp_path), "num_server_rounds": 2}
    runs = [federate(tmp_path / str(order), order, **changes) for order in (1, 2)]
    assert figures(runs[0][1]) == figures(runs[1][1])
    assert figures(runs[0][1]) != figures(federate(tmp_path / "3", seed=1, **changes)[1])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fedavg", "rwt"])
def test_hospitals_with_streams_of_their_own(tmp_path, strategy):
    """Each is ordered its own task, and tests on all that have arrived anywhere."""
    changes = {"strategy": strategy, "num_server_rounds": 6, "tasks": 5, "task_cut": "classes"}
    changes |= {"task_order": "shuffled", "seed": 3}
    _, ledger, grid = federate(tmp_path, **changes)
    assert [event for event in ledger.events if event.outcome != "ok"] == []
    settings = Settings.parse(config_of(tmp_path, **changes))
    names = ["hospital-0", "hospital-1"]
    differ = False
    for message in grid.sent:
        order = message.content["order"]
        if message.metadata.message_type == "query.prepare":
            assert (order["task"], order["arrived"]) == (
                task_at(settings, 1, order["hospital"]),
                [],
            )
        elif message.metadata.message_type in ("train", "evaluate"):
            assert order["task"] == task_at(settings, order["round"], order["hospital"])
            assert order["arrived"] == arrived_tasks(settings, order["round"], names)
            differ = differ or order["task"] != task_at(settings, order["round"])
    assert differ
    tasks = arrived_tasks(settings, 1, names)
    assert len(tasks) == 2  # with this seed they begin with different ones
    told = [e.metrics for e in ledger.of("evaluate") if e.round == 1]
    assert all(
        {f"accuracy-{kind}-task-{t}" for t in tasks for kind in ("of", "in")} <= {*m} for m in told
    )
    assert not any(f"accuracy-of-task-{t}" in m for m in told for t in {1, 2, 3, 4, 5} - {*tasks})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "learner"), [("feder", ""), ("rwt", "derpp"), ("cwt", "lwf"), ("rwt", "oewc")]
)
def test_a_run_that_is_resumed_in_the_second_task_ends_as_if_it_had_not_been(
    tmp_path, monkeypatch, strategy, learner
):
    """It is killed in round 3, the first of task 2; its hospitals lose nothing."""
    monkeypatch.setattr(Results, "_claim", lambda results: None)  # it goes with the process

    class Killed(BaseException):
        pass

    changes = {"strategy": strategy, "learner": learner, "dataset": small(tmp_path)}

    def run(folder, resume="", kill=False):
        chosen = Settings.parse(config_of(folder, resume=resume, **changes))
        config = config_of(folder, **changes)

        def hospital(index):
            place = context(index, HOSPITALS, config, **{"store-dir": str(folder / "store")})

            def answer(message):
                order = message.content["order"]
                if kill and (order["round"], message.metadata.message_type) == (3, "evaluate"):
                    raise Killed
                return hospital_app(message, place)

            return answer

        grid = FakeGrid({100 + k: hospital(k) for k in range(HOSPITALS)})
        results, state = Results.open(chosen)
        try:
            Engine(
                Run(chosen, strategy_of(chosen), state, Courier(grid), results), results.keep
            ).go()
        except Killed:
            assert kill
        return results

    unbroken = run(tmp_path / "a")
    broken = run(tmp_path / "b", kill=True)
    resumed = run(tmp_path / "b", resume=str(broken.path))
    assert max(event.round for event in resumed._events) == 4

    def told(results):
        return sorted(
            (e.round, e.hop, e.verb, e.hospital, e.lineage, name, value)
            for e in results._events
            for name, value in e.metrics.items()
            if not name.startswith("seconds-") and e.round
        )

    assert told(resumed) == told(unbroken)
