"""The optimizer's state that travels with a model: `train.optimizer-state`."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from learning.dp_sgd import PrivateSteps
from learning.errors import DivergedError
from learning.learners import LEARNERS
from learning.learners.plain import Plain, Received
from learning.packing import pack_optimizer, unpack_arrays
from learning.training import train
from strategies.protocol.optimizer import PARTS, check_optimizer
from strategies.protocol.records import ParcelError, UselessError
from strategies.protocol.settings import SettingsError
from tests.fakes import settings
from tests.learning.test_training import OWN, assert_same, data, learner_of, network

CPU = torch.device("cpu")
LAYOUT = {"w": ("float32", (2,)), "b": ("float32", ())}


def visit(model, samples=None, epochs=1, came=None, kind=Plain, **changes):
    """One visit with a state that travels: packed, checked and unpacked as in a run."""
    changes = {"train__optimizer_state": "travels", "train__batch_size": 4, **changes}
    learner = learner_of(kind, model, samples, Received(optimizer=came or {}), **changes)
    train(learner, settings(**changes).train, epochs, np.random.default_rng(0), float("inf"))
    if not learner.optimizer:
        return {}
    record = pack_optimizer(learner.optimizer)
    layout = {name: ("float32", tuple(each.shape)) for name, each in model.state_dict().items()}
    check_optimizer(record, layout)
    return unpack_arrays(record, CPU)


def test_two_visits_equal_one_long_visit_bit_for_bit():
    """All images are alike, so that the order of the images of an epoch makes no difference."""
    alike = data()[torch.zeros(12, dtype=torch.int64)]
    whole, parts, fresh = network(), network(), network()
    visit(whole, alike, epochs=2)
    visit(parts, alike, came=visit(parts, alike))
    visit(fresh, alike, came=None), visit(fresh, alike, came=None)
    assert_same(whole.state_dict(), parts.state_dict())
    assert not torch.equal(whole.state_dict()["1.weight"], fresh.state_dict()["1.weight"])


def test_the_state_after_a_step_by_hand():
    """m = (1 − β₁) g and v = (1 − β₂) g² with β₁ = 0.9 and β₂ = 0.999, after one step."""
    model = network()
    loss = torch.nn.functional.cross_entropy(model(data().images), data().labels)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    state = visit(model, train__batch_size=20)
    for (name, _), gradient in zip(model.named_parameters(), gradients, strict=True):
        torch.testing.assert_close(state[f"{name}.exp_avg"], 0.1 * gradient)
        torch.testing.assert_close(state[f"{name}.exp_avg_sq"], 0.001 * gradient**2)
        assert state[f"{name}.step"] == 1


@pytest.mark.parametrize("learner", [name for name in LEARNERS if "fil-ver" not in name])
def test_every_learner_goes_on_from_a_state(learner):
    """20 images in batches of 4 are 5 steps a visit; LwF also warms up, TwF and SER replay."""
    model, steps = network(OWN.get(learner, "cnn")), []
    came: dict[str, torch.Tensor] = {}
    for _ in range(2):
        came = visit(model, came=came, kind=LEARNERS[learner])
        steps.append({float(each) for name, each in came.items() if name.endswith(".step")})
    assert sorted(steps[1]) == [2 * step for step in sorted(steps[0])]


@pytest.mark.slow  # imports opacus
def test_with_dp_sgd_the_state_follows_from_noised_gradients_alone():
    """After one step m = 0.1 g, where g is the gradient with noise that the step took."""
    changes = {"train__dp__noise_multiplier": 5.0, "train__optimizer_state": "travels"}
    learner = learner_of(Plain, network(), **changes)
    chosen, rng = settings(**changes).train, np.random.default_rng
    private = PrivateSteps.plan(np.arange(20), 20, chosen.dp, rng(1))
    train(learner, chosen, 1, rng(0), float("inf"), private=private)
    for name, parameter in learner.model.named_parameters():
        torch.testing.assert_close(learner.optimizer[f"{name}.exp_avg"], 0.1 * parameter.grad)
        assert parameter.grad.std() > 0.1  # 5 / 20 of noise, and at most 1 / 20 of each image


def test_only_adam_has_a_state():
    with pytest.raises(SettingsError, match="optimizer-state' is 'travels'; it must be fresh"):
        settings(train__optimizer="sgd", train__optimizer_state="travels")


def state(**changes):
    """A sound state of `LAYOUT`, with changes."""
    arrays = {"w.step": 3.0, "w.exp_avg": [0.7, -0.7], "w.exp_avg_sq": [0.01, 0.01]} | changes
    return ArrayRecord({k: Array(np.asarray(v, "f4")) for k, v in arrays.items() if v is not None})


def test_a_sound_state_may_lack_a_parameter():
    check_optimizer(state(), LAYOUT)


@pytest.mark.parametrize(
    "changes",
    [
        {"w.step": None},
        {"w.exp_avg": [0.7]},
        {"w.step": [3.0]},
        {"x.step": 3.0},
        {"b.step": 3.0},
        {"w.other": 3.0},
        dict.fromkeys(("w.step", "w.exp_avg", "w.exp_avg_sq")),
    ],
)
def test_a_state_that_does_not_fit_its_model_is_refused(changes):
    with pytest.raises(ParcelError, match="does not fit its model"):
        check_optimizer(state(**changes), LAYOUT)


@pytest.mark.parametrize(
    "changes",
    [
        {"w.step": -1.0},
        {"w.step": np.inf},
        {"w.step": np.nan},
        {"w.exp_avg": [0.81, 0.0]},  # above 8 √0.01
        {"w.exp_avg": [np.nan, 0.0]},
        {"w.exp_avg_sq": [-0.01, 0.01]},
        {"w.exp_avg_sq": [np.inf, 0.01]},
        {"w.exp_avg_sq": [1.1e12, 0.01]},
    ],
)
def test_a_state_to_which_no_gradients_lead_is_refused(changes):
    with pytest.raises(UselessError, match=r"No gradients lead to the optimizer state of 'w'"):
        check_optimizer(state(**changes), LAYOUT)
    arrays = {name: torch.from_numpy(each.numpy()) for name, each in state(**changes).items()}
    with pytest.raises(DivergedError, match="diverged"):
        pack_optimizer(arrays)


def test_adam_cannot_exceed_the_bound_of_its_moments():
    """The worst gradients, (β₁/β₂)^k for the k-th before the last, reach m² = 52.86 v."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    adam = torch.optim.Adam([parameter])
    for k in reversed(range(400)):
        parameter.grad = torch.full((1,), (0.9 / 0.999) ** k)
        adam.step()
    m, v = (adam.state[parameter][part].item() for part in PARTS[1:])
    assert m * m / v == pytest.approx(52.86, rel=1e-3)


def test_a_sealed_state_has_at_most_four_times_the_bytes_of_its_model():
    sealed = ArrayRecord({"sealed": Array(np.zeros(2**20 + 400, "u1"))})
    check_optimizer(sealed, {"sealed": ("uint8", (132,))})  # the header of an array has 128
    with pytest.raises(ParcelError, match="sealed optimizer state"):
        check_optimizer(sealed, {"sealed": ("uint8", (131,))})
