import math
import time
from contextlib import nullcontext, suppress
from dataclasses import fields
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from torch import nn

from learning.augmentation import AUGMENTATIONS, Draws
from learning.balance import class_weights, focal_losses
from learning.errors import DeadlineError, ModelError, warn_once
from learning.learners import LEARNERS
from learning.learners.centralized import Centralized
from learning.learners.fedbn import FedBN
from learning.learners.feder import FedER
from learning.learners.fedprox import FedProx
from learning.learners.plain import Plain, Received, batchnorm_keys
from learning.models import Architecture
from learning.samples import Samples, concatenate
from learning.suited import check_suited
from learning.training import batches, epoch_order, train
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import Settings, SettingsError
from strategies.registry import STRATEGIES
from tests.fakes import settings


def data(count=20):
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (count, 1, 8, 8), dtype=np.uint8))
    labels = torch.arange(count) % 3
    return Samples(images, labels)


def network(name="mlp"):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Architecture(name, 1, 8, 8, 3, (16,)).build()


def learner_of(kind, model, samples=None, received=None, **overrides):
    """A learner on `data()`, unless other samples are given."""
    chosen = data() if samples is None else samples
    return kind(model, chosen, settings(**overrides), received or Received())


def draws(seed=0, augment="none"):
    return Draws(torch.Generator().manual_seed(seed), AUGMENTATIONS[augment])


def visit(learner="plain", model=None, epochs=2, seed=0, deadline=60.0, received=None, **overrides):
    model = model or network()
    metrics = train(
        learner_of(LEARNERS[learner], model, received=received, **overrides),
        settings(**overrides).train,
        epochs,
        np.random.default_rng(seed),
        time.monotonic() + deadline,
    )
    return model.state_dict(), metrics


def assert_same(one, other):
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_progress_is_told_after_every_step_over_all_epochs():
    """20 images in batches of 8, twice: after 8, 16 and 20, and after 28, 36 and 40."""
    told = []
    chosen = settings(train__batch_size=8).train
    learner = learner_of(LEARNERS["plain"], network())
    rng, deadline = np.random.default_rng(0), time.monotonic() + 60
    train(learner, chosen, 2, rng, deadline, progress=lambda *done: told.append(done))
    assert told == [(done, 40) for done in (8, 16, 20, 28, 36, 40)]


# The networks of learners that need their own.
OWN = {"saliency": "ser-cnn", "ser": "ser-cnn", "pass": "rotation-cnn", "fedspace": "rotation-cnn"}


# Those of FIL-VER are tested in test_fil_ver.py.
@pytest.mark.parametrize("learner", [name for name in LEARNERS if "fil-ver" not in name])
def test_every_learner_trains(learner):
    model, epochs = (
        OWN.get(learner, "cnn"),
        40 if learner in ("saliency", "ser") else 10,
    )  # slowly at first
    _, first = visit(learner, network(model), epochs=1)
    _, last = visit(learner, network(model), epochs=epochs)
    assert last["train-loss"] < first["train-loss"]


def least(learner, key):
    """The least of some values that a learner's setting may have."""
    for value in (0.0, 5e-324, 1e-12, 1e-6):
        with suppress(SettingsError):
            LEARNERS[learner].read_settings(settings(**{key: value}))
            return value
    raise AssertionError(key)


ABOVE_ZERO = [
    (learner, f"{table}.{field.name}")
    for learner, kind in LEARNERS.items()
    if "fil-ver" not in learner and learner != "sums"
    for table, declared in kind.tables
    for field in fields(declared)
    if get_type_hints(declared)[field.name] is float
    if least(learner, f"{table}.{field.name}") > 0
]


@pytest.mark.parametrize(("learner", "key"), ABOVE_ZERO)
def test_the_least_value_of_a_setting_gives_numbers(learner, key):
    """The network's numbers have 32 bits, in which 5e-324 is 0."""
    model = network(OWN.get(learner, "mlp"))
    found = learner_of(LEARNERS[learner], model, **{key: least(learner, key)})
    rng, chosen = np.random.default_rng(0), settings().train
    metrics = train(found, chosen, 2, rng, float("inf"))
    tensors = {**model.state_dict(), **found.memory(rng), **found.rehearsal()}
    assert math.isfinite(metrics["train-loss"])
    assert all(each.isfinite().all() for each in tensors.values())


@pytest.mark.parametrize("name", get_args(get_type_hints(Settings)["learner"]))
def test_a_learner_whose_memory_travels_is_not_averaged(name):
    model = network(OWN.get(name, "cnn"))
    learner = learner_of(LEARNERS[name or "plain"], model)
    travels = bool(learner.memory(np.random.default_rng(0)))
    if travels:
        words = f"'learner' is '{name}'; it must be one without a memory .* 'fedavg' averages"
        with pytest.raises(SettingsError, match=words):
            STRATEGIES["fedavg"](settings(strategy="fedavg", learner=name))


@pytest.mark.parametrize("name", ["agem", "fdr", "lwf", "oewc", "rehearsal"])
def test_without_tasks_a_second_visit_is_plain_bit_for_bit(name):
    """Nothing is of an earlier task. All classes are there, among which lwf compares."""
    kept = dict(learner_of(LEARNERS[name], network("cnn")).rehearsal())
    one, _ = visit(name, network("cnn"), received=Received(rehearsal=kept))
    assert kept
    assert_same(one, visit("plain", network("cnn"))[0])


CHOSEN = [(name, "derpp") for name in get_args(get_type_hints(Settings)["learner"])]


@pytest.mark.parametrize(("name", "inner"), [*CHOSEN, ("ser", "lwf"), ("ser", "oewc")])
def test_a_learner_that_keeps_a_network_is_for_one_network(name, inner):
    """Another network comes to a hospital in its second task, which fits no kept network."""
    own, other = {
        "twf": ("cnn", "resnet18-32"),
        "pass": ("rotation-cnn", "rotation-mlp"),
        "ser": ("ser-cnn", "ser-cnn-lsm"),
        "saliency": ("ser-cnn", "ser-cnn-lsm"),
    }.get(name, ("cnn", "mlp"))
    changes = {"learner": name, "ser__learner": inner}
    rehearsal: dict[str, torch.Tensor] = {}
    fails = False
    for task, model in ((1, own), (2, own), (2, other)):
        received = Received(rehearsal=rehearsal, task=task)
        kind = LEARNERS[name or "plain"]
        try:
            learner = learner_of(kind, network(model), None, received, tasks=2, **changes)
        except ParcelError:
            fails = model == other
        rehearsal = dict(learner.rehearsal())
    mixed = {**changes, "model": f"{own},{other}"}
    STRATEGIES["standalone"](settings(strategy="standalone", **mixed))
    for strategy in ("cwt", "rwt", "fedrewind"):
        with pytest.raises(SettingsError, match="'model' is") if fails else nullcontext():
            STRATEGIES[strategy](settings(strategy=strategy, **mixed))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_has_its_learner(strategy):
    assert STRATEGIES[strategy](settings(strategy=strategy)).learner in LEARNERS


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
    model, images = network(), data().images
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
    images = data().images
    expected = nn.functional.cross_entropy(model(images), data().labels).item()
    _, metrics = visit(model=model, train__learning_rate=1e-30, train__batch_size=7)
    assert metrics == {"train-loss": pytest.approx(expected), "num-examples": 20}


@pytest.mark.parametrize("count", [2, 3, 7, 8, 9, 20])
def test_batches_hold_every_image_once_and_never_one_alone(count):
    cut = batches(torch.randperm(count), 4)
    assert sorted(torch.cat(cut).tolist()) == list(range(count))
    assert min(map(len, cut)) > 1


def test_a_draw_with_replacement_gives_a_step_as_many_different_images():
    order = torch.tensor([0, 0, 0, 0, 1, 2, 3, 4, 9, 9, 9, 9])
    found = [each.tolist() for each in batches(order, 4, 4)]
    assert found == [[0, 0, 0, 0, 1, 2, 3], [1, 2, 3, 4], [9, 9, 9, 9, 0, 1, 2]]
    few = batches(torch.tensor([5, 5, 5, 5, 5, 5]), 3, 3)  # others were not drawn
    assert [each.tolist() for each in few] == [[5, 5, 5, 0, 1], [5, 5, 5, 0, 1]]


@pytest.mark.parametrize("sizes", [(999, 1), (19, 1), (30, 1, 1)])
@pytest.mark.parametrize("counted", [False, True])
def test_a_rare_class_neither_merges_steps_nor_empties_them(sizes, counted):
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    chosen = settings(train__class_balance="sampler").train
    for seed in range(20):
        order = epoch_order(labels, chosen, torch.Generator().manual_seed(seed))
        cut = batches(order, 8, 8, len(labels) if counted else None)
        assert min(len(each.unique()) for each in cut) >= 8
        assert max(map(len, cut)) < 8 + 8 + 8
        assert len(cut) >= len(labels) // 8


@pytest.mark.parametrize(
    ("own", "others", "size", "steps", "largest"),
    [
        (200, 50_000, 8, 25, 8),
        (200, 50_000, 32, 25, 32),
        (205, 600, 32, 25, 37),
        (60, 4, 16, 4, 16),
    ],
)
@pytest.mark.parametrize("repeats", [False, True])
def test_images_that_do_not_count_do_not_fill_a_step(own, others, size, steps, largest, repeats):
    """Each step has 8 own images; an epoch has each of them once, and more only for repeats."""
    count, generator = own + others, torch.Generator().manual_seed(0)
    order = torch.randperm(count, generator=generator)
    if repeats:
        drawn = torch.randint(20, (own,), generator=generator)
        order = torch.cat([drawn, order[order >= own]])
    cut = batches(order, size, 8, own)
    assert min(len(each[each < own].unique()) for each in cut) >= 8
    used = torch.cat(cut)
    more = used[used < own].bincount(minlength=own) - order[order < own].bincount(minlength=own)
    assert more.min() >= 0
    assert len(used[used >= own].unique()) == (used >= own).sum()
    assert len(cut) == steps
    assert max(map(len, cut)) <= largest + repeats * 7
    assert repeats or (max(map(len, cut)), more.max().item()) == (largest, 0)
    assert [each.tolist() for each in batches(order, size, 8, count)] == [
        each.tolist() for each in batches(order, size, 8)
    ]


def test_class_weights_by_hand():
    """Six labels of two classes, three for each: 3/4 for each of 4 images, 3/2 for each of 2."""
    weights = class_weights(torch.tensor([0, 0, 3, 0, 3, 0]))
    assert weights.tolist() == [0.75, 0.0, 0.0, 1.5]


def test_a_balanced_loss_is_that_of_as_many_images_of_each_class():
    model, rare = network(), Samples(data(6).images, torch.tensor([0, 0, 0, 0, 1, 1]))
    learner = learner_of(Plain, model, rare, train__class_balance="loss")
    logits = model(rare.images)
    per_class = [
        nn.functional.cross_entropy(logits[rare.labels == k], rare.labels[rare.labels == k])
        for k in (0, 1)
    ]
    torch.testing.assert_close(learner.observe(rare, draws()), sum(per_class) / 2)
    # In a part of the samples an image still counts as what it is to all of them.
    some = rare[torch.tensor([0, 4])]
    losses = nn.functional.cross_entropy(model(some.images), some.labels, reduction="none")
    torch.testing.assert_close(learner.observe(some, draws()), (losses[0] + 2 * losses[1]) / 3)


def test_a_balanced_loss_leaves_the_buffer_as_it_is():
    model, rare = network(), Samples(data(6).images, torch.tensor([0, 0, 0, 0, 1, 1]))
    buffer = Samples(data(6).images, torch.tensor([2] * 6))
    learner = learner_of(FedER, model, rare, Received([buffer]), train__class_balance="loss")
    plain = learner_of(Plain, model, rare, train__class_balance="loss")
    replayed = nn.functional.cross_entropy(model(buffer.images), buffer.labels)
    expected = plain.observe(rare, draws()) / 2 + replayed / 2
    torch.testing.assert_close(learner.observe(rare, draws()), expected)


def test_the_focal_loss_by_hand():
    """A label of probability 1/2 counts a quarter of its cross-entropy, with γ = 2."""
    logits, labels = torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 1])
    wrong = 1 / (1 + math.exp(-3.0))  # what the second image's label does not have
    expected = [0.25 * math.log(2), wrong**2 * -math.log(1 - wrong)]
    torch.testing.assert_close(focal_losses(logits, labels, 2.0), torch.tensor(expected))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_the_focal_loss_has_a_gradient_where_an_image_is_right_beyond_doubt(gamma):
    logits = torch.tensor([[200.0, 0.0], [0.0, 0.0]], requires_grad=True)
    focal_losses(logits, torch.tensor([0, 0]), gamma).sum().backward()
    assert logits.grad is not None
    assert logits.grad[0].tolist() == [0, 0]
    assert logits.grad[1].isfinite().all()


def test_the_focal_loss_is_of_own_images_and_of_a_buffer():
    model, own = network(), data(6)
    buffer = Samples(data(6).images, torch.tensor([2] * 6))
    learner = learner_of(FedER, model, own, Received([buffer]), train__focal_gamma=2.0)
    terms = [focal_losses(model(each.images), each.labels, 2.0).mean() for each in (own, buffer)]
    torch.testing.assert_close(learner.observe(own, draws()), sum(terms) / 2)


def test_the_sampler_draws_all_classes_equally_often():
    """Of 9000 draws 4500 of either class; the standard deviation is 47."""
    labels = torch.tensor([0] * 8000 + [2] * 1000)
    chosen = settings(train__class_balance="sampler").train
    order = epoch_order(labels, chosen, torch.Generator().manual_seed(0))
    assert len(order) == 9000
    assert (labels[order] == 2).sum().item() == pytest.approx(4500, abs=200)
    assert len(order[labels[order] == 2].unique()) > 950  # nearly all of the 1000 rare ones


@pytest.mark.parametrize("balance", ["sampler", "loss"])
def test_a_balanced_visit_is_another_one(balance):
    assert not torch.equal(
        visit()[0]["1.weight"], visit(train__class_balance=balance)[0]["1.weight"]
    )


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
    learner = learner_of(FedProx, model, fedprox__mu=0.5)
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
    home = FedBN.local(model, settings())
    assert len(home) == 20 * 5
    assert {f"layer{k}.0.downsample.1.running_mean" for k in (2, 3, 4)} <= home
    travels = set(model.state_dict()) - home
    assert all("bn" not in name and "running" not in name for name in travels)


def test_others_keep_nothing_home():
    assert Plain.local(network("resnet18"), settings()) == set()


def grey(level, label, count=4):
    """Images of one grey level and one class."""
    return Samples(
        torch.full((count, 1, 8, 8), level, dtype=torch.uint8), torch.tensor([label] * count)
    )


class Watched(nn.Module):
    """A network that keeps the images it was given, and has the same logits for all."""

    def __init__(self, *logits):
        super().__init__()
        self.logits = torch.tensor([logits])

    def forward(self, images):
        self.given = images
        return self.logits.expand(len(images), -1)

    @property
    def levels(self):
        """The grey level of each image."""
        return self.given[:, 0, 0, 0].int().tolist()


def test_feder_adds_as_many_images_of_the_buffer_as_it_has_own():
    model = Watched(0.0, 0.0, 0.0)
    learner_of(FedER, model, received=Received([grey(9, 2)])).observe(grey(1, 0, 3), draws())
    assert model.levels == [1, 1, 1, 9, 9, 9]


@pytest.mark.parametrize(("own", "buffer"), [(3, 7), (7, 3), (4, 4)])
def test_feder_replays_no_image_twice_before_all_others_once(own, buffer):
    images = torch.arange(buffer, dtype=torch.uint8).view(-1, 1, 1, 1)
    replayed = Samples(images, torch.zeros(buffer, dtype=torch.int64))
    batch = Samples(torch.full((own, 1, 1, 1), 99, dtype=torch.uint8), torch.zeros(own).long())
    model = Watched(0.0, 0.0)
    learner_of(FedER, model, received=Received([replayed])).observe(batch, draws())
    times = torch.bincount(torch.tensor(model.levels[own:]), minlength=buffer)
    assert times.sum() == own
    assert times.max() - times.min() <= 1


@pytest.mark.parametrize("replay_weight", [0.25, 0.5])
def test_feder_weighs_the_two_terms(replay_weight):
    """Logits (0, ln 3) for every image: −ln p is ln 4 for class 0 and ln 4/3 for class 1.

    Own images are of class 0, replayed ones of class 1: (1 − w) ln 4 + w ln 4/3.
    """
    learner = learner_of(
        FedER,
        Watched(0.0, float(np.log(3))),
        received=Received([grey(0, 1)]),
        feder__replay_weight=replay_weight,
    )
    expected = (1 - replay_weight) * np.log(4) + replay_weight * np.log(4 / 3)
    assert learner.observe(grey(0, 0, 2), draws()).item() == pytest.approx(expected)


def test_feder_with_half_the_weight_is_the_mean_over_all_images():
    """λ = 0.5 is what the authors' code does: one mean over 2B images."""
    model = network()
    learner = learner_of(FedER, model, received=Received([grey(200, 1)]))
    both = concatenate([grey(10, 0), grey(200, 1)])
    expected = nn.functional.cross_entropy(model(both.images), both.labels)
    torch.testing.assert_close(learner.observe(grey(10, 0), draws()), expected)


def test_feder_draws_the_buffer_before_it_changes_the_images():
    """The order of draws is part of a run: the same seed must go on giving the same model."""
    model, buffer = network(), data(9)
    learner = learner_of(FedER, model, received=Received([buffer]))
    loss = learner.observe(data(4), draws(augment="flip"))
    generator = torch.Generator().manual_seed(0)
    both = concatenate([data(4), buffer[torch.randperm(9, generator=generator)[:4]]])
    images = AUGMENTATIONS["flip"](both.images, generator)
    torch.testing.assert_close(loss, nn.functional.cross_entropy(model(images), both.labels))


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


def test_without_images_the_first_buffer_takes_their_place():
    own, other = grey(1, 0), grey(9, 2)
    learner = learner_of(FedER, network(), data(0), Received([own, other]))
    assert learner.samples is own
    assert learner.replay is other


def test_centralized_puts_everything_on_one_heap():
    learner = learner_of(Centralized, network(), data(7), Received([grey(1, 0), grey(9, 2)]))
    assert torch.bincount(learner.samples.labels).tolist() == [3 + 4, 2, 2 + 4]


def test_centralized_on_buffers_alone_has_no_other_images():
    learner = learner_of(Centralized, network(), data(0), Received([grey(1, 0), grey(9, 2)]))
    assert torch.bincount(learner.samples.labels).tolist() == [4, 0, 4]


@pytest.mark.parametrize(
    "name", ["plain", "fedprox", "fedrewind", "fedrewind-averaged", "lwf", "er", "ser"]
)
def test_frozen_statistics_stay_and_weights_train(name):
    model = network(OWN.get(name, "cnn"))
    before = {key: each.clone() for key, each in model.state_dict().items()}
    frozen = batchnorm_keys(model, statistics_alone=True)
    assert len(frozen) == (24 if name == "ser" else 12)
    after, _ = visit(name, model, train__freeze="statistics", train__batch_size=8)
    assert {key for key in before if torch.equal(before[key], after[key])} == frozen


def test_frozen_statistics_need_batchnorm():
    chosen = settings(train__freeze="statistics")
    check_suited("plain", Architecture("cnn", 1, 8, 8, 3), chosen)
    with pytest.raises(ModelError, match="model 'mlp' has no BatchNorm layer: set"):
        check_suited("plain", Architecture("mlp", 1, 8, 8, 3, (16,)), chosen)


@pytest.mark.parametrize(
    ("freeze", "name", "unit_features", "warned"),
    [
        ("none", "cnn", True, True),
        ("none", "cnn", False, False),
        ("none", "mlp", True, False),
        ("statistics", "cnn", True, False),
    ],
)
def test_a_head_for_statistics_that_training_changes_is_warned_of(
    freeze, name, unit_features, warned, caplog
):
    warn_once.cache_clear()
    network = Architecture(name, 1, 8, 8, 3, (16,), unit_features=unit_features)
    check_suited("plain", network, settings(train__freeze=freeze))
    assert warned == ("Set 'train.freeze' to 'statistics'" in caplog.text)
