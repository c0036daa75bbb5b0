"""LwF at the hospital, beside its equations."""

import math
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from learning.errors import ModelError
from learning.learners.lwf import LwF
from learning.learners.plain import Received
from learning.models import Architecture
from learning.samples import Samples
from learning.training import train
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import SettingsError
from tests.fakes import settings
from tests.learning.test_er_ace import labelled, one_pixel
from tests.learning.test_training import assert_same, data, draws, learner_of, network, visit

SGD = {"train__optimizer": "sgd", "train__learning_rate": 0.1, "train__batch_size": 20}


def after_first_task(task=1, **network):
    """What a hospital keeps that has had classes 0 and 1 in its first task."""
    labels, since = torch.tensor([0, 1]), torch.tensor([task, task])
    return {"task": torch.tensor(task), "classes": labels, "since": since, **network}


def test_one_step_by_hand():
    """Weights 0, pixels 1; 0 and 1 are of the first task, 2 is new, 3 is still to come.

    M_old says (2 ln 3, 0) of 0 and 1: at T = 2 p = (¾, ¼). M says q = (½, ½): − Σ p log q = ln 2,
    with a gradient of (q − p) / T = (−⅛, ⅛). ℓ is among 0, 1 and 2: ln 3, and (⅓, ⅓, −⅔).
    With α = 2 the sum is ln 3 + 2 ln 2, and (⅓ − ¼, ⅓ + ¼, −⅔, 0).
    """
    old = one_pixel(4)
    old.weight.data[0] = 2 * math.log(3)
    state = {f"network.{name}": each for name, each in old.state_dict().items()}
    kept = {
        **{"task": torch.tensor(2), "classes": torch.tensor([0, 1, 2])},
        **{"since": torch.tensor([1, 1, 2]), **state},
    }
    model, received = one_pixel(4), Received(rehearsal=kept, task=2)
    learner = learner_of(LwF, model, labelled(2), received, lwf__alpha=2.0)
    loss = learner.observe(labelled(2), draws())
    (gradient,) = torch.autograd.grad(loss, model.weight)
    assert loss.item() == pytest.approx(math.log(3) + 2 * math.log(2))
    assert gradient.flatten().tolist() == pytest.approx([1 / 12, 7 / 12, -2 / 3, 0])


def test_the_network_before_the_task_judges_images_as_they_are():
    """The left half of the image is white: mirrored, `OnePixel` would see 0."""
    images = torch.tensor([[[[255, 0]]]], dtype=torch.uint8).repeat(8, 1, 1, 1)
    samples = Samples(images, torch.full((8,), 2))
    received = Received(rehearsal=after_first_task(), task=2)
    learner = learner_of(LwF, one_pixel(3), samples, received, lwf__warm_up=0)
    learner.old.weight.data[0] = 2 * math.log(3)
    learner.model.weight.data[0] = 2 * math.log(3)
    loss = learner.observe(samples, draws(augment="flip"))
    flipped = draws(augment="flip").view(images)[:, 0, 0, 0] == 0
    assert 0 < flipped.sum() < 8
    # q is p where the image is not mirrored, and (½, ½) where it is.
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    distilled = torch.where(flipped, math.log(2), entropy).mean()
    logits = torch.where(flipped, 0.0, 2 * math.log(3))
    expected = (2 + logits.exp()).log().mean() + learner.own.alpha * distilled
    assert loss.item() == pytest.approx(expected.item())


def second_task(name="mlp"):
    """A network of four classes, and images of the classes 2 and 3."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Architecture(name, 1, 8, 8, 4, (16,)).build()
    return model, Samples(data().images, 2 + torch.arange(20) % 2)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_the_warm_up_trains_the_outputs_of_new_classes_alone(name):
    """One step of SGD (η = 0.1) on the cross-entropy between 2 and 3; all else is as it came."""
    model, samples = second_task(name)
    model.eval()
    outputs = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    loss = functional.cross_entropy(model(samples.images)[:, 2:], samples.labels - 2)
    gradients = torch.autograd.grad(loss, list(outputs.parameters()))
    expected = [w.detach() - 0.1 * g for w, g in zip(outputs.parameters(), gradients, strict=True)]
    before = {key: each.clone() for key, each in model.state_dict().items()}
    received = Received(rehearsal=after_first_task(), task=2)
    learner = learner_of(LwF, model, samples, received, **SGD)
    rng, deadline = np.random.default_rng(0), time.monotonic() + 60
    told: list[int] = []
    train(learner, settings(**SGD).train, 0, rng, deadline, told.append)
    assert told == []  # no epoch of the visit's own
    for weight, wanted, key in zip(outputs.parameters(), expected, list(before)[-2:], strict=True):
        torch.testing.assert_close(weight.detach(), wanted)
        assert torch.equal(weight[:2], before[key][:2])
        assert not torch.equal(weight[2:], before[key][2:])
    assert_same(dict(list(before.items())[:-2]), model.state_dict())


def test_an_optimizer_s_state_does_not_travel_into_a_warm_up():
    """It would move the outputs of earlier classes, which have no gradient."""
    travels = {"tasks": 2, "num_server_rounds": 2, "train__optimizer_state": "travels"}
    with pytest.raises(SettingsError, match=r"'train\.optimizer-state' is 'travels'; .*warm-up"):
        LwF.check_suited(network(), settings(**travels))
    LwF.check_suited(network(), settings(lwf__warm_up=0, **travels))


@pytest.mark.parametrize("first", [1, 3])  # a hospital may have an order of tasks of its own
def test_later_visits_keep_to_the_same_network_and_do_not_warm_up(first):
    model, samples = second_task()
    came = {key: each.clone() for key, each in model.state_dict().items()}
    received, warm_ups = Received(rehearsal=after_first_task(first), task=2), []
    for _ in range(2):
        learner = learner_of(LwF, model, samples, received, lwf__warm_up=3, **SGD)
        rng = np.random.default_rng(0)
        train(learner, settings(**SGD).train, 1, rng, time.monotonic() + 60)
        warm_ups.append(learner.warm_up)
        received = Received(rehearsal=learner.rehearsal(), task=2)
        assert_same(came, {k[8:]: v for k, v in received.rehearsal.items() if "network." in k})
    assert warm_ups == [3, 0]
    assert received.rehearsal["classes"].tolist() == [0, 1, 2, 3]
    assert received.rehearsal["since"].tolist() == [first, first, 2, 2]


def test_a_first_task_is_plain_and_keeps_no_network():
    plain, _ = visit("plain")
    model = network()
    alone, _ = visit("lwf", model, received=Received(task=1))
    assert_same(plain, alone)
    learner = learner_of(LwF, model, received=Received(task=1))
    assert {*learner.rehearsal()} == {"task", "classes", "since"}


def test_what_does_not_fit_is_refused():
    for key in ("alpha", "warm_up"):
        with pytest.raises(SettingsError, match=r"'lwf\..*' is -1"):
            LwF.read_settings(settings(**{f"lwf__{key}": -1}))
    kept = {**after_first_task(**{"network.spare": torch.ones(3)}), "task": torch.tensor(2)}
    with pytest.raises(ParcelError, match=r"keeps to lacks '1\.bias'"):
        learner_of(LwF, network(), received=Received(rehearsal=kept, task=2))
    received = Received(rehearsal=after_first_task(), task=2)
    with pytest.raises(ModelError, match="does not end in a linear layer"):
        learner_of(LwF, one_pixel(3), labelled(2), received)
