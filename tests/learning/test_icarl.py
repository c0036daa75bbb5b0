"""iCaRL at the hospital, beside its algorithms (learning/learners/icarl.py)."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from learning.errors import DeadlineError
from learning.learners.icarl import ICaRL, herd
from learning.learners.plain import Received
from learning.models.taps import last_layer
from strategies.protocol.records import UselessError
from strategies.protocol.settings import SettingsError
from tests.fakes import settings
from tests.learning.test_training import data, draws, learner_of, network

RNG = np.random.default_rng(0)


def of_class(*classes):
    samples = data()
    return samples[torch.isin(samples.labels, torch.tensor(classes))]


def test_images_are_chosen_so_that_their_mean_is_near_that_of_all():
    """Directions of 0, 30, 40 and 90 degrees have their mean at 39. 40 is nearest; then 35, between
    40 and 30; then 53, with 90, for 24, with 0, is farther.
    """
    angles = torch.tensor([0.0, 30.0, 40.0, 90.0]).deg2rad()
    features = torch.stack([angles.cos(), angles.sin()], dim=1)
    assert herd(features, 3).tolist() == [2, 1, 3]
    assert sorted(herd(features, 9).tolist()) == [0, 1, 2, 3]
    with pytest.raises(DeadlineError):
        herd(features, 3, deadline=0.0)


def test_the_means_of_chosen_images_are_scaled_before_they_are_compared():
    """The mean of all is (0.5, 0.27), at 28 degrees. Of the images, that at 31 degrees is nearest
    to this direction, although (0.6, 0) is nearest to the mean itself.
    """
    features = torch.tensor([[0.6, 0.0], [1.0, 0.6], [-0.1, 0.2]])
    assert herd(features, 1).tolist() == [1]


def test_one_step_by_hand():
    """A last layer of 0: every g is ½, and the loss is ln 2. Its gradient at the bias, with the
    classes 0 and 1: ½ − t, over two classes: images of class 0 alone have (−¼, ¼, 0).
    """
    model = network()
    head = last_layer(model)
    head.weight.data.zero_()
    head.bias.data.zero_()
    learner = learner_of(ICaRL, model, of_class(0, 1))
    loss = learner.observe(of_class(0), draws())
    (gradient,) = torch.autograd.grad(loss, head.bias)
    assert loss.item() == pytest.approx(math.log(2))
    assert gradient.tolist() == pytest.approx([-0.25, 0.25, 0.0])


@pytest.mark.parametrize("cut", ["permuted", "shared-classes"])
def test_tasks_of_equal_classes_are_refused(cut):
    """A class that comes again would lose the images that were kept of it."""
    with pytest.raises(SettingsError, match=r"task-cut.*new classes"):
        ICaRL.check_suited(network(), settings(tasks=2, task_cut=cut))
    ICaRL.check_suited(network(), settings(tasks=2, task_cut="given"))


def two_visits(model):
    first = learner_of(ICaRL, model, of_class(0, 1), Received(task=1), reservoir__size=6)
    memory, rehearsal = first.memory(RNG), first.rehearsal()
    return Received(memory=memory, rehearsal=rehearsal, task=2)


def test_a_model_that_leaves_tells_classes_by_the_nearest_mean():
    """Three images of each of two classes are kept; nobody answers class 2, which never came."""
    model = network()
    trained = {name: each.clone() for name, each in last_layer(model).state_dict().items()}
    found = two_visits(model)
    torch.testing.assert_close(dict(found.memory), trained)
    assert found.rehearsal["labels"].tolist() == [0, 0, 0, 1, 1, 1]
    phi = functional.normalize(model[:-1](data().images / 255))
    kept = functional.normalize(model[:-1](found.rehearsal["values"] / 255))
    means = functional.normalize(torch.stack([kept[:3].mean(dim=0), kept[3:].mean(dim=0)]))
    wanted = torch.cdist(phi, means).argmin(dim=1)
    logits = model.eval()(data().images)
    assert torch.equal(logits[:, :2].argmax(dim=1), wanted)
    assert (logits[:, 2] == 0).all()


def test_the_next_task_is_distilled_and_its_classes_share_the_place():
    """Targets are q of the network before for 0 and 1, and whether it is class 2 for 2."""
    model = network()
    trained = network()
    found = two_visits(model)
    second = learner_of(ICaRL, model, of_class(2), found, reservoir__size=6)
    assert len(second.samples) == len(of_class(2)) + 6
    batch = second.samples
    q = trained.eval()(batch.images)[:, :2].sigmoid()
    wanted = torch.cat([q, (batch.labels == 2)[:, None]], dim=1)
    expected = functional.binary_cross_entropy_with_logits(trained(batch.images), wanted)
    torch.testing.assert_close(second.observe(batch, draws()), expected)
    second.memory(RNG)
    after = second.rehearsal()
    assert after["labels"].tolist() == [0, 0, 1, 1, 2, 2]
    assert after["tasks"].tolist() == [1, 1, 1, 1, 2, 2]
    assert torch.equal(after["values"][:2], found.rehearsal["values"][:2])
    weights = last_layer(model).weight
    torch.testing.assert_close(weights.norm(dim=1), torch.ones(3))


def test_a_class_that_comes_again_is_learnt_from_labels():
    """Task 2 has the classes 1 and 2: of the targets only that of class 0 is q."""
    model, trained = network(), network()
    second = learner_of(ICaRL, model, of_class(1, 2), two_visits(model), reservoir__size=6)
    batch = second.samples
    wanted = functional.one_hot(batch.labels, 3).float()
    wanted[:, 0] = trained.eval()(batch.images)[:, 0].sigmoid()
    expected = functional.binary_cross_entropy_with_logits(trained(batch.images), wanted)
    torch.testing.assert_close(second.observe(batch, draws()), expected)


def test_the_mean_of_few_patients_stays_here():
    """Of class 0 three images of two patients are kept, of class 1 three of three."""
    model = network()
    samples = of_class(0, 1)
    owners = torch.where(samples.labels == 0, torch.arange(len(samples)) % 2, 5)
    owners[samples.labels == 1] += torch.arange(int((samples.labels == 1).sum()))
    given = Received(task=1, owners=owners, fewest=3)
    first = learner_of(ICaRL, model, samples, given, reservoir__size=6)
    memory, kept = first.memory(RNG), first.rehearsal()
    assert len(kept["owners"][:3].unique()) <= 2
    assert len(kept["owners"][3:].unique()) == 3
    assert last_layer(model).weight.any(dim=1).tolist() == [False, True, False]
    one = torch.zeros(len(of_class(2)), dtype=torch.int64)  # all images of class 2 are of a patient
    again = Received(memory=memory, rehearsal=kept, task=2, owners=one, fewest=3)
    learner_of(ICaRL, model, of_class(2), again, reservoir__size=9).memory(RNG)
    assert last_layer(model).weight.any(dim=1).tolist() == [False, True, False]


def test_what_cannot_be_used_is_refused():
    for size in (0, 2):  # three classes
        with pytest.raises(SettingsError, match=rf"'reservoir.size' is {size}; it must be 2 or"):
            ICaRL.check_suited(network(), settings(reservoir__size=size))
    ICaRL.check_suited(network(), settings(reservoir__size=3))
    with pytest.raises(SettingsError, match=r"'evaluate.epochs' is true; it must be false"):
        ICaRL.check_suited(network(), settings(evaluate__epochs=True))
    wrong = Received(memory={"weight": torch.zeros(2, 2), "bias": torch.zeros(3)})
    with pytest.raises(UselessError, match="The last layer that came with the model has 'weight'"):
        learner_of(ICaRL, network(), of_class(0), wrong)
