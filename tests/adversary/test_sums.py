"""Means, losses and splits that a server orders twice, so that a patient is the difference.

The attacker runs the server: it chooses models, seeds, fractions and classes.
"""

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict

from client_app.app import app
from client_app.authority.privacy_account import noise_for
from client_app.hospital import open_hospital
from client_app.release.disclosure import Disclosure
from learning.models import Architecture
from learning.sums import compute_sums, random_noise
from strategies.protocol.declared import LEAST_EPSILON
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.parcel import Manifest, pack
from strategies.protocol.records import to_record
from strategies.protocol.settings import Settings, SettingsError
from strategies.registry import strategy_of
from tests.fakes import context, deployment, run_config

SIDE = 4
PIXELS = SIDE * SIDE
POLICY = "runs.sealed-only = false\n"


pytestmark = pytest.mark.usefixtures("known_secret")


class Victim:
    """A hospital with random images, so many of each class; `rare` are those of the last one."""

    def __init__(self, folder, sizes, rare=None, *, real=True, policy="", **config):
        rng = np.random.default_rng(1)
        labels = np.repeat(np.arange(len(sizes), dtype=np.uint8), sizes)
        self.images = rng.integers(0, 256, (len(labels), SIDE, SIDE), dtype=np.uint8)
        if rare is not None:
            self.images[-len(rare) :] = rare
        self.classes = [str(label) for label in range(len(sizes))]
        folder.mkdir(exist_ok=True)
        parts = {"train": slice(-1), "test": slice(-1, None)}
        arrays = {f"x_{part}": self.images[chosen] for part, chosen in parts.items()}
        arrays |= {f"y_{part}": labels[chosen] for part, chosen in parts.items()}
        np.savez(folder / "a.npz", allow_pickle=False, **arrays)
        (folder / "policy.toml").write_text(POLICY + policy, "utf-8")
        self.config = run_config(
            **{
                "strategy": "rwt",
                "num_server_rounds": 1,
                "train__learning_rate": 1e-30,
                **config,
            }
        )
        node = {"dataset": f"npz:{folder}/a.npz", "store-dir": str(folder / "store")}
        node["site"] = "graz"
        self.place = deployment(self.config, **node, policy=folder / "policy.toml")
        if not real:
            self.place = context(0, 1, self.config, **node)

    def order(self, model, run="1", learner="plain", **config):
        """What comes of a visit, in a run with these settings."""
        self.place.run_config |= {key.replace("_", "-"): each for key, each in config.items()}
        order = Order(1, 1, "graz", self.classes, learner, run, epochs=1)
        content = RecordDict({**model, "order": to_record(order)})
        return app(Message(content, 100, "train", ttl=60.0), self.place)

    def split(self, **config):
        """Which images are trained on, and which are tested on."""
        self.place.run_config |= {key.replace("_", "-"): each for key, each in config.items()}
        data = open_hospital(self.place, classes=tuple(self.classes)).data
        train, test = data.train.rows, data.test.rows
        assert train is not None
        assert test is not None
        return frozenset(train.tolist()), frozenset(test.tolist())

    def model(self, architecture, **arrays):
        label = Manifest("mallory", architecture.to_json(), self.classes)
        named = {name: Array(np.asarray(array, "f4")) for name, array in arrays.items()}
        return pack({"model": ArrayRecord(named)}, label)


def prototypes(victim, run, **config):
    """Those of a model whose features are the pixels."""
    count = len(victim.classes)
    network = Architecture("rotation-mlp", 1, SIDE, SIDE, count, (PIXELS,))
    arrays = {"body.1.weight": np.eye(PIXELS), "body.1.bias": np.zeros(PIXELS)}
    arrays |= {"head.weight": np.eye(4 * count, PIXELS), "head.bias": np.zeros(4 * count)}
    answer = victim.order(victim.model(network, **arrays), run, "fedspace", **config)
    assert not answer.has_error(), answer.error
    sent = answer.content.array_records["memory"]
    return {name: array.numpy().astype("f8") for name, array in sent.items()}


def difference(victim):
    """What two splits that differ in an image of each class tell of these images [K, pixels]."""
    first = prototypes(victim, "1", test_fraction=0.04)
    second = prototypes(victim, "2", test_fraction=0.06)
    return (48 * first["means"] - 47 * second["means"]) * 255, first, second


SETTINGS = {"strategy": "fedspace", "model": "rotation-mlp", "mlp__hidden": str(PIXELS)}


def test_exact_prototypes_of_two_splits_give_an_image(tmp_path):
    """The attack is real: a simulation, which has one owner, still answers exactly."""
    victim = Victim(tmp_path, (50, 50), real=False, **SETTINGS)
    found, first, second = difference(victim)
    assert (first["counts"].tolist(), second["counts"].tolist()) == ([48, 48], [47, 47])
    ours = victim.images.reshape(-1, PIXELS)
    for image in found:
        assert np.abs(ours - image).max(axis=1).min() < 1


def test_two_splits_are_one_between_hospitals(tmp_path):
    victim = Victim(tmp_path, (50, 50), policy="figures.max-models = 100\n", **SETTINGS)
    found, first, second = difference(victim)
    assert first["counts"].tolist() == second["counts"].tolist() == [40, 40]
    assert np.array_equal(first["means"], second["means"])
    ours = victim.images.reshape(-1, PIXELS)
    for image in found:
        assert np.abs(ours - image).max(axis=1).min() > 30


def test_a_mean_hides_the_one_patient_whom_all_others_do_not_explain(tmp_path):
    """Whoever has the 39 others: 40 M minus their sum was the last image."""
    victim = Victim(tmp_path, (50, 50), policy="figures.max-models = 100\n", **SETTINGS)
    means = prototypes(victim, "1")["means"]
    data = open_hospital(victim.place, classes=("0", "1")).data.train
    images = data.images[data.labels == 0].flatten(1).double().numpy()
    left = 40 * 255 * means[0] - images[1:].sum(axis=0)
    assert np.abs(left - images[0]).mean() > 200


def visit_losses(victim, count=24):
    """What crafted models lose: each looks at one pixel, in images of the last class."""
    network = Architecture("mlp", 1, SIDE, SIDE, len(victim.classes))
    told = []
    for pixel in range(count):
        # Training leaves numbers as they are, but for zeros.
        weights, bias = (
            np.full((len(victim.classes), PIXELS), 1e-6),
            np.full(len(victim.classes), 1e-6),
        )
        weights[-1, pixel % PIXELS], bias[-1] = -50, -50 * (pixel // PIXELS) - 1e-6
        arrays = {"1.weight": weights, "1.bias": bias}
        answer = victim.order(victim.model(network, **arrays))
        told.append(answer.content["metrics"].get("train-loss"))
    return told


@pytest.mark.slow
def test_no_loss_is_about_a_class_of_two_patients(tmp_path, monkeypatch):
    """Whatever their images are, only the noise differs; in a simulation the loss does."""
    monkeypatch.setattr(Disclosure, "question", lambda _, model: model)  # the same noise
    rare = [np.full((2, SIDE, SIDE), grey, np.uint8) for grey in (0, 200)]
    sizes, longer = (150, 150, 2), {"num_server_rounds": 2}  # models of the last round are attacked
    for real in (True, False):
        first, second = (
            visit_losses(Victim(tmp_path / f"{real}{k}", sizes, images, real=real, **longer))
            for k, images in enumerate(rare)
        )
        assert None not in first
        assert (first == second) is real


@pytest.mark.slow
def test_losses_count_as_models_that_are_asked_about(tmp_path):
    victim = Victim(tmp_path, (250, 250), policy="figures.max-models = 3\n")
    told = visit_losses(victim, 5)
    assert [each is None for each in told] == [False, False, False, True, True]


CHOICES: list[dict[str, Any]] = [
    {"seed": 7},
    {"test_fraction": 0.1},
    {"test_fraction": 0.21, "seed": 3},
    {"test_balanced": True},
    {"test_per_class": "3"},
    {"partition": "dirichlet", "seed": 5},
    {"partition": "classes", "partition_classes": 3},
    {"image_size": 3},
]


def test_a_server_does_not_choose_who_is_tested_on(tmp_path):
    """In a simulation each of these gives other test images; between hospitals none does."""
    (tmp_path / "one").mkdir()
    for real in (True, False):
        splits = [
            Victim(tmp_path / "one", (50, 60, 70), real=real).split(**choice)
            for choice in [{}, *CHOICES]
        ]
        assert (len(set(splits)) == 1) is real
    victim = Victim(tmp_path / "one", (50, 60, 70))
    victim.classes = ["2", "0", "x", "1"]
    assert victim.split() == Victim(tmp_path / "one", (50, 60, 70)).split()


@pytest.mark.parametrize("part", ["validation", "folds"])
def test_nor_by_which_images_it_chooses_settings(part, tmp_path):
    """Validation and folds are parts of the training images, the same in all runs."""
    whole = Victim(tmp_path, (50, 60, 70)).split()
    asked = [{"validation_fraction": share, "seed": seed} for seed, share in enumerate((0.1, 0.3))]
    if part == "folds":
        asked = [{"num_folds": 5, "fold": 2, "seed": seed} for seed in (1, 2)]
    splits = {Victim(tmp_path, (50, 60, 70)).split(**each) for each in asked}
    ((train, tested),) = splits
    assert train | tested == whole[0]
    assert len(tested) == pytest.approx(len(whole[0]) / 5, abs=2)


def test_other_folds_than_those_of_the_hospital_are_refused(tmp_path):
    victim = Victim(tmp_path, (50, 60, 70))
    network = Architecture("mlp", 1, SIDE, SIDE, 3)
    model = victim.model(network, **{"1.weight": np.eye(3, PIXELS), "1.bias": np.zeros(3)})
    answer = victim.order(model, num_folds=7)
    assert answer.error.code == Failure.SETTINGS
    assert "'num-folds' is 7; it must be 0 or 5" in answer.error.reason


def test_whether_a_visit_is_refused_tells_of_no_image(tmp_path):
    """A model that is of no use for black images alone: in a simulation it is refused for these."""
    network = Architecture("mlp", 1, SIDE, SIDE, 2)
    refused = {}
    for real in (True, False):
        for grey in (0, 255):
            victim = Victim(
                tmp_path / f"{real}{grey}", (60, 60), np.full((120, 4, 4), grey, "u1"), real=real
            )
            arrays = {"1.weight": np.full((2, PIXELS), [[-1e4], [1e4]]), "1.bias": [8e4, -8e4]}
            answer = victim.order(victim.model(network, **arrays))
            refused[real, grey] = answer.error.code if answer.has_error() else None
    assert refused[True, 0] == refused[True, 255]


@pytest.mark.parametrize("delta", [1e-300, 1e-30, 1e-5])
def test_no_guarantee_is_so_strong_that_its_noise_is_a_constant(delta):
    """ε and δ of 1e-30 had one: all numbers of 64 bits were full."""
    epsilon = {"sums__ridge": 0.1, "sums__weights": "images", "sums__delta": delta}
    sent = run_config(strategy="sums", train__freeze="body", sums__epsilon=1e-30, **epsilon)
    with pytest.raises(SettingsError, match=r"'sums\.epsilon' is 1e-30; it must be 0, or 0\.001"):
        strategy_of(Settings.parse(sent))
    sums = compute_sums(torch.eye(8), torch.arange(8), 8)
    normal = np.random.default_rng(0).standard_normal
    noise = random_noise(sums, noise_for(LEAST_EPSILON, delta), normal)
    for numbers in vars(noise).values():
        assert len(numbers.unique()) == numbers.numel()


def icarl_means(victim):
    """The last layer of a model whose features are the pixels, after a visit with iCaRL [K, d]."""
    count = len(victim.classes)
    network = Architecture("mlp", 1, SIDE, SIDE, count, (PIXELS,))
    arrays = {"1.weight": np.eye(PIXELS), "1.bias": np.zeros(PIXELS)}
    arrays |= {"3.weight": np.eye(count, PIXELS), "3.bias": np.zeros(count)}
    answer = victim.order(victim.model(network, **arrays), learner="icarl")
    assert not answer.has_error(), answer.error
    return answer.content.array_records["model"]["3.weight"].numpy()


ICARL = {"learner": "icarl", "model": "mlp", "mlp__hidden": str(PIXELS)}


def test_the_mean_of_the_one_image_of_a_class_is_this_image(tmp_path):
    """The attack is real: a simulation, which has one owner, sends it."""
    victim = Victim(tmp_path, (50, 50, 1, 1), real=False, **ICARL)
    images = victim.images[-2:].reshape(2, -1).astype("f8")
    unit = images / np.linalg.norm(images, axis=1, keepdims=True)
    means = icarl_means(victim)[2:]
    sent = means.any(axis=1)  # the other image may be a test image
    assert sent.any()
    assert means[sent] == pytest.approx(unit[sent], abs=1e-5)


def test_no_mean_of_few_patients_leaves_a_hospital(tmp_path):
    """9 patients are too few for `sums.min-class-patients`, 10 are enough."""
    few = Victim(tmp_path, (60, 12, 11, 2), **ICARL)
    trained = open_hospital(few.place, classes=tuple(few.classes)).data.train
    assert trained.labels.bincount().tolist()[1:] == [10, 9, 2]
    means = icarl_means(few)
    assert np.linalg.norm(means[:2], axis=1) == pytest.approx(np.ones(2), abs=1e-5)
    assert not means[2:].any()
