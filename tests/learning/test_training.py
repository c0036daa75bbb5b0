import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from client_app.datasets import LocalData, open_data
from client_app.hospital import Hospital
from client_app.store import Store
from learning.errors import DeadlineError
from learning.learners import LEARNERS
from learning.learners.centralized import Centralized
from learning.learners.fedbn import FedBN
from learning.learners.feder import FedER
from learning.learners.fedprox import FedProx
from learning.learners.plain import NOTHING, Plain, Received
from learning.models import Architecture
from learning.samples import Samples
from learning.training import batches, train
from strategies.protocol.settings import SettingsError
from strategies.registry import STRATEGIES
from tests.fakes import FakeGrid, Ledger, settings


def data(count=20):
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (count, 1, 8, 8), dtype=np.uint8))
    labels = torch.arange(count) % 3
    return Samples(images, labels)


def network(name="mlp"):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Architecture(name, 1, 8, 8, 3, (16,)).build()


def hospital(**overrides):
    """One of two simulated hospitals, which holds `data()`."""
    held = LocalData(data(), data(), ("a", "b", "c"))
    return Hospital("h", settings(**overrides), held, torch.device("cpu"), "mlp", Store(Path("no")))


def visit(
    learner="plain", model=None, epochs=2, seed=0, deadline=60.0, received=NOTHING, **overrides
):
    model = model or network()
    if learner == "centralized":
        overrides = {"centralized__data": "synthetic", **overrides}
        received = Received([data()])
    where = hospital(**overrides)
    metrics = train(
        LEARNERS[learner](model, where, received),
        where.settings.train,
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
    assert strategy(settings(), FakeGrid({}), Ledger()).learner in LEARNERS


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
    model, images = network(), data().images / 127.5 - 1
    loss = nn.functional.cross_entropy(model(images), data().labels)
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
    images = data().images / 127.5 - 1
    expected = nn.functional.cross_entropy(model(images), data().labels).item()
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
    learner = FedProx(model, hospital(fedprox__mu=0.5))
    model.weight.data = torch.tensor([[3.0, 2.0]])
    model.weight.grad = torch.zeros(1, 2)
    learner.before_step()
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
    home = FedBN.owns(model, settings())
    assert len(home) == 20 * 5
    assert {f"layer{k}.0.downsample.1.running_mean" for k in (2, 3, 4)} <= home
    travels = set(model.state_dict()) - home
    assert all("bn" not in name and "running" not in name for name in travels)


def test_others_keep_nothing_home():
    assert Plain.owns(network("resnet18"), settings()) == set()


def grey(level, label, count=4):
    """Images of one grey level and one class."""
    return Samples(
        torch.full((count, 1, 8, 8), level, dtype=torch.uint8), torch.tensor([label] * count)
    )


def test_feder_adds_as_many_images_of_the_buffer_as_it_has_own():
    learner = FedER(network(), hospital(), Received([grey(9, 2)]))
    batch = learner.extend(grey(1, 0, 3), torch.Generator().manual_seed(0))
    assert batch.images[:, 0, 0, 0].tolist() == [1, 1, 1, 9, 9, 9]
    assert batch.labels.tolist() == [0, 0, 0, 2, 2, 2]


@pytest.mark.parametrize(("own", "buffer"), [(3, 7), (7, 3), (4, 4)])
def test_feder_replays_no_image_twice_before_all_others_once(own, buffer):
    images = torch.arange(buffer, dtype=torch.uint8).view(-1, 1, 1, 1)
    replayed = Samples(images, torch.zeros(buffer, dtype=torch.int64))
    learner = FedER(network(), hospital(), Received([replayed]))
    start = Samples(torch.full((own, 1, 1, 1), 99, dtype=torch.uint8), torch.zeros(own).long())
    extended = learner.extend(start, torch.Generator().manual_seed(0))
    times = torch.bincount(extended.images[own:].flatten().int(), minlength=buffer)
    assert times.sum() == own
    assert times.max() - times.min() <= 1


@pytest.mark.parametrize("replay_weight", [0.25, 0.5])
def test_feder_weighs_the_two_terms(replay_weight):
    """Logits (0, ln 3) for every image: −ln p is ln 4 for class 0 and ln 4/3 for class 1.

    Own images are of class 0, replayed ones of class 1: (1 − w) ln 4 + w ln 4/3.
    """

    class Constant(nn.Module):
        def forward(self, images):
            return torch.tensor([[0.0, np.log(3)]]).expand(len(images), 2)

    learner = FedER(
        Constant(),
        hospital(feder__replay_weight=replay_weight),
        Received([grey(0, 1)]),
    )
    batch = learner.extend(grey(0, 0, 2), torch.Generator())
    expected = (1 - replay_weight) * np.log(4) + replay_weight * np.log(4 / 3)
    assert learner.loss(batch.images, batch.labels).item() == pytest.approx(expected)


def test_feder_with_half_the_weight_is_the_mean_over_all_images():
    """λ = 0.5 is what the authors' code does: one mean over 2B images."""
    model = network()
    learner = FedER(model, hospital(), Received([grey(200, 1)]))
    batch = learner.extend(grey(10, 0), torch.Generator().manual_seed(0))
    images = batch.images / 127.5 - 1
    expected = nn.functional.cross_entropy(model(images), batch.labels)
    torch.testing.assert_close(learner.loss(images, batch.labels), expected)


@pytest.mark.parametrize(
    "off", [{}, {"received": Received([grey(9, 2)]), "feder__replay_weight": 0.0}]
)
def test_feder_without_replay_is_plain_bit_for_bit(off):
    plain, _ = visit("plain", network("cnn"))
    feder, _ = visit("feder", network("cnn"), **off)
    assert_same(plain, feder)


def test_feder_with_replay_is_not():
    plain, _ = visit("plain")
    feder, _ = visit("feder", received=Received([grey(9, 2)]))
    assert not torch.equal(plain["1.weight"], feder["1.weight"])


def test_synthetic_only_takes_the_own_buffer_in_the_place_of_the_images():
    own, other = grey(1, 0), grey(9, 2)
    where = hospital(feder__variant="synthetic-only")
    learner = FedER(network(), where, Received([own, other]))
    assert learner.samples is own
    assert learner.replay is other


def test_centralized_puts_everything_on_one_heap():
    where = hospital(centralized__data="both", dataset="digits")
    where = replace(where, data=open_data(where.settings, 0, 2), partitions=2)
    everyone = where.everyone()
    alone = [open_data(where.settings, index, 2).train for index in range(2)]
    assert len(everyone) == sum(map(len, alone))
    buffer = Samples(torch.zeros(5, *everyone.shape, dtype=torch.uint8), torch.zeros(5).long())
    learner = Centralized(network(), where, Received([buffer, buffer]))
    assert len(learner.samples) == len(everyone) + 10


def test_a_real_hospital_refuses_to_centralise_its_images():
    with pytest.raises(SettingsError, match="do not leave it"):
        Centralized.check(hospital())
    Centralized.check(hospital(centralized__data="synthetic"))
