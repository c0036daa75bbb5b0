"""Runs on the features of a frozen network: `train.freeze = "body"`."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from client_app import datasets
from client_app.authority.policy import MachineRules, PolicyError
from client_app.datasets import features, open_data, open_public
from client_app.datasets.features import BATCH, frozen_body
from learning.models import Architecture
from learning.models.frozen import Body, weights_hash
from learning.randomness import seeded
from strategies.protocol.settings import Settings, SettingsError, rng_for
from strategies.registry import STRATEGIES, strategy_of
from tests.fakes import parcels_of, run_config, write_archive
from tests.test_federation import HOSPITALS, federate

FROZEN = {"train__freeze": "body", "model": "cnn", "feder__buffer_size": 0}


def settings(**changes):
    return Settings.parse(run_config(**{**FROZEN, **changes}))


@pytest.fixture
def digits(tmp_path):
    return open_data(settings(partition="iid"), 0, 3, store=tmp_path)


def cnn(seed=0):
    """The network that hospitals freeze: that of the run's seed."""
    with seeded(rng_for(seed, "body")):
        return Architecture("cnn", 1, 8, 8, 2, (8,)).build().eval()


def test_features_are_those_of_the_network_without_its_last_layer(tmp_path, digits):
    images = open_data(settings(partition="iid", train__freeze="none"), 0, 3, store=tmp_path)
    for part in ("train", "test"):
        found, expected = getattr(digits, part), getattr(images, part)
        assert found.images.dtype == torch.float32
        assert torch.equal(found.labels, expected.labels)
        with torch.no_grad():
            z = normalize(cnn()[:-1](expected.images / 255))  # without scale: that is a hook
        torch.testing.assert_close(found.images[:, :, 0, 0], z)
    assert digits.train.shape == (128, 1, 1)


def test_a_body_and_a_head_are_the_whole_network():
    architecture = replace(Architecture("cnn", 1, 8, 8, 4, (8,)), frozen="0" * 64)
    with seeded(rng_for(0, "body")):
        whole = architecture.build().eval()
    head = architecture.head(128).blank()
    layer = whole.get_submodule("14")
    head.load_state_dict(layer.state_dict(prefix="1."))
    images = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    logits = whole(images).detach()
    torch.testing.assert_close(head(Body(whole)(images)[:, :, None, None]).detach(), logits)


def test_features_are_computed_once(tmp_path, digits, monkeypatch):
    monkeypatch.setattr(features, "_compute", None)
    again = open_data(settings(partition="iid", num_server_rounds=9), 1, 3, store=tmp_path)
    assert len(again.train) + len(again.test) < len(np.unique(again.train.pixels))
    with pytest.raises(TypeError):  # another network
        open_data(settings(partition="iid", seed=1), 0, 3, store=tmp_path)


def test_only_images_without_features_are_computed(tmp_path, digits, monkeypatch):
    (file,) = tmp_path.glob("features/*/*.npy")
    table = np.load(file)
    np.save(file, np.flip(table[3 * BATCH :]))  # as after a kill, but for the order
    counted = Mock(side_effect=Body.forward)
    monkeypatch.setattr(Body, "forward", lambda *args: counted(*args))
    datasets._pool_and_shares.cache_clear()
    open_data(settings(partition="iid"), 0, 3, store=tmp_path)
    again = np.load(file)
    assert (again["id"] == table["id"]).all()
    np.testing.assert_allclose(again["z"], table["z"], atol=1e-6)
    assert counted.call_count == 3


def test_public_images_become_features_too(tmp_path, digits):
    write_archive(tmp_path / "public.npz", 20)
    like = replace(digits, whole=frozen_body(settings(), (1, 8, 8))[1])
    samples = open_public(str(tmp_path / "public.npz"), settings(), like, tmp_path)
    assert samples.shape == (128, 1, 1)
    lengths = samples.images.square().sum(dim=1).flatten()
    torch.testing.assert_close(lengths, torch.ones(len(samples)))


@pytest.mark.parametrize("limit", [{"max_memory_gb": 1e-6}, {"max_disk_gb": 1e-6}])
def test_features_stay_within_the_limits_of_the_machine(tmp_path, limit):
    rules = MachineRules(**{"max_memory_gb": 1.0, "max_disk_gb": 1.0, **limit})
    with pytest.raises(PolicyError) as refused:
        open_data(settings(), 0, 3, store=tmp_path, machine=rules)
    assert refused.value.rule == f"machine.{next(iter(limit)).replace('_', '-')}"


def test_the_hash_of_the_weights_leaves_out_the_head():
    network, architecture = cnn(), Architecture("cnn", 1, 8, 8, 2, (8,))
    before = weights_hash(network, architecture)
    torch.nn.init.ones_(network[-1].weight)
    assert weights_hash(network, architecture) == before
    torch.nn.init.ones_(network[0].weight)
    assert weights_hash(network, architecture) != before


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("strategy", {"strategy": "fedspace"}),
        ("strategy", {"strategy": "fil-ver", "model": "vee"}),
        ("strategy", {"strategy": "fedbn"}),
        ("learner", {"learner": "twf"}),
        ("learner", {"learner": "ser"}),
        ("learner", {"learner": "pass"}),
        ("model", {"model": "cnn,mlp"}),
        ("train.augment", {"train__augment": "flip"}),
        ("task-cut", {"task_cut": "permuted"}),
        ("feder.buffer-size", {"strategy": "feder", "feder__buffer_size": 8}),
    ],
)
def test_what_needs_images_is_refused(key, changes):
    with pytest.raises(SettingsError, match=f"'{key}' is .*train.freeze 'body'"):
        strategy_of(settings(**{"strategy": "rwt", **changes}))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", sorted(STRATEGIES.keys() - {"fil-ver", "fedspace", "fedbn"}))
def test_every_other_strategy_trains_a_head(tmp_path, strategy):
    changes = {**FROZEN, "train__epochs": 10, "train__learning_rate": 0.05, "partition": "iid"}
    state, ledger, _ = federate(tmp_path, strategy, **changes)
    assert [event for event in ledger.events if event.outcome != "ok"] == []
    last = [e.metrics["accuracy"] for e in ledger.of("evaluate") if e.round == 2]
    assert np.mean(last) > 0.5
    for parcel in parcels_of(state).values():
        assert {*parcel.array_records["model"]} == {"1.weight", "1.bias"}


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["derpp", "er-ace", "lwf", "oewc", "rehearsal"])
def test_learners_for_tasks_train_a_head(tmp_path, learner):
    changes = {**FROZEN, "learner": learner, "tasks": 2, "partition": "iid"}
    _, ledger, _ = federate(tmp_path, "fedavg", **changes)
    assert [event for event in ledger.events if event.outcome != "ok"] == []
    assert len(ledger.of("evaluate")) == 2 * HOSPITALS
