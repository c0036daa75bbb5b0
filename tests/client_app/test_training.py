import time

import numpy as np
import pytest
import torch
from torch import nn

from client_app.datasets import LocalData
from client_app.errors import DeadlineError
from client_app.learners import LEARNERS
from client_app.learners.fedbn import FedBN
from client_app.learners.fedprox import FedProx
from client_app.learners.plain import Plain
from client_app.models import Architecture
from client_app.training import batches, train
from strategies.registry import STRATEGIES
from tests.fakes import settings


def data(count=20):
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (count, 1, 8, 8), dtype=np.uint8))
    labels = torch.arange(count) % 3
    return LocalData(images, labels, images, labels, ("a", "b", "c"))


def network(name="mlp"):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Architecture(name, 1, 8, 8, 3, (16,)).build()


def visit(learner="plain", model=None, epochs=2, seed=0, deadline=60.0, **overrides):
    model = model or network()
    chosen = settings(**overrides)
    metrics = train(
        LEARNERS[learner](model, chosen),
        data(),
        chosen.train,
        epochs,
        np.random.default_rng(seed),
        time.monotonic() + deadline,
    )
    return model.state_dict(), metrics


def assert_same(one, other):
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("learner", LEARNERS)
def test_every_learner_trains(learner):
    _, first = visit(learner, network("cnn"), epochs=1)
    _, last = visit(learner, network("cnn"), epochs=10)
    assert last["train-loss"] < first["train-loss"]


@pytest.mark.parametrize("strategy", STRATEGIES.values())
def test_every_strategy_has_its_learner(strategy):
    assert strategy.learner in LEARNERS


def test_the_same_seed_gives_the_same_model_whatever_was_drawn_before():
    first, _ = visit(train__augment="flip-rotate")
    torch.rand(7)
    second, _ = visit(train__augment="flip-rotate")
    assert_same(first, second)
    third, _ = visit(train__augment="flip-rotate", seed=1)
    assert not torch.equal(first["1.weight"], third["1.weight"])


def test_training_leaves_global_randomness_alone():
    state = torch.get_rng_state()
    visit()
    assert torch.equal(state, torch.get_rng_state())


def test_one_step_of_sgd_by_hand():
    """w − η ∂L/∂w, with the gradient that autograd gives for the whole set as one batch."""
    model, images = network(), data().train_images / 127.5 - 1
    loss = nn.functional.cross_entropy(model(images), data().train_labels)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    expected = [p.detach() - 0.1 * g for p, g in zip(model.parameters(), gradients, strict=True)]
    visit(
        model=model,
        epochs=1,
        train__optimizer="sgd",
        train__learning_rate=0.1,
        train__batch_size=20,
    )
    for parameter, value in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.detach(), value)


def test_the_loss_is_the_mean_over_the_images():
    """With a learning rate that changes nothing, the mean over unequal batches is that over all."""
    model = network()
    images = data().train_images / 127.5 - 1
    expected = nn.functional.cross_entropy(model(images), data().train_labels).item()
    _, metrics = visit(model=model, train__learning_rate=1e-30, train__batch_size=7)
    assert metrics == {"train-loss": pytest.approx(expected), "num-examples": 20}


@pytest.mark.parametrize("count", [2, 3, 7, 8, 9, 20])
def test_batches_hold_every_image_once_and_never_one_alone(count):
    cut = batches(count, 4, torch.Generator().manual_seed(0))
    assert sorted(torch.cat(cut).tolist()) == list(range(count))
    assert min(map(len, cut)) > 1


def test_a_deadline_is_kept():
    with pytest.raises(DeadlineError, match="hop-timeout"):
        visit(deadline=-1.0)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_fedprox_without_pull_is_plain_bit_for_bit(optimizer):
    overrides = {"train__optimizer": optimizer, "train__learning_rate": 0.05}
    plain, _ = visit("plain", **overrides)
    fedprox, _ = visit("fedprox", fedprox__mu=0.0, **overrides)
    assert_same(plain, fedprox)


def test_fedprox_adds_the_gradient_of_the_squared_norm():
    """µ/2 ‖w − w_t‖² with µ = 0.5, w_t = (1, 2), w = (3, 2): gradient 0.5 × (2, 0) = (1, 0).

    Of the norm itself, not squared, it would be 0.25 × (1, 0) at any distance.
    """
    model = nn.Linear(2, 1, bias=False)
    model.weight.data = torch.tensor([[1.0, 2.0]])
    learner = FedProx(model, settings(fedprox__mu=0.5))
    model.weight.data = torch.tensor([[3.0, 2.0]])
    model.weight.grad = torch.zeros(1, 2)
    learner.add_penalty_gradient()
    assert model.weight.grad.tolist() == [[1.0, 0.0]]


def test_fedprox_pulls_through_all_steps_of_a_visit():
    """A strong pull leaves the weights nearer to where they were than none does."""
    start = network().state_dict()

    def distance(mu):
        end, _ = visit(
            "fedprox", epochs=5, fedprox__mu=mu, train__optimizer="sgd", train__learning_rate=0.05
        )
        return sum((end[name] - start[name]).norm() for name in start)

    assert distance(10.0) < 0.5 * distance(0.0)


def test_fedbn_keeps_every_batchnorm_layer_of_a_resnet_home():
    """ResNet-18 has 20 BatchNorm layers of 5 entries, three of them called `downsample.1`."""
    model = network("resnet18")
    home = FedBN.stays_home(model)
    assert len(home) == 20 * 5
    assert {f"layer{k}.0.downsample.1.running_mean" for k in (2, 3, 4)} <= home
    travels = set(model.state_dict()) - home
    assert all("bn" not in name and "running" not in name for name in travels)


def test_others_keep_nothing_home():
    assert Plain.stays_home(network("resnet18")) == set()
