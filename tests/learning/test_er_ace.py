"""ER-ACE at the hospital, beside its equation, and on a stream of two tasks."""

import math

import pytest
import torch
from torch import nn

from learning.learners.er_ace import ERACE
from learning.learners.plain import Received
from learning.samples import Samples
from tests.learning.test_cwc import OnePixel, white
from tests.learning.test_derpp import Recording, stream_of_two_tasks
from tests.learning.test_training import draws, learner_of


def one_pixel(classes):
    model = OnePixel()
    model.weight = nn.Parameter(torch.zeros(classes, 1))
    return model


def labelled(label):
    return Samples(white(1).images, torch.tensor([label]))


def test_one_step_by_hand():
    """Weights 0, pixels 1, four classes: 0 and 1 were seen, the batch has 2, nobody has seen 3.

    The batch: 0 and 1 are out, p = (½, ½) of 2 and 3: ln 2, and a gradient of (0, 0, −½, ½).
    A kept image of class 1: 3 is out, p = (⅓, ⅓, ⅓): ln 3, and (⅓, −⅔, ⅓, 0).
    """
    kept = {
        **{"images": white(1).images, "labels": torch.tensor([1]), "seen": torch.tensor(1)},
        "classes": torch.tensor([0, 1]),
    }
    model = one_pixel(4)
    learner = learner_of(ERACE, model, labelled(2), Received(rehearsal=kept))
    loss = learner.observe(labelled(2), draws())
    (gradient,) = torch.autograd.grad(loss, model.weight)
    assert loss.item() == pytest.approx(math.log(2) + math.log(3))
    assert gradient.flatten().tolist() == pytest.approx([1 / 3, -2 / 3, -1 / 6, 1 / 2])
    after = learner.rehearsal()
    assert after["classes"].tolist() == [0, 1, 2]
    assert after["labels"].tolist() == [1, 2]
    assert after["seen"].item() == 2


def test_a_first_batch_is_plain():
    """No class was seen before, and nothing is kept: p = (⅓, ⅓, ⅓)."""
    model = one_pixel(3)
    loss = learner_of(ERACE, model, labelled(0)).observe(labelled(0), draws())
    assert loss.item() == pytest.approx(math.log(3))


def test_batch_and_draw_are_two_passes():
    model = Recording()
    levels = torch.arange(20, dtype=torch.uint8).view(-1, 1, 1, 1)
    labels = torch.arange(20) % 2
    kept = {"images": levels, "labels": labels, "seen": torch.tensor(20), "classes": labels[:2]}
    learner = learner_of(
        *(ERACE, model, Samples(levels + 100, labels), Received(rehearsal=kept)),
        reservoir__batch_size=7,
    )
    learner.observe(learner.samples, draws())
    assert model.given[0] == list(range(100, 120))
    assert len(set(model.given[1])) == 7
    assert set(model.given[1]) <= set(range(20))


@pytest.mark.slow
def test_what_was_kept_in_the_first_task_helps_in_the_second():
    accuracy, received = stream_of_two_tasks("er-ace", reservoir__size=100)
    assert received.rehearsal["classes"].tolist() == [0, 1, 2, 3, 4]
    assert received.rehearsal["images"].shape == (100, 1, 8, 8)
    assert accuracy > 0.7
