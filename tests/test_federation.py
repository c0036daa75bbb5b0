"""Whole federations on real digits, in one process: real hospitals behind a fake grid."""

import numpy as np
import pytest

from client_app.app import app as hospital_app
from strategies.parcel import check_parcel
from strategies.registry import STRATEGIES
from strategies.settings import Settings
from tests.fakes import FakeGrid, Ledger, context, run_config, write_archive

HOSPITALS = 3


def federate(tmp_path, strategy, order=0, hospitals=HOSPITALS, **overrides):
    """Run a federation; `order` seeds the order in which hospitals answer."""
    config = run_config(
        **{
            "strategy": strategy,
            "num_server_rounds": 2,
            "model": "cnn" if strategy == "fedbn" else "mlp",
            "mlp__hidden": "16",
            "train__epochs": 1,
            "train__learning_rate": 0.01,
            **overrides,
        }
    )

    def hospital(index):
        place = context(index, hospitals, config, **{"store-dir": str(tmp_path)})
        return lambda message: hospital_app(message, place)

    handlers = {100 + index: hospital(index) for index in range(hospitals)}
    ledger = Ledger()
    grid = FakeGrid(handlers, np.random.default_rng(order))
    peers = STRATEGIES[strategy](Settings.parse(config), grid, ledger)
    peers.run()
    return peers, ledger, grid


def models(peers):
    return {
        lineage: {name: array.numpy() for name, array in parcel.array_records["model"].items()}
        for lineage, parcel in peers.parcels.items()
    }


def assert_same_models(one, other):
    for lineage, arrays in models(one).items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, models(other)[lineage][name])


def figures(ledger):
    """What was measured, without how long it took; in an order of its own."""
    return sorted(
        (e.verb, e.round, e.hop, e.hospital, e.lineage, e.outcome, name, value)
        for e in ledger.events
        for name, value in e.metrics.items()
        if not name.startswith("seconds-")
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_trains(tmp_path, strategy):
    peers, ledger, _ = federate(tmp_path, strategy, num_server_rounds=3, partition="iid")
    assert [event for event in ledger.events if event.outcome != "ok"] == []
    accuracies: dict[int, list[float]] = {1: [], 2: [], 3: []}
    for event in ledger.of("evaluate"):
        accuracies[event.round].append(event.metrics["accuracy"])
        assert event.metrics.keys() >= {"accuracy", "balanced-accuracy", "auroc", "num-examples"}
    assert np.mean(accuracies[3]) > np.mean(accuracies[1]) > 0.2
    for lineage, parcel in peers.parcels.items():
        assert check_parcel(parcel).lineage == lineage


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_seed_gives_the_same_metrics_whatever_the_order_of_answers(tmp_path, strategy):
    runs = [federate(tmp_path / str(order), strategy, order) for order in (1, 2)]
    assert figures(runs[0][1]) == figures(runs[1][1])
    assert_same_models(runs[0][0], runs[1][0])


def test_another_seed_gives_other_metrics(tmp_path):
    assert figures(federate(tmp_path, "rwt")[1]) != figures(federate(tmp_path, "rwt", seed=1)[1])


def test_all_hospitals_start_from_one_model(tmp_path):
    _, _, grid = federate(tmp_path, "cwt", num_server_rounds=1)
    first = [m.content["model"].object_id for m in grid.sent if m.metadata.message_type == "train"]
    assert len(first) == HOSPITALS
    assert len(set(first)) == 1


def test_fedprox_without_pull_is_fedavg_bit_for_bit(tmp_path):
    fedavg, told, _ = federate(tmp_path, "fedavg")
    fedprox, told_too, _ = federate(tmp_path, "fedprox", fedprox__mu=0.0)
    assert_same_models(fedavg, fedprox)
    assert figures(told) == figures(told_too)


def test_fedprox_with_pull_is_not(tmp_path):
    assert figures(federate(tmp_path, "fedavg")[1]) != figures(
        federate(tmp_path, "fedprox", fedprox__mu=1.0)[1]
    )


def test_batchnorm_never_travels_with_fedbn_but_stays_with_the_hospital(tmp_path):
    write_archive(tmp_path / "few.npz", 40)
    dataset = f"npz:{tmp_path}/few.npz"
    _, ledger, grid = federate(
        tmp_path, "fedbn", dataset=dataset, partition="iid", model="resnet18"
    )
    for message in grid.sent:
        for record in message.content.array_records.values():
            assert not [name for name in record if "bn" in name or "downsample.1" in name]
    homes = [np.load(path) for path in tmp_path.glob("hospital-*/runs/1/home.npz")]
    assert len(homes) == HOSPITALS
    assert all(home["bn1.num_batches_tracked"] == 2 for home in homes)  # one batch a round
    assert [event for event in ledger.events if event.outcome != "ok"] == []


def test_fedavg_averages_what_the_hospitals_send(tmp_path):
    """The global model after round 1 is the mean of the answers, weighted by their images."""
    peers, ledger, _ = federate(tmp_path, "fedavg", num_server_rounds=1)
    weights = {e.hospital: e.metrics["num-examples"] for e in ledger.of("train")}
    assert len(set(weights.values())) > 1
    # Each hospital's answer is what standalone's hospital holds after its first visit.
    alone, _, _ = federate(tmp_path, "standalone", num_server_rounds=1)
    for name, array in models(peers)["global"].items():
        mean = sum(weights[h] * models(alone)[h][name] for h in weights) / sum(weights.values())
        np.testing.assert_allclose(array, mean, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"dataset": "didgits"}, "didgits"),
        ({"model": "resnet19"}, "resnet18"),
        ({"model": "vgg11"}, "vgg11"),
        ({"partition": "site"}, "site"),
        ({"strategy": "fedbn", "model": "mlp"}, "no BatchNorm layer"),
        ({"dataset": "npz:/nowhere/at/all.npz"}, "/nowhere/at/all.npz"),
    ],
)
def test_what_cannot_work_ends_before_the_first_hop(tmp_path, overrides, words):
    with pytest.raises(Exception, match=words) as error:
        federate(tmp_path, **{"strategy": "rwt", **overrides})
    assert error.type.__name__ == "RunError"
