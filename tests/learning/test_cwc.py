"""CWC at the hospital, beside its equations (strategies/cwc.py)."""

import numpy as np
import pytest
import torch
from torch import nn

from learning.learners.cwc import CWC
from learning.learners.plain import NOTHING, Received
from strategies.protocol.records import ParcelError
from tests.learning.test_training import assert_same, hospital, network, visit


def two_weights(*values):
    model = nn.Linear(2, 1, bias=False)
    model.weight.data = torch.tensor([values])
    return model


def matrix(*entries):
    return {"weight": torch.tensor([entries])}


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
    where = hospital(cwc__damping=0.5, cwc__strength=strength)
    learner = CWC(two_weights(1.0, 2.0), where, Received(memory=matrix(3.0, 0.0)))
    step(learner, (1.0, -2.0), (-0.5, 0.5))
    step(learner, (0.5, 1.0), (-0.5, 0.5))
    assert remembered(learner) == pytest.approx([3 + 0.5, 0 + 1 / 3])


def test_what_raised_the_loss_was_not_important():
    """Gradient 1 and step 0.5: ω = −0.5, clipped at 0."""
    learner = CWC(two_weights(1.0, 2.0), hospital())
    step(learner, (1.0, 1.0), (0.5, -0.5))
    assert remembered(learner) == pytest.approx([0.0, 0.5 / (0.25 + 0.001)])


def test_the_penalty_pulls_towards_the_weights_as_received():
    """Gradient of σ C (w − w̃)² with σ = 2, C = (3, 0), w − w̃ = (−0.5, 0.5): 2·2·3·−0.5 = −6, 0."""
    where = hospital(cwc__strength=2.0)
    learner = CWC(two_weights(1.0, 2.0), where, Received(memory=matrix(3.0, 0.0)))
    assert step(learner, (1.0, 1.0), (-0.5, 0.5)) == [1.0, 1.0]
    assert step(learner, (1.0, 1.0), (0.0, 0.0)) == [1.0 - 6.0, 1.0]


@pytest.mark.parametrize(
    ("decay", "new_rounds", "kept"),
    [(0.5, 0, 1.0), (0.5, 1, 0.5), (0.5, 2, 0.25), (0.0, 0, 1.0), (0.0, 1, 0.0), (1.0, 1, 1.0)],
)
def test_the_matrix_decays_at_the_start_of_a_round_alone(decay, new_rounds, kept):
    received = Received(memory=matrix(3.0, 0.0), new_rounds=new_rounds)
    learner = CWC(two_weights(1.0, 2.0), hospital(cwc__decay=decay), received)
    assert remembered(learner) == [3.0 * kept, 0.0]


def test_the_first_visit_begins_without_a_matrix():
    assert remembered(CWC(two_weights(1.0, 2.0), hospital(), NOTHING)) == [0.0, 0.0]


def test_negative_entries_are_refused():
    with pytest.raises(ParcelError, match="negative"):
        CWC(two_weights(1.0, 2.0), hospital(), Received(memory=matrix(1.0, -1.0)))


def test_fisher_information_by_hand():
    """One white pixel, weights 0: p = (½, ½), so ∂ log p(y|x)/∂w_k = ±½ whichever y is drawn."""

    class OnePixel(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, 1))

        def forward(self, images):
            return images[:, 0, :1, 0] @ self.weight.T

    learner = CWC(OnePixel(), hospital(cwc__importance="ewc"))
    learner.samples.images.fill_(255)
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


@pytest.mark.parametrize("importance", ["si", "ewc"])
def test_what_is_important_moves_less(importance):
    """A matrix that names the first layer alone holds that one, and lets the others go."""
    start = network().state_dict()

    def moved(entries):
        model = network()
        memory = {
            name: torch.full_like(weight, entries if name.startswith("1.") else 0.0)
            for name, weight in model.named_parameters()
        }
        end, _ = visit(
            "cwc", model, 5, received=Received(memory=memory), cwc__importance=importance
        )
        return [(end[name] - start[name]).norm().item() for name in ("1.weight", "3.weight")]

    held, free = moved(100.0), moved(0.0)
    assert held[0] < 0.2 * free[0]
    assert held[1] > 0.8 * free[1]


@pytest.mark.parametrize("importance", ["si", "ewc"])
def test_the_matrix_has_an_entry_for_each_parameter_and_none_is_negative(importance):
    model = network("cnn")
    learner = CWC(model, hospital(cwc__importance=importance))
    memory = learner.memory(np.random.default_rng(0))
    assert {name: entries.shape for name, entries in memory.items()} == {
        name: weight.shape for name, weight in model.named_parameters()
    }
    assert all((entries >= 0).all() for entries in memory.values())
    assert "1.running_mean" not in memory
