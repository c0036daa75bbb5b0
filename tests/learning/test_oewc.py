"""Online EWC at the hospital, beside its equations."""

import pytest
import torch

from learning.learners.oewc import OnlineEWC
from learning.learners.plain import Received
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import SettingsError
from tests.fakes import settings
from tests.learning.test_cwc import OnePixel, white
from tests.learning.test_training import assert_same, draws, learner_of, network, visit


def oewc(kept=None, task=1, model=None, **overrides):
    received = Received(rehearsal=kept or {}, task=task)
    return learner_of(OnlineEWC, model or OnePixel(), white(4), received, **overrides)


def pulled(learner, *values):
    """The gradient that a step is given at some weights, less that of the cross-entropy."""
    learner.model.weight.data = torch.tensor(values)[:, None]
    loss = learner.observe(white(4), draws())
    (own,) = torch.autograd.grad(loss, learner.model.weight)
    loss = learner.observe(white(4), draws())
    loss.backward()
    learner.before_step()
    assert learner.model.spare.grad is None  # the loss does not use it
    return (learner.model.weight.grad - own).flatten().tolist()


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2)])
def test_three_tasks_by_hand(order):
    """At weights 0 p = (½, ½): ∂ log p(y|x)/∂w_k is ±½ whichever y is drawn, so F_1 = (¼, ¼).

    In the second task, with λ = 2: 2 λ F_1 (w − 0) = w. At weights 0 again F_2 = (¼, ¼), and with
    γ = ½ the third has F* = F_2 + γ F_1 = (⅜, ⅜) and pulls with 2 λ F* w = 1.5 w.
    """
    chosen = {"oewc__strength": 2.0, "oewc__decay": 0.5}
    first = oewc(task=order[0], **chosen)
    assert pulled(first, 0.1, -0.2) == pytest.approx([0, 0])
    first.model.weight.data.zero_()
    kept = first.rehearsal()
    second = oewc(kept, task=order[1], **chosen)
    assert pulled(second, 0.1, -0.2) == pytest.approx([0.1, -0.2])
    second.model.weight.data.zero_()
    third = oewc(second.rehearsal(), task=order[2], **chosen)
    assert pulled(third, 0.1, -0.2) == pytest.approx([0.15, -0.3])


def test_the_pull_is_towards_the_weights_after_the_task_before():
    first = oewc(oewc__strength=2.0)
    pulled(first, 0.3, 0.3)  # p is (½, ½) there, too
    second = oewc(first.rehearsal(), task=2, oewc__strength=2.0)
    assert pulled(second, 0.4, 0.1) == pytest.approx([0.1, -0.2])


def test_a_later_visit_of_a_task_replaces_what_the_one_before_prepared():
    """However many visits a task has, F_t counts once, and a task's pull stays the same."""
    kept: dict[str, torch.Tensor] = {}
    for _ in range(3):
        learner = oewc(kept, task=1)
        assert pulled(learner, 0.0, 0.0) == pytest.approx([0, 0])
        kept = learner.rehearsal()
    for _ in range(2):
        learner = oewc(kept, task=2, oewc__strength=2.0)
        assert pulled(learner, 0.1, -0.2) == pytest.approx([0.1, -0.2])
        learner.model.weight.data.zero_()
        kept = learner.rehearsal()
    assert kept["next-fisher.weight"].flatten().tolist() == pytest.approx([0.5, 0.5])
    assert kept["next-fisher.spare"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_without_strength_or_an_earlier_task_a_visit_is_plain_bit_for_bit(optimizer):
    chosen = {"train__optimizer": optimizer}
    plain, _ = visit("plain", **chosen)
    first, _ = visit("oewc", received=Received(task=1), **chosen)
    assert_same(plain, first)
    learner = learner_of(OnlineEWC, network(), received=Received(task=1))
    received = Received(rehearsal=learner.rehearsal(), task=2)
    weak, _ = visit("oewc", received=received, oewc__strength=0.0, **chosen)
    assert_same(plain, weak)
    strong, _ = visit("oewc", received=received, **chosen)
    assert not torch.equal(plain["1.weight"], strong["1.weight"])


def test_what_a_hospital_prepares_is_the_same_after_a_resume():
    model = network()
    both = [learner_of(OnlineEWC, model, received=Received(task=1)).rehearsal() for _ in range(2)]
    assert_same(*both)


def test_what_does_not_fit_is_refused():
    for key, wrong in (("strength", -1.0), ("decay", 1.5)):
        with pytest.raises(SettingsError, match=rf"'oewc\.{key}' is {wrong}"):
            OnlineEWC.read_settings(settings(**{f"oewc__{key}": wrong}))
    kept = learner_of(OnlineEWC, network(), received=Received(task=1)).rehearsal()
    with pytest.raises(ParcelError, match="memory of earlier tasks"):
        oewc(kept, task=2)
