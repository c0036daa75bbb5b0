"""DER++ at the hospital, beside its equation, and on a stream of two tasks."""

import math
import time
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from learning.evaluation import probabilities, score
from learning.learners import LEARNERS
from learning.learners.derpp import DER, DERpp
from learning.learners.plain import Received
from learning.models import Architecture
from learning.samples import Samples
from learning.training import train
from strategies.protocol.settings import SettingsError
from tests.fakes import settings
from tests.learning.test_cwc import OnePixel, white
from tests.learning.test_training import assert_same, data, draws, learner_of, network, visit

WEIGHTS = {"derpp__alpha": 0.5, "derpp__beta": 0.25}


def kept(images, labels, logits):
    """What the hospital has kept, all that came by."""
    seen = torch.tensor(len(labels))
    return {"images": images, "labels": labels, "logits": logits, "seen": seen}


@pytest.mark.parametrize(
    "key", ["derpp.alpha", "derpp.beta", "reservoir.size", "reservoir.batch-size"]
)
def test_settings_are_checked(key):
    with pytest.raises(SettingsError, match=f"'{key}' is -1"):
        DERpp.read_settings(settings(**{key.replace(".", "__").replace("-", "_"): -1}))


def test_one_step_by_hand():
    """Weights 0, pixels 1: all logits are 0 and p = (½, ½). Kept: label 1, logits (1, −1).

    ℓ = ln 2 for both, MSE = ((0 − 1)² + (0 + 1)²) / 2 = 1: the loss is (1 + β) ln 2 + α.
    Gradients: ℓ(batch, label 0) (−½, ½); MSE 2 (z − z') / 2 = (−1, 1); ℓ(draw, label 1) (½, −½):
    with α = 0.5 and β = 0.25 their sum is (−0.5 − 0.5 + 0.125, 0.5 + 0.5 − 0.125).
    """
    model = OnePixel()
    before = kept(white(1).images, torch.tensor([1]), torch.tensor([[1.0, -1.0]]))
    learner = learner_of(DERpp, model, white(1), Received(rehearsal=before), **WEIGHTS)
    loss = learner.observe(white(1), draws())
    (gradient,) = torch.autograd.grad(loss, model.weight)
    assert loss.item() == pytest.approx(1.25 * math.log(2) + 0.5)
    assert gradient.flatten().tolist() == pytest.approx([-0.875, 0.875])
    after = learner.rehearsal()
    assert after["labels"].tolist() == [1, 0]
    assert after["logits"].tolist() == [[1.0, -1.0], [0.0, 0.0]]
    assert after["seen"].item() == 2


@pytest.mark.parametrize(("name", "loss"), [("derpp", 1.25), ("der", 1.0)])
@pytest.mark.parametrize("one_pass", [False, True])
def test_der_is_without_the_labels_and_both_may_be_one_pass(name, loss, one_pass):
    """The step above: (1 + β) ln 2 + α, and ln 2 + α without β. Nothing here mixes images."""
    before = kept(white(1).images, torch.tensor([1]), torch.tensor([[1.0, -1.0]]))
    received = Received(rehearsal=before)
    chosen = {**WEIGHTS, "derpp__one_pass": one_pass}
    learner = learner_of(LEARNERS[name], OnePixel(), white(1), received, **chosen)
    found = learner.observe(white(1), draws()).item()
    assert found == pytest.approx(loss * math.log(2) + 0.5)
    assert learner.rehearsal()["labels"].tolist() == [1, 0]


class Recording(nn.Module):
    """Notes the first pixel of all images of each forward pass."""

    def __init__(self):
        super().__init__()
        self.given = []

    def forward(self, images):
        self.given.append(images[:, 0, 0, 0].tolist())
        return torch.zeros(len(images), 2)


def test_batch_and_draws_are_three_passes_and_the_draws_are_independent():
    """Each of 20 images once a draw: the order of the two is the same by chance in 1 of 20!."""
    model = Recording()
    levels = torch.arange(20, dtype=torch.uint8).view(-1, 1, 1, 1)
    labels = torch.zeros(20, dtype=torch.int64)
    received = Received(rehearsal=kept(levels, labels, torch.zeros(20, 2)))
    batch = Samples(levels + 100, labels)
    learner_of(DERpp, model, batch, received).observe(batch, draws())
    new, first, second = model.given
    assert new == list(range(100, 120))
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    learner_of(DERpp, model, batch, received, reservoir__batch_size=7).observe(batch, draws())
    assert [len(given) for given in model.given[3:]] == [20, 7, 7]
    chosen = {"reservoir__batch_size": 7, "derpp__one_pass": True}
    learner_of(DERpp, model, batch, received, **chosen).observe(batch, draws())
    learner_of(DER, model, batch, received, reservoir__batch_size=7).observe(batch, draws())
    assert [len(given) for given in model.given[6:]] == [27, 20, 7]
    assert model.given[6][:20] == new


@pytest.mark.parametrize("name", ["derpp", "der", "er", "er-ace"])
def test_without_a_reservoir_they_are_plain_bit_for_bit(name):
    chosen = {"train__augment": "flip", "train__batch_size": 8}
    plain, _ = visit("plain", **chosen)
    other, _ = visit(name, **chosen, reservoir__size=0)
    assert_same(plain, other)


def test_er_by_hand():
    """Weights 0, pixels 1: ln 2 each. The mean gradient of labels 0, 0 and 1: (−1/6, 1/6)."""
    model = OnePixel()
    received = Received(rehearsal=kept(white(1).images, torch.tensor([1]), torch.zeros(1, 2)))
    fields = {k: each for k, each in received.rehearsal.items() if k != "logits"}
    learner = learner_of(LEARNERS["er"], model, white(2), Received(rehearsal=fields))
    loss = learner.observe(white(2), draws())
    (gradient,) = torch.autograd.grad(loss, model.weight)
    assert loss.item() == pytest.approx(math.log(2))
    assert gradient.flatten().tolist() == pytest.approx([-1 / 6, 1 / 6])
    assert learner.rehearsal()["labels"].tolist() == [1, 0, 0]


def test_without_weights_a_first_step_is_plain_and_images_are_kept_as_they_are():
    """No draw comes before the images of the only batch are flipped."""
    overrides = {"train__batch_size": 20, "train__augment": "flip"}
    plain, _ = visit("plain", epochs=1, **overrides)
    model = network()
    learner = learner_of(DERpp, model, **overrides)
    rng, deadline = np.random.default_rng(0), time.monotonic() + 60
    train(learner, settings(**overrides).train, 1, rng, deadline)
    assert_same(plain, model.state_dict())
    images = learner.rehearsal()["images"].flatten(1).tolist()
    assert sorted(images) == sorted(data().images.flatten(1).tolist())


def digits(classes: range) -> Samples:
    images, labels = load_digits(return_X_y=True)
    some = np.isin(labels, classes)
    pixels = torch.from_numpy((images[some] * 15.9).astype(np.uint8)).view(-1, 1, 8, 8)
    return Samples(pixels, torch.from_numpy(labels[some]).long())


def stream_of_two_tasks(name: str, **overrides: Any) -> tuple[float, Received]:
    """Digits 0 to 4, then 5 to 9, a visit each.

    Returns:
        The accuracy on the first task after the second, and what the second visit found.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Architecture("mlp", 1, 8, 8, 10, (64,)).build()
    chosen = settings(**{"train__learning_rate": 0.01, **overrides})
    received = Received()
    for task, classes in enumerate((range(5), range(5, 10)), start=1):
        found = Received(memory=received.memory, rehearsal=received.rehearsal, task=task)
        learner = LEARNERS[name](model, digits(classes), chosen, found)
        rng = np.random.default_rng(task)
        train(learner, chosen.train, 5, rng, time.monotonic() + 60)
        received = Received(memory=learner.memory(rng), rehearsal=learner.rehearsal())
    first = digits(range(5))
    judged = score(probabilities(model, first.images, time.monotonic() + 60), first.labels)
    return judged["accuracy"], found


@pytest.mark.slow
def test_what_was_kept_in_the_first_task_is_received_in_the_second_and_helps():
    plain, without = stream_of_two_tasks("plain")
    rehearsed, received = stream_of_two_tasks("derpp", **WEIGHTS, reservoir__size=100)
    assert without.rehearsal == {}
    assert received.rehearsal["images"].shape == (100, 1, 8, 8)
    assert received.rehearsal["logits"].shape == (100, 10)
    assert received.rehearsal["labels"].max() < 5
    assert received.rehearsal["seen"].item() == 5 * len(digits(range(5)))
    assert plain < 0.3
    assert rehearsed > plain + 0.4
