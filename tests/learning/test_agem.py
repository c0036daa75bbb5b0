"""A-GEM and FDR at the hospital, beside their equations, and on a stream of two tasks."""

import math

import pytest
import torch

from learning.learners import LEARNERS
from learning.learners.agem import AGEM
from learning.learners.fdr import FDR
from learning.learners.plain import Received
from learning.samples import Samples
from strategies.protocol.settings import SettingsError
from tests.fakes import settings
from tests.learning.test_cwc import OnePixel, white
from tests.learning.test_derpp import stream_of_two_tasks
from tests.learning.test_training import data, draws, learner_of, network

STREAM = {"tasks": 2, "num_server_rounds": 2}


def kept(labels, **more):
    count = len(labels)
    fields = {"values": white(count).images, "labels": torch.tensor(labels)}
    return {**fields, "tasks": torch.ones(count, dtype=torch.int64), **more}


@pytest.mark.parametrize(("label", "gradient"), [(1, [0.0, 0.0]), (0, [-0.5, 0.5])])
def test_a_gem_takes_off_what_would_increase_the_loss_of_kept_images(label, gradient):
    """Weights 0, pixels 1, label 0: g = (−½, ½). A kept image of label 1 has g_ref = −g.

    gᵀ g_ref = −½ and g_refᵀ g_ref = ½: g + g_ref = 0. One of label 0 has g_ref = g, and g stays.
    """
    model = OnePixel()
    received = Received(rehearsal=kept([label]), task=2)
    learner = learner_of(AGEM, model, white(1), received, **STREAM)
    learner.observe(white(1), draws()).backward()
    learner.before_step()
    assert model.weight.grad is not None
    assert model.weight.grad.flatten().tolist() == pytest.approx(gradient)


def test_fdr_by_hand():
    """Weights 0: p = (½, ½). For p* = (1, 0) and (½, ½) of two images: (½ · (¼ + ¼ + 0))^½ = ½."""
    predictions = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    received = Received(rehearsal=kept([0, 1], predictions=predictions), task=2)
    learner = learner_of(FDR, OnePixel(), white(1), received, fdr__alpha=3.0, **STREAM)
    loss = learner.observe(white(1), draws()).item()
    assert loss == pytest.approx(math.log(2) + 3 * 0.5)
    after = learner.rehearsal()
    assert after["predictions"].tolist() == [[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]]
    assert after["tasks"].tolist() == [1, 1, 2]


def test_fdr_has_a_gradient_where_nothing_has_changed():
    predictions = torch.tensor([[0.5, 0.5]])
    received = Received(rehearsal=kept([0], predictions=predictions), task=2)
    model = OnePixel()
    learner = learner_of(FDR, model, white(1), received, **STREAM)
    learner.observe(white(1), draws()).backward()
    assert model.weight.grad is not None
    assert model.weight.grad.flatten().tolist() == pytest.approx([-0.5, 0.5])


@pytest.mark.parametrize("name", ["agem", "fdr"])
def test_each_task_has_its_share_of_the_kept_images(name):
    """500 of two tasks are 250 each; of 10 images all are kept, and of none nothing."""
    many = Samples(white(300).images, torch.zeros(300, dtype=torch.int64))
    rehearsal = learner_of(LEARNERS[name], OnePixel(), many, Received(task=1), **STREAM).rehearsal()
    assert len(rehearsal["labels"]) == 250
    found = Received(rehearsal=rehearsal, task=2)
    second = learner_of(LEARNERS[name], OnePixel(), white(10), found, **STREAM)
    assert second.rehearsal()["tasks"].bincount().tolist() == [0, 250, 10]
    nothing = learner_of(LEARNERS[name], OnePixel(), many, reservoir__size=0, **STREAM)
    assert nothing.rehearsal() == {}


@pytest.mark.parametrize("name", ["agem", "fdr"])
def test_no_more_images_are_kept_than_the_reservoir_has(name):
    """20 of three tasks are 6 each, and not 7."""
    rehearsal: dict[str, torch.Tensor] = {}
    for task in (1, 2, 3):
        received = Received(rehearsal=rehearsal, task=task)
        changes = {"tasks": 3, "num_server_rounds": 3, "reservoir__size": 20}
        learner = learner_of(LEARNERS[name], OnePixel(), white(10), received, **changes)
        rehearsal = dict(learner.rehearsal())
    assert rehearsal["tasks"].bincount().tolist() == [0, 6, 6, 6]


@pytest.mark.parametrize("name", ["agem", "fdr"])
def test_a_reservoir_has_two_images_of_each_task_or_none(name):
    """BatchNorm trains on two: a visit in the second task is possible."""
    for size in (0, 2, 4):
        chosen = {"reservoir__size": size, **STREAM}
        if size == 2:
            with pytest.raises(SettingsError, match=r"'reservoir\.size' is 2; .* 0, or 4 or more"):
                LEARNERS[name].check_suited(network("cnn"), settings(**chosen))
            continue
        LEARNERS[name].check_suited(network("cnn"), settings(**chosen))
        rehearsal: dict[str, torch.Tensor] = {}
        for task in (1, 2):
            received = Received(rehearsal=rehearsal, task=task)
            learner = learner_of(LEARNERS[name], network("cnn"), data(2), received, **chosen)
            learner.begin_epoch(1)
            learner.observe(data(2), draws()).backward()
            learner.before_step()
            rehearsal = learner.rehearsal()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("agem", 0.0), ("fdr", 0.3), ("icarl", 0.5)])
def test_what_was_kept_in_the_first_task_helps_in_the_second(name, least):
    more = {"fdr__alpha": 3.0}
    accuracy, _ = stream_of_two_tasks(name, reservoir__size=100, **more, **STREAM)
    plain, _ = stream_of_two_tasks("plain")
    assert accuracy >= plain + least
