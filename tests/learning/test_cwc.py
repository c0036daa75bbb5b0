"""CWC at the hospital, beside its equations (strategies/cwc.py)."""

import time

import numpy as np
import pytest
import torch
from torch import nn

from learning.learners.cwc import CWC
from learning.learners.plain import Received
from learning.samples import Samples
from learning.training import train
from strategies.protocol.records import UselessError
from tests.fakes import settings
from tests.learning.test_training import assert_same, learner_of, network, visit


def two_weights(*values):
    model = nn.Linear(2, 1, bias=False)
    model.weight.data = torch.tensor([values])
    return model


def matrix(*entries):
    return {"weight": torch.tensor([entries])}


def cwc(model=None, memory=None, new_rounds=0, **overrides):
    """A learner of two weights, (1, 2), unless another model is given."""
    received = Received(memory=memory or {}, new_rounds=new_rounds)
    return learner_of(CWC, model or two_weights(1.0, 2.0), received=received, **overrides)


def step(learner, gradient, change):
    """One step of an optimizer: a gradient of the task, and what the weights change by.

    Returns:
        The gradient that the optimizer was given.
    """
    weight = learner.model.weight
    weight.grad = torch.tensor([gradient])
    learner.before_step()
    given = weight.grad.tolist()[0]
    weight.data += torch.tensor([change])
    learner.after_step()
    return given


def remembered(learner):
    return learner.memory(np.random.default_rng(0))["weight"].tolist()[0]


@pytest.fixture(params=[0.0, 1.0])
def strength(request):
    return request.param


def test_synaptic_intelligence_by_hand(strength):
    """Two steps of two weights; the penalty has no part in ω.

    First weight: gradients 1 and 0.5, steps −0.5 and −0.5: ω = −(1·−0.5 + 0.5·−0.5) = 0.75, Δ = −1.
    Second: gradients −2 and 1, steps 0.5 and 0.5: ω = −(−2·0.5 + 1·0.5) = 0.5, Δ = 1.
    With ξ = 0.5: Ω = 0.75 / 1.5 and 0.5 / 1.5, on top of C = (3, 0).
    """
    learner = cwc(memory=matrix(3.0, 0.0), cwc__damping=0.5, cwc__strength=strength)
    step(learner, (1.0, -2.0), (-0.5, 0.5))
    step(learner, (0.5, 1.0), (-0.5, 0.5))
    assert remembered(learner) == pytest.approx([3 + 0.5, 0 + 1 / 3])


def test_what_raised_the_loss_was_not_important():
    """Gradient 1 and step 0.5: ω = −0.5, clipped at 0."""
    learner = cwc()
    step(learner, (1.0, 1.0), (0.5, -0.5))
    assert remembered(learner) == pytest.approx([0.0, 0.5 / (0.25 + 0.001)])


def test_the_penalty_pulls_towards_the_weights_as_received():
    """Gradient of σ C (w − w̃)² with σ = 2, C = (3, 0), w − w̃ = (−0.5, 0.5): 2·2·3·−0.5 = −6, 0."""
    learner = cwc(memory=matrix(3.0, 0.0), cwc__strength=2.0)
    assert step(learner, (1.0, 1.0), (-0.5, 0.5)) == [1.0, 1.0]
    assert step(learner, (1.0, 1.0), (0.0, 0.0)) == [1.0 - 6.0, 1.0]


@pytest.mark.parametrize(
    ("decay", "new_rounds", "kept"),
    [(0.5, 0, 1.0), (0.5, 1, 0.5), (0.5, 2, 0.25), (0.0, 0, 1.0), (0.0, 1, 0.0), (1.0, 1, 1.0)],
)
def test_the_matrix_decays_at_the_start_of_a_round_alone(decay, new_rounds, kept):
    learner = cwc(memory=matrix(3.0, 0.0), new_rounds=new_rounds, cwc__decay=decay)
    assert remembered(learner) == [3.0 * kept, 0.0]


def test_the_first_visit_begins_without_a_matrix():
    assert remembered(cwc()) == [0.0, 0.0]


def test_negative_entries_are_refused():
    with pytest.raises(UselessError, match="negative"):
        cwc(memory=matrix(1.0, -1.0))


class OnePixel(nn.Module):
    """Two classes, told apart by the first pixel; one parameter is not used."""

    def __init__(self):
        super().__init__()
        self.spare = nn.Parameter(torch.ones(3))
        self.weight = nn.Parameter(torch.zeros(2, 1))

    def forward(self, images):
        return images[:, 0, :1, 0] / 255 @ self.weight.T


def white(count):
    """White images of class 0: the pixel of each is 1."""
    images = torch.full((count, 1, 2, 2), 255, dtype=torch.uint8)
    return Samples(images, torch.zeros(count, dtype=torch.int64))


def consolidated(importance, strength=0.1):
    """C after one step of SGD (η = 0.1, ξ = 0.0025) from weights 0 and C = (3, 0), spare 7."""
    model = OnePixel()
    memory = {"spare": torch.full((3,), 7.0), "weight": torch.tensor([[3.0], [0.0]])}
    overrides = {
        "cwc__importance": importance,
        "cwc__strength": strength,
        "cwc__damping": 0.0025,
        "train__optimizer": "sgd",
        "train__learning_rate": 0.1,
        "train__weight_decay": 0.0,
    }
    learner = learner_of(CWC, model, white(4), Received(memory=memory), **overrides)
    rng = np.random.default_rng(0)
    train(learner, settings(**overrides).train, 1, rng, time.monotonic() + 60)
    return model, learner.memory(rng)


def test_synthetic_intelligence_of_a_visit_by_hand():
    """At weights 0 p = (½, ½), so g = p − (1, 0) = (−½, ½); Δ = −η g = (0.05, −0.05).

    ω = −g Δ = (0.025, 0.025) and Ω = 0.025 / (0.05² + 0.0025) = 5 for both, on top of (3, 0).
    """
    model, memory = consolidated("si")
    torch.testing.assert_close(model.weight.flatten().tolist(), [0.05, -0.05])
    torch.testing.assert_close(memory["weight"].flatten().tolist(), [8.0, 5.0])


def test_fisher_information_of_a_visit_by_hand():
    """∂ log p(y|x)/∂w is (1 − p, p − 1) for y = 0 and (−p, p) for y = 1, with p = p(0|x).

    After the step p = 1 / (1 + e^−0.1). As often as y = 0 is drawn, (1 − p)² counts, else p².
    """
    _, memory = consolidated("ewc")
    p = 1 / (1 + np.exp(-0.1))
    possible = [(k * (1 - p) ** 2 + (4 - k) * p**2) / 4 for k in range(5)]  # of 4 images
    fisher = memory["weight"].flatten() - torch.tensor([3.0, 0.0])
    assert fisher[0].item() == pytest.approx(fisher[1].item(), rel=1e-4)
    assert any(fisher[1].item() == pytest.approx(value, rel=1e-4) for value in possible)


@pytest.mark.parametrize("importance", ["si", "ewc"])
def test_a_parameter_that_the_loss_does_not_use_shifts_nothing(importance):
    """It comes before the one that is used: its entries must stay its own, and it moves nowhere."""
    model, memory = consolidated(importance, strength=1000.0)
    assert model.spare.tolist() == [1.0] * 3
    assert memory["spare"].tolist() == [7.0] * 3
    assert memory["weight"][0, 0] > 3


def test_fisher_information_by_hand():
    """One white pixel, weights 0: p = (½, ½), so ∂ log p(y|x)/∂w_k = ±½ whichever y is drawn."""
    learner = learner_of(CWC, OnePixel(), white(4), cwc__importance="ewc")
    fisher = learner.memory(np.random.default_rng(0))["weight"]
    assert fisher.flatten().tolist() == pytest.approx([0.25, 0.25])


@pytest.mark.parametrize("importance", ["si", "ewc"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_without_strength_a_visit_is_plain_bit_for_bit(name, optimizer, importance):
    model = network(name)
    memory = {key: torch.rand_like(weight) for key, weight in model.named_parameters()}
    overrides = {"train__optimizer": optimizer, "cwc__importance": importance}
    plain, _ = visit("plain", network(name), **overrides)
    cwc, _ = visit("cwc", model, received=Received(memory=memory), cwc__strength=0.0, **overrides)
    assert_same(plain, cwc)


def test_what_is_important_moves_less():
    """A matrix that names the first layer alone holds that one, and lets the others go."""
    start = network().state_dict()

    def moved(entries):
        model = network()
        memory = {
            name: torch.full_like(weight, entries if name.startswith("1.") else 0.0)
            for name, weight in model.named_parameters()
        }
        end, _ = visit("cwc", model, 5, received=Received(memory=memory))
        return [(end[name] - start[name]).norm().item() for name in ("1.weight", "3.weight")]

    held, free = moved(100.0), moved(0.0)
    assert held[0] < 0.2 * free[0]
    assert held[1] > 0.8 * free[1]


@pytest.mark.parametrize("importance", ["si", "ewc"])
def test_the_matrix_has_an_entry_for_each_parameter_and_none_is_negative(importance):
    """After steps that have moved the weights: before them all would be 0."""
    model = network("cnn")
    learner = learner_of(CWC, model, cwc__importance=importance)
    rng = np.random.default_rng(0)
    train(learner, settings().train, 2, rng, time.monotonic() + 60)
    memory = learner.memory(rng)
    assert {name: entries.shape for name, entries in memory.items()} == {
        name: weight.shape for name, weight in model.named_parameters()
    }
    assert all((entries >= 0).all() for entries in memory.values())
    assert all((memory[name] > 0).any() for name in ("0.weight", "14.weight"))
