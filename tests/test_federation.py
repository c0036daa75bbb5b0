"""Whole federations on real digits, in one process: real hospitals behind a fake grid."""

import time

import numpy as np
import PIL.Image
import pytest
import torch
from torch import nn

from client_app import hospital as hospital_module
from client_app import session
from client_app.app import app as hospital_app
from client_app.datasets import open_data
from client_app.hospital import open_hospital
from learning.evaluation import probabilities
from learning.models import Architecture
from learning.packing import unpack_network
from server_app.summary import Summary
from strategies.engine.topology import random_ring, stay
from strategies.protocol.parcel import Manifest, check_parcel, load, unbundle
from strategies.protocol.settings import Settings, SettingsError, rng_for
from strategies.registry import STRATEGIES
from strategies.rwt import RWT
from tests.fakes import (
    NETWORKS,
    FakeGrid,
    Ledger,
    context,
    go,
    models_of,
    parcels_of,
    run_config,
    run_here,
    write_archive,
)

HOSPITALS = 3


pytestmark = pytest.mark.usefixtures("_quick_buffers")


def federate(tmp_path, strategy, order=0, hospitals=HOSPITALS, **overrides):
    """Run a federation; `order` seeds the order in which hospitals answer."""
    config = run_config(
        **{
            "strategy": strategy,
            "num_server_rounds": 2,
            "model": {"fedbn": "cnn", **NETWORKS}.get(strategy, "mlp"),
            "image_size": 16 if strategy == "fil-ver" else 0,
            "mlp__hidden": "16",
            "train__epochs": 3 if strategy == "fedrewind" else 1,
            "train__learning_rate": 0.001 if strategy == "fil-ver" else 0.01,
            "feder__buffer_size": 60,
            "cwc__strength": 0.1,
            "filver__pretrain_epochs": 3,
            "filver__server_steps": 5,
            **overrides,
        }
    )

    def hospital(index):
        place = context(index, hospitals, config, **{"store-dir": str(tmp_path)})
        return lambda message: hospital_app(message, place)

    handlers = {100 + index: hospital(index) for index in range(hospitals)}
    ledger = Ledger()
    grid = FakeGrid(handlers, np.random.default_rng(order))
    return go(Settings.parse(config), grid, ledger), ledger, grid


def models(state):
    return {
        lineage: {name: array.numpy() for name, array in parcel.array_records["model"].items()}
        for lineage, parcel in parcels_of(state).items()
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


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "sums"])
def test_every_strategy_trains(tmp_path, strategy):
    state, ledger, _ = federate(tmp_path, strategy, num_server_rounds=3, partition="iid")
    assert [event for event in ledger.events if event.outcome != "ok"] == []
    accuracies: dict[int, list[float]] = {1: [], 2: [], 3: []}
    for event in ledger.of("evaluate"):
        accuracies[event.round].append(event.metrics["accuracy"])
        assert event.metrics.keys() >= {"accuracy", "balanced-accuracy", "auroc", "num-examples"}
    assert np.mean(accuracies[3]) > np.mean(accuracies[1]) > 0.2
    for lineage, parcel in parcels_of(state).items():
        assert check_parcel(parcel).lineage == lineage


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_seed_gives_the_same_metrics_whatever_the_order_of_answers(tmp_path, strategy):
    runs = [federate(tmp_path / str(order), strategy, order) for order in (1, 2)]
    assert figures(runs[0][1]) == figures(runs[1][1])
    assert_same_models(runs[0][0], runs[1][0])


@pytest.mark.slow
def test_another_seed_gives_other_metrics(tmp_path):
    assert figures(federate(tmp_path, "rwt")[1]) != figures(federate(tmp_path, "rwt", seed=1)[1])


@pytest.mark.slow
def test_the_learning_rate_is_halved_after_every_so_many_rounds(tmp_path, monkeypatch):
    rates = []

    def train(learner, settings, *rest, **options):
        rates.append(settings.learning_rate)
        return {"train-loss": 1.0, "num-examples": 1.0}

    monkeypatch.setattr("client_app.visit.train", train)
    federate(tmp_path, "fedavg", num_server_rounds=5, train__halve_every=2, evaluate__every=5)
    assert rates == [0.01] * 3 + [0.005] * 6 + [0.0025] * 6
    rates.clear()
    federate(tmp_path / "never", "fedavg", num_server_rounds=2, evaluate__every=2)
    assert rates == [0.01] * 6


@pytest.mark.slow
def test_all_hospitals_start_from_one_model(tmp_path):
    _, _, grid = federate(tmp_path, "cwt", num_server_rounds=1)
    first = [m.content["model"].object_id for m in grid.sent if m.metadata.message_type == "train"]
    assert len(first) == HOSPITALS
    assert len(set(first)) == 1


@pytest.mark.slow
def test_fedprox_without_pull_is_fedavg_bit_for_bit(tmp_path):
    fedavg, told, _ = federate(tmp_path, "fedavg")
    fedprox, told_too, _ = federate(tmp_path, "fedprox", fedprox__mu=0.0)
    assert_same_models(fedavg, fedprox)
    assert figures(told) == figures(told_too)


@pytest.mark.slow
def test_fedprox_with_pull_is_not(tmp_path):
    assert figures(federate(tmp_path, "fedavg")[1]) != figures(
        federate(tmp_path, "fedprox", fedprox__mu=1.0)[1]
    )


@pytest.mark.slow
def test_batchnorm_never_travels_with_fedbn_but_stays_with_the_hospital(tmp_path):
    write_archive(tmp_path / "few.npz", 40)
    dataset = f"npz:{tmp_path}/few.npz"
    _, ledger, grid = federate(
        tmp_path, "fedbn", dataset=dataset, partition="iid", model="resnet18"
    )
    for message in grid.sent:
        for record in message.content.array_records.values():
            assert not [name for name in record if "bn" in name or "downsample.1" in name]
    homes = [np.load(path) for path in tmp_path.glob("hospital-*/runs/*/local/2-1.npz")]
    assert len(homes) == HOSPITALS
    assert all(home["bn1.num_batches_tracked"] == 2 for home in homes)  # one batch a round
    assert [event for event in ledger.events if event.outcome != "ok"] == []


@pytest.mark.slow
@pytest.mark.parametrize("counts", ["images", "equal"])
def test_fedavg_averages_what_the_hospitals_send(tmp_path, counts):
    """The global model after round 1 is the mean of the answers, by their images or not."""
    state, ledger, _ = federate(tmp_path, "fedavg", num_server_rounds=1, fedavg__weights=counts)
    weights = {e.hospital: e.metrics["num-examples"] for e in ledger.of("train")}
    assert len(set(weights.values())) > 1
    if counts == "equal":
        weights = dict.fromkeys(weights, 1)
    # Each hospital's answer is what standalone's hospital holds after its first visit.
    alone, _, _ = federate(tmp_path, "standalone", num_server_rounds=1)
    for name, array in models(state)["global"].items():
        mean = sum(weights[h] * models(alone)[h][name] for h in weights) / sum(weights.values())
        np.testing.assert_allclose(array, mean, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"dataset": "didgits"}, "didgits"),
        ({"model": "resnet19"}, "resnet18"),
        ({"model": "alexnet"}, "alexnet"),
        ({"partition": "site"}, "site"),
        ({"strategy": "fedbn", "model": "mlp"}, "no BatchNorm layer"),
        ({"dataset": "npz:/nowhere/at/all.npz"}, "/nowhere/at/all.npz"),
    ],
)
def test_what_cannot_work_ends_before_the_first_hop(tmp_path, overrides, words):
    with pytest.raises(Exception, match=words) as error:
        federate(tmp_path, **{"strategy": "rwt", **overrides})
    assert error.type.__name__ == "RunError"


class BareRing(RWT):
    """FedER's rings and starts, with nothing of FedER."""

    own_start = True

    def plan(self, state):
        if state.hop:
            return []
        ring = random_ring(state.hospitals, rng_for(self.settings.seed, "route", state.round))
        return self.follow(stay(state.hospitals) if state.round == 1 else ring, state)


@pytest.mark.slow
def test_feder_without_buffers_is_the_bare_hand_off_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setitem(STRATEGIES, "bare-ring", BareRing)
    bare, told, _ = federate(tmp_path, "bare-ring", num_server_rounds=3)
    feder, told_too, _ = federate(tmp_path, "feder", num_server_rounds=3, feder__buffer_size=0)
    assert_same_models(bare, feder)
    assert figures(told) == figures(told_too)


@pytest.mark.slow
def test_feder_with_a_replay_weight_of_zero_is_the_bare_hand_off_too(tmp_path, monkeypatch):
    monkeypatch.setitem(STRATEGIES, "bare-ring", BareRing)
    bare, _, _ = federate(tmp_path, "bare-ring", num_server_rounds=3)
    feder, _, _ = federate(tmp_path, "feder", num_server_rounds=3, feder__replay_weight=0.0)
    assert_same_models(bare, feder)


@pytest.mark.slow
def test_replay_lowers_what_a_model_forgets(tmp_path):
    """Each hospital holds classes of its own: a model that moves on forgets the last hospital's."""
    cut = {"partition": "classes", "partition_classes": 5, "num_server_rounds": 6, "hospitals": 2}
    figures = {}
    for size in (0, 200):
        _, ledger, _ = federate(tmp_path, "feder", feder__buffer_size=size, train__epochs=3, **cut)
        last = [e.metrics["accuracy"] for e in ledger.of("evaluate") if e.round == 6]
        figures[size] = np.mean(last)
    assert figures[200] > figures[0] + 0.2


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["buffer-only", "synthetic-only"])
def test_the_variants_of_feder_train(tmp_path, variant):
    _, ledger, _ = federate(tmp_path, "feder", feder__variant=variant, num_server_rounds=8)
    assert [event for event in ledger.events if event.outcome != "ok"] == []
    means = [
        np.mean([e.metrics["accuracy"] for e in ledger.of("evaluate") if e.round == round_])
        for round_ in (1, 8)
    ]
    assert means[1] > means[0] > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("data", ["real", "synthetic", "both"])
def test_centralized_baselines_train(tmp_path, data):
    _, ledger, _ = federate(tmp_path, "centralized", centralized__data=data, num_server_rounds=4)
    assert [event for event in ledger.events if event.outcome != "ok"] == []
    assert np.mean([e.metrics["accuracy"] for e in ledger.of("evaluate") if e.round == 4]) > 0.3
    assert {e.hospital for e in ledger.of("evaluate")} == {f"hospital-{k}" for k in range(3)}


@pytest.mark.slow
def test_every_hospital_may_start_with_a_network_of_its_own(tmp_path):
    """Whatever arrives is trained: an mlp, a cnn and a torchvision network travel together."""
    write_archive(tmp_path / "few.npz", 60)
    state, ledger, _ = federate(
        tmp_path,
        "feder",
        num_server_rounds=3,
        model="mlp, cnn, squeezenet1_1",
        dataset=f"npz:{tmp_path}/few.npz",
        image_size=32,
        partition="iid",
    )
    assert [event for event in ledger.events if event.outcome != "ok"] == []
    labels = {name: check_parcel(parcel) for name, parcel in parcels_of(state).items()}
    networks = {name: Architecture.from_json(m.architecture).name for name, m in labels.items()}
    assert networks == {"hospital-0": "mlp", "hospital-1": "cnn", "hospital-2": "squeezenet1_1"}
    assert all(len(set(label.visited)) > 1 for label in labels.values())
    assert {e.hospital for e in ledger.of("ensemble")} == {f"hospital-{k}" for k in range(3)}


def test_networks_of_different_kinds_cannot_be_averaged(tmp_path):
    with pytest.raises(SettingsError, match="'fedavg' averages models"):
        federate(tmp_path, "fedavg", model="mlp,cnn")


@pytest.mark.slow
def test_the_ensemble_is_the_mean_probability_of_all_models(tmp_path):
    """The same models, tested one by one here: argmax of the sum of their probabilities."""
    state, ledger, _ = federate(tmp_path, "feder")
    place = context(0, HOSPITALS, run_config(), **{"store-dir": str(tmp_path)})
    test = open_hospital(place).data.test
    total = torch.zeros(())
    for parcel in parcels_of(state).values():
        network = unpack_network(parcel, check_parcel(parcel), {}, torch.device("cpu"))
        total = total + probabilities(network, test.images, time.monotonic() + 60)
    expected = (total.argmax(dim=1) == test.labels).float().mean().item()
    [measured] = [e.metrics for e in ledger.of("ensemble") if e.hospital == "hospital-0"]
    assert measured["accuracy"] == pytest.approx(expected)


@pytest.mark.slow
def test_bytes_of_a_hop_are_a_model_both_ways_and_a_buffer_once(tmp_path):
    _, ledger, _ = federate(tmp_path, "feder", num_server_rounds=8)
    first, *later = [e for e in ledger.of("train") if e.hospital == "hospital-0"]
    assert first.bytes_sent == first.bytes_received
    extra = [e.bytes_sent - e.bytes_received for e in later]
    assert sum(map(bool, extra)) == HOSPITALS - 1


@pytest.mark.slow
def test_cwc_without_strength_is_the_serial_hand_off_bit_for_bit(tmp_path):
    serial, told, _ = federate(tmp_path / "a", "cwt-serial")
    cwc, told_too, _ = federate(tmp_path / "b", "cwc", cwc__strength=0.0)
    assert_same_models(serial, cwc)
    assert figures(told) == figures(told_too)


@pytest.mark.slow
def test_cwc_with_strength_is_not(tmp_path):
    serial, _, _ = federate(tmp_path / "a", "cwt-serial")
    cwc, _, _ = federate(tmp_path / "b", "cwc")
    weights = [models(state)["hospital-0"]["1.weight"] for state in (serial, cwc)]
    assert not np.array_equal(*weights)


def memories(grid):
    """The consolidation matrix as it was sent with each visit, as one vector."""
    sent = [m.content for m in grid.sent if m.metadata.message_type == "train"]
    records = [content.array_records.get("memory", {}) for content in sent]
    vectors = [[array.numpy().ravel() for array in record.values()] for record in records]
    return [np.concatenate(vector or [np.zeros(0)]) for vector in vectors]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "steps"),
    [
        *(("cwt-serial", 6), ("cwc", 6), ("rwt", 2), ("feder", 2), ("standalone", 2)),
        *(("fedavg", 2), ("fedrewind", 6), ("centralized", 2)),
    ],
)
def test_the_optimizer_s_state_travels_with_the_model_and_to_no_test(tmp_path, strategy, steps):
    """Two rounds at three hospitals of 8 images, so one step an epoch: six visits of the serial
    model, two of each other one; two visits of three epochs with FedRewind."""
    write_archive(tmp_path / "few.npz", 15)
    changes = {"dataset": f"npz:{tmp_path}/few.npz", "partition": "iid", "feder__buffer_size": 0}
    changes |= {"train__optimizer_state": "travels"}
    state, ledger, grid = federate(tmp_path, strategy, **changes)
    assert {event.outcome for event in ledger.events} == {"ok"}
    for parcel in parcels_of(state).values():
        found = parcel.array_records["optimizer"]
        assert {array.numpy().item() for name, array in found.items() if "step" in name} == {steps}
        assert len(found) == 3 * len(parcel.array_records["model"])
    for message in grid.sent:
        trains = message.metadata.message_type in ("train", "train.rewind")
        goes_on = trains and Manifest.read(message.content).round > 0
        held = [name for name in message.content if name.endswith("optimizer")]
        assert held == ["optimizer"] * goes_on


@pytest.mark.parametrize("strategy", ["fedbn", "fedspace", "fil-ver", "sums"])
def test_some_methods_need_a_fresh_optimizer(strategy):
    chosen = run_config(strategy=strategy, train__optimizer_state="travels")
    with pytest.raises(SettingsError, match=f"must be fresh with strategy '{strategy}', wh"):
        STRATEGIES[strategy](Settings.parse(chosen))


@pytest.mark.slow
def test_the_consolidation_matrix_travels_with_the_model_and_stays_with_nobody_else(tmp_path):
    """Nothing at the first visit; then an entry for each parameter, which grows in a round."""
    state, _, grid = federate(tmp_path, "cwc")
    parameters = sum(array.size for array in models(state)["hospital-0"].values())
    sent = memories(grid)
    assert [len(matrix) for matrix in sent] == [0] + [parameters] * (2 * HOSPITALS - 1)
    assert np.all(sent[2] >= sent[1])
    assert sent[2].sum() > sent[1].sum() > 0
    tested = [m.content for m in grid.sent if m.metadata.message_type == "evaluate"]
    assert not any(name.endswith("memory") for content in tested for name in content)


@pytest.mark.slow
@pytest.mark.parametrize("base", ["cwt", "rwt", "fedavg"])
def test_fedrewind_without_a_fraction_is_its_base_bit_for_bit(tmp_path, base):
    plain, told, _ = federate(tmp_path / "a", base, train__epochs=3)
    rewind = {"rewind__base": base, "rewind__fraction": 0.0}
    state, told_too, _ = federate(tmp_path / "b", "fedrewind", **rewind)
    assert_same_models(plain, state)
    assert figures(told) == figures(told_too)


@pytest.mark.slow
def test_three_legs_are_three_trainings_one_after_the_other(tmp_path):
    """Eq. 4.8 by hand: with all images in one batch, an epoch of SGD is one step of gradient.

    Round 1 is three steps at hospital 0; round 2 a step at hospital 1, at 0, and at 1 again.
    """
    state, _, grid = federate(
        tmp_path,
        "fedrewind",
        hospitals=2,
        train__batch_size=4096,
        train__optimizer="sgd",
        train__learning_rate=0.1,
    )
    places = [context(k, 2, run_config(), **{"store-dir": str(tmp_path)}) for k in range(2)]
    data = [open_hospital(place).data.train for place in places]
    first = next(m.content for m in grid.sent if m.metadata.message_type == "train")
    model = unpack_network(first, check_parcel(first), {}, torch.device("cpu")).train()
    for hospital in (0, 0, 0, 1, 0, 1):
        samples = data[hospital]
        loss = nn.functional.cross_entropy(model(samples.images), samples.labels)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for weight, gradient in zip(model.parameters(), gradients, strict=True):
                weight.sub_(0.1 * gradient)
    for name, array in models(state)["hospital-0"].items():
        np.testing.assert_allclose(array, model.state_dict()[name], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("base", ["cwt", "fedavg"])
def test_no_hospital_opens_the_data_of_another_on_the_rewind_leg(tmp_path, base, monkeypatch):
    """What is opened while a hospital works, by the index of the hospital."""
    opened: set[tuple[int, int]] = set()
    working: list[int] = []

    def noted(settings, index, *others):
        opened.add((working[-1], index))
        return open_data(settings, index, *others)

    app = hospital_app

    def call(message, place):
        working.append(place.node_config["partition-id"])
        session._opener.cache_clear()
        return app(message, place)

    monkeypatch.setattr(hospital_module, "open_data", noted)
    monkeypatch.setattr("tests.test_federation.hospital_app", call)
    _, ledger, _ = federate(tmp_path, "fedrewind", rewind__base=base)
    assert len(ledger.of("train.rewind")) == HOSPITALS
    assert opened == {(k, k) for k in range(HOSPITALS)}


@pytest.mark.slow
def test_as_in_the_authors_fedavg_every_hospital_has_batchnorm_statistics_of_its_own(tmp_path):
    """They stay what they are on the rewind leg, and the average is tested with them."""
    _, ledger, grid = federate(
        tmp_path,
        "fedrewind",
        rewind__base="fedavg",
        rewind__batch_norm="reference",
        model="cnn",
    )
    last = {}  # what came back to each hospital from its rewind leg
    legs = [m for m in grid.sent if m.metadata.message_type.startswith("train")]
    for message in legs[-HOSPITALS:]:
        last[f"hospital-{message.metadata.dst_node_id - 100}"] = message.content
    away = {running_mean(m.content) for m in legs if m.metadata.message_type == "train.rewind"}
    assert away == set(map(running_mean, last.values()))
    assert len(away) == HOSPITALS

    tested = [m.content for m in grid.sent if m.metadata.message_type == "evaluate"][-1]
    [average] = unbundle(tested).values()
    for index in range(HOSPITALS):
        arrays = last[f"hospital-{index}"].array_records["model"].items()
        own = {name: array.numpy() for name, array in arrays if "running" in name}
        model = unpack_network(average, check_parcel(average), own, torch.device("cpu"))
        place = context(index, HOSPITALS, run_config(), **{"store-dir": str(tmp_path)})
        test = open_hospital(place).data.test
        scores = probabilities(model, test.images, time.monotonic() + 60)
        accuracy = (scores.argmax(dim=1) == test.labels).double().mean().item()
        told = [e for e in ledger.of("evaluate") if e.hospital == f"hospital-{index}"]
        assert told[-1].metrics["accuracy"] == pytest.approx(accuracy)


def running_mean(content):
    return content.array_records["model"]["1.running_mean"].data


@pytest.mark.slow
def test_hospitals_with_folders_of_different_classes_train_one_network(tmp_path):
    """One has a and b, one b alone, one c and a: the network tells a, b and c apart everywhere."""
    rng = np.random.default_rng(0)
    for hospital, names in (("graz", "ab"), ("linz", "b"), ("wien", "ca")):
        for k in range(24):
            folder = tmp_path / hospital / names[k % len(names)]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (8, 8), dtype=np.uint8)
            PIL.Image.fromarray(pixels).save(folder / f"{k}.png")
    folders = ",".join(str(tmp_path / name) for name in ("graz", "linz", "wien"))
    state, ledger, _ = federate(tmp_path, "rwt", dataset=f"folder:{folders}", partition="site")
    assert state.hospitals == ["graz", "linz", "wien"]
    for parcel in parcels_of(state).values():
        assert check_parcel(parcel).classes == ["a", "b", "c"]
        assert list(parcel.array_records["model"].values())[-1].shape == (3,)
    assert {event.outcome for event in ledger.events} == {"ok"}
    tested = ledger.of("evaluate")
    assert len(tested) == 2 * 9
    assert all(0 <= event.metrics["balanced-accuracy"] <= 1 for event in tested)
    assert ["auroc" in e.metrics for e in tested if e.hospital == "linz"] == [False] * 6


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["rwt", "cwc", "fedrewind", "feder"])
def test_models_in_half_precision_take_half_the_bytes_and_do_as_well(strategy, tmp_path):
    whole, half = (
        federate(tmp_path, strategy, wire_dtype=dtype)[:2] for dtype in ("float32", "float16")
    )
    assert {event.outcome for event in half[1].events} == {"ok"}
    assert all(
        array.dtype == "float16"
        for parcel in parcels_of(half[0]).values()
        for array in parcel.array_records["model"].values()
    )
    models = [
        sum(
            len(a.data)
            for p in parcels_of(state).values()
            for a in p.array_records["model"].values()
        )
        for state, _ in (whole, half)
    ]
    assert models[1] / models[0] < 0.6  # NumPy's headers stay
    accuracies = [
        np.mean([event.metrics["accuracy"] for event in ledger.of("evaluate")])
        for _, ledger in (whole, half)
    ]
    assert accuracies[1] == pytest.approx(accuracies[0], abs=0.05)


def test_methods_that_average_refuse_half_precision(tmp_path):
    with pytest.raises(
        SettingsError,
        match="'wire-dtype' is 'float16'; it must be float32",
    ):
        federate(tmp_path, "fedavg", wire_dtype="float16")


@pytest.mark.slow
def test_the_order_of_visits_decides_on_asynchronous_models_bit_for_bit(tmp_path):
    """In virtual time, and then replayed in real time, in which hospitals are as fast as they are.

    With `uniform` a lineage that has had as many visits is the same at other speeds too.
    """

    def run(name, **settings):
        shared = {"strategy": "rwt", "model": "mlp", "mlp__hidden": "8", "train__epochs": 1}
        config = run_config(
            **{**shared, "num_server_rounds": 4, "output_dir": str(tmp_path / name)},
            **{"asynchronous": True, "async__choose": "uniform", **settings},
        )
        store = {"store-dir": str(tmp_path / "store")}
        result, _ = run_here([context(index, 3, config, **store) for index in range(3)])
        labels = {path.stem: Manifest.read(load(path)) for path in (result / "parcels").iterdir()}
        return result, models_of(result), {name: each.hop for name, each in labels.items()}

    result, models, visits = run("virtual", async__seconds="1,2,9")
    _, replayed, _ = run("replayed", async__replay=str(result))
    assert replayed == models
    _, others, their_visits = run("other", async__seconds="1,4,1")
    assert others != models
    same = {name for name, count in visits.items() if their_visits[name] == count}
    for (lineage, array), content in models.items():
        if lineage in same:
            assert others[lineage, array] == content
    assert same


def test_whoever_runs_the_app_in_one_process_simulates(tmp_path, monkeypatch):
    monkeypatch.setattr("client_app.authority.node_config._simulates", False)
    chosen = {"strategy": "standalone", "model": "mlp", "mlp__hidden": "8", "train__epochs": 1}
    config = run_config(output_dir=str(tmp_path / "runs"), num_server_rounds=1, **chosen)
    store = {"store-dir": str(tmp_path / "store")}
    result, _ = run_here([context(index, 2, config, **store) for index in range(2)])
    assert Summary.read(result).status == "completed"
