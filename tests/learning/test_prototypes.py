"""PASS and FedSpace at a hospital: each term against numbers derived by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from learning.errors import ModelError
from learning.learners.plain import Received
from learning.learners.prototypes import FedSpace, Pass, class_prototypes, representation, turn
from learning.models import Architecture, activations, layout
from learning.models.rotation import RotationNetwork
from learning.samples import Samples
from strategies.protocol.records import ParcelError, UselessError
from tests.fakes import settings
from tests.learning.test_training import draws

T, WEIGHT = 0.5, 0.25  # temperature and λ
CLASSES, WIDTH = 3, 2


@pytest.fixture
def network():
    """2 x 2 pixels, two features, three classes."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        built = Architecture("rotation-mlp", 1, 2, 2, CLASSES, (WIDTH,)).build()
    assert isinstance(built, RotationNetwork)
    return built


def images(*labels):
    """An image for each label, all different."""
    pixels = torch.arange(4 * len(labels)).square() * 3 % 251
    return Samples(pixels.view(-1, 1, 2, 2).byte(), torch.tensor(labels))


def learner_of(kind, network, samples, kept=None, memory=None, leg=1, task=1, **changes):
    chosen = {"pass__temperature": T, "pass__prototype_weight": WEIGHT}
    chosen |= {"fedspace__representation_weight": 0.0, "train__batch_size": 4}
    received = Received(rehearsal=kept or {}, memory=memory or {}, leg=leg, task=task)
    return kind(network, samples, settings(**{**chosen, **changes}), received)


def prototypes(radius=0.0, task=None, **means):
    """Those of some classes, `c0=(1, 2)`, with radius; with the task if they are a hospital's."""
    known = {"means": torch.zeros(CLASSES, WIDTH), "counts": torch.zeros(CLASSES)}
    for name, mean in means.items():
        known["means"][int(name[1])] = torch.tensor(mean)
        known["counts"][int(name[1])] = 5.0
    known["radius"] = torch.tensor(radius)
    return known if task is None else known | {"task": torch.tensor(task)}


def cross_entropy(logits, label, allowed):
    """−log of the label's share among the outputs that are allowed."""
    shares = {output: math.exp(logits[output].item() / T) for output in allowed}
    return -math.log(shares[label] / sum(shares.values()))


def of_turned(network, samples, classes):
    """The first term, image by image and turn by turn."""
    allowed = [4 * c + k for c in classes for k in range(4)]
    found = []
    for image, label in zip(samples.images, samples.labels.tolist(), strict=True):
        for k in range(4):
            features = network.body(image.rot90(k, (-2, -1))[None] / 255)
            found.append(cross_entropy(network.head(features)[0], 4 * label + k, allowed))
    return sum(found) / len(found)


def of_prototype(network, mean, label):
    return cross_entropy(network.head(torch.tensor(mean)), 4 * label, range(4 * CLASSES))


def test_images_are_turned_and_labelled():
    """[[0, 1], [2, 3]] turned once against the clock is [[1, 3], [0, 2]]."""
    pixels = torch.tensor([[[[0, 1], [2, 3]]], [[[4, 5], [6, 7]]]])
    found, labels = turn(pixels, torch.tensor([2, 0]))
    assert labels.tolist() == [8, 0, 9, 1, 10, 2, 11, 3]
    assert found[:, 0].flatten(1)[::2].tolist() == [
        [0, 1, 2, 3],
        [1, 3, 0, 2],
        [3, 2, 1, 0],
        [2, 0, 3, 1],
    ]


def test_a_network_gives_classes_and_has_outputs_for_turns(network):
    pixels = images(0, 1).images
    with torch.no_grad():
        every = network.head(network.features(pixels))
        assert every.shape == (2, 4 * CLASSES)
        assert torch.equal(network(pixels), every[:, [0, 4, 8]])


@pytest.mark.parametrize(("name", "width"), [("rotation-cnn", 128), ("rotation-resnet18", 512)])
def test_the_features_of_the_networks(name, width):
    found = layout(Architecture(name, 1, 32, 32, CLASSES))
    assert found["head.weight"].shape == (4 * CLASSES, width)
    if name == "rotation-resnet18":
        assert found["body.conv1.weight"].shape == (64, 1, 3, 3)
        blank = Architecture(name, 1, 32, 32, CLASSES).blank().to("meta")
        shapes: list[torch.Size] = []
        first = blank.get_submodule("body.layer1")
        first.register_forward_hook(lambda layer, given, out: shapes.append(out.shape))
        blank(torch.empty(1, 1, 32, 32, device="meta"))
        assert shapes == [(1, 64, 32, 32)]  # neither the stem nor a pool halves it


def test_images_that_do_not_fit_when_they_are_turned_are_refused():
    with pytest.raises(ModelError, match="1x8x9 images: images that are turned must be square"):
        activations(Architecture("rotation-cnn", 1, 8, 9, 2))


def test_pass_by_hand(network):
    """Class 0 was seen before, 1 is here, 2 is unknown. With r = 0 all fake features are p_0.

    Class 2 is masked for images; for fake features no output is.
    """
    samples, kept = images(1, 1, 1), prototypes(task=1, c0=(0.5, 2.0))
    loss = learner_of(Pass, network, samples, kept, task=2).observe(samples, draws())
    expected = of_turned(network, samples, [0, 1])
    expected += WEIGHT * of_prototype(network, (0.5, 2.0), 0)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_pass_around_the_present_classes_too_and_at_first_around_none(network):
    samples = images(1, 2)
    loss = learner_of(Pass, network, samples).observe(samples, draws())
    assert loss.item() == pytest.approx(of_turned(network, samples, [1, 2]), rel=1e-5)
    kept = prototypes(task=1, c1=(1.0, 0.0))
    loss = learner_of(Pass, network, samples, kept).observe(samples, draws())
    expected = of_turned(network, samples, [1, 2]) + WEIGHT * of_prototype(network, (1.0, 0.0), 1)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_the_gradient_reaches_the_head_through_prototypes_and_the_body_through_images(network):
    samples, kept = images(1), prototypes(task=1, c2=(0.5, 2.0))
    learner_of(Pass, network, samples, kept, task=2).observe(samples, draws()).backward()
    shares = (network.head(torch.tensor((0.5, 2.0))) / T).softmax(dim=0)
    images_alone = learner_of(Pass, network, samples, kept, pass__prototype_weight=0.0)
    (before,) = torch.autograd.grad(images_alone.observe(samples, draws()), [network.head.bias])
    wanted = shares.clone()
    wanted[8] -= 1  # softmax − label
    torch.testing.assert_close(network.head.bias.grad - before, WEIGHT * wanted / T)
    assert network.body[1].weight.grad.abs().sum() > 0


def test_fake_features_are_normal_around_classes_drawn_evenly(network):
    """Of 20,000 a half is of each class; the standard errors are 0.004 and 0.02."""
    kept = prototypes(radius=2.0, task=1, c0=(1.0, -1.0), c2=(30.0, 60.0))
    learner = learner_of(Pass, network, images(0), kept, train__batch_size=20_000)
    near, classes = learner.sample_around(torch.tensor([0, 2]), draws())
    assert set(classes.tolist()) == {0, 2}
    assert (classes == 0).double().mean().item() == pytest.approx(0.5, abs=0.02)
    for label, mean in ((0, (1.0, -1.0)), (2, (30.0, 60.0))):
        assert near[classes == label].mean(dim=0).tolist() == pytest.approx(mean, abs=0.1)
        assert near[classes == label].std(dim=0).tolist() == pytest.approx([2, 2], abs=0.1)


def test_fedspace_takes_the_server_s_prototypes_of_other_classes(network):
    """The hospital has seen 1 alone; of the server's, 1 is in the task, so that 2 is left."""
    samples, kept = images(1, 1), prototypes(task=1, c1=(9.0, 9.0))
    memory = prototypes(c1=(5.0, 5.0), c2=(0.5, 2.0))
    loss = learner_of(FedSpace, network, samples, kept, memory).observe(samples, draws())
    expected = of_turned(network, samples, [1]) + WEIGHT * of_prototype(network, (0.5, 2.0), 2)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_fedspace_takes_its_own_until_the_server_has_some(network):
    samples, kept = images(1, 1), prototypes(task=1, c0=(0.5, 2.0), c1=(9.0, 9.0))
    loss = learner_of(FedSpace, network, samples, kept, task=2).observe(samples, draws())
    expected = of_turned(network, samples, [0, 1]) + WEIGHT * of_prototype(network, (0.5, 2.0), 0)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("huge", [{"c2": (9e5, 2.0)}, {"c2": (0.5, 2.0), "radius": 9e5}])
def test_fedspace_takes_its_own_instead_of_huge_ones(huge, network):
    """A blow-up of one hospital's made the training of the others diverge."""
    samples, kept = images(1, 1), prototypes(task=1, c0=(0.5, 2.0), c1=(9.0, 9.0))
    visit = learner_of(FedSpace, network, samples, kept, prototypes(**huge), task=2)
    assert visit.prototypes["means"].equal(kept["means"])
    assert visit.augmented.tolist() == [0]


def test_representation_by_hand():
    """z = e1, e1, e2 of classes 0, 0, 1. For both of class 0 log(e / (e + 1)); class 1 has no pair.

    Lengths do not matter: the sum of both over three is 2/3 log(1 + 1/e).
    """
    features = torch.tensor([[3.0, 0.0], [0.5, 0.0], [0.0, 7.0]])
    labels = torch.tensor([0, 0, 1])
    found = representation(features, labels, torch.tensor([0, 1]))
    assert found.item() == pytest.approx(2 / 3 * math.log(1 + 1 / math.e))
    assert representation(features, labels, torch.tensor([1])).item() == 0


def test_fedspace_draws_images_of_a_class_together(network):
    """Three images of class 1 and four times p_2, beside them; images as they are, not turned."""
    samples, memory = images(1, 1, 1), prototypes(c2=(0.5, 2.0))
    found = []
    for weight in (0.0, 2.0):
        changes = {"fedspace__representation_weight": weight}
        learner = learner_of(FedSpace, network, samples, memory=memory, **changes)
        found.append(learner.observe(samples, draws()).item())
    with torch.no_grad():
        points = [*network.features(samples.images), *[torch.tensor((0.5, 2.0))] * 4]
    unit = [point / point.norm() for point in points]
    total = 0.0
    for i in range(3):
        others = sum(math.exp(unit[i] @ unit[k]) for k in range(7) if k != i)
        pairs = [math.log(math.exp(unit[i] @ unit[j]) / others) for j in range(3) if j != i]
        total -= sum(pairs) / 2
    assert found[1] - found[0] == pytest.approx(2.0 * total / 7, rel=1e-4)


class Pixels(nn.Module):
    """Features are the pixels."""

    def features(self, images):
        return images.flatten(1).float()


def test_prototypes_by_hand():
    """Class 0: (0, 0), (2, 0): mean (1, 0), variances 2 and 0. Class 2: (0, 4), (0, 0), (0, 2):
    mean (0, 2), variances 0 and 4. Class 3 has one image, and no variance.

    r² = ((2 + 4) / 2) / 2 features.
    """
    pixels = torch.tensor([(0, 0), (2, 0), (0, 4), (0, 0), (0, 2), (8, 8)], dtype=torch.uint8)
    samples = Samples(pixels.view(6, 1, 1, 2), torch.tensor([0, 0, 2, 2, 2, 3]))
    found = class_prototypes(Pixels(), samples, 5)  # type: ignore[arg-type]
    assert found["means"].tolist() == [[1, 0], [0, 0], [0, 2], [8, 8], [0, 0]]
    assert found["counts"].tolist() == [2, 0, 3, 1, 0]
    assert found["radius"].item() == pytest.approx(math.sqrt(1.5))
    alone = class_prototypes(Pixels(), samples[torch.tensor([5])], 5)  # type: ignore[arg-type]
    assert alone["radius"].item() == 0


def test_a_hospital_keeps_the_means_of_all_classes_and_the_first_task_s_radius(network):
    first, second = images(0, 0, 1), images(1, 2, 2)
    kept = learner_of(Pass, network, first, task=3).rehearsal()
    of_first = class_prototypes(network, first, CLASSES)
    assert all(torch.equal(kept[name], of_first[name]) for name in of_first)
    again = learner_of(Pass, network, second, kept, task=3).rehearsal()
    of_second = class_prototypes(network, second, CLASSES)
    assert again["radius"] == of_second["radius"] != kept["radius"]
    later = learner_of(Pass, network, second, kept, task=1).rehearsal()
    assert later["radius"] == kept["radius"]
    assert torch.equal(later["means"][0], of_first["means"][0])
    assert torch.equal(later["means"][1:], of_second["means"][1:])
    assert later["counts"].tolist() == [2, 1, 2]
    assert later["task"] == 3


def test_what_fedspace_sends_is_of_the_present_task_alone(network):
    samples = images(1, 1, 2)
    kept = prototypes(radius=4.0, task=2, c0=(1.0, 1.0))
    learner = learner_of(FedSpace, network, samples, kept, task=1)
    sent = learner.memory(SimpleNamespace())
    assert sent.keys() == {"means", "counts", "radius"}
    assert sent["counts"].tolist() == [0, 2, 1]
    assert sent["radius"] == 4
    assert learner_of(Pass, network, samples).memory(SimpleNamespace()) == {}


def test_on_a_rewind_leg_nothing_is_kept_or_sent(network):
    kept = prototypes(task=1, c0=(1.0, 1.0))
    learner = learner_of(FedSpace, network, images(1, 1), kept, leg=2)
    assert learner.memory(SimpleNamespace()) == {}
    assert learner.rehearsal() is kept


def test_rare_classes_count_as_much_with_class_balance(network):
    """Three images of class 0 and one of class 1: 4/6 and 4/2 each."""
    samples = images(0, 0, 0, 1)
    learner = learner_of(Pass, network, samples, train__class_balance="loss")
    found = learner.observe(samples, draws()).item()
    of_class = [
        of_turned(network, images(0, 0, 0, 1)[rows], [0, 1])
        for rows in (torch.arange(3), torch.tensor([3]))
    ]
    assert found == pytest.approx(sum(of_class) / 2, rel=1e-5)


def test_without_a_weight_it_is_pass_without_prototypes_bit_for_bit(network):
    samples, kept = images(1, 1), prototypes(radius=1.0, task=1, c0=(1.0, 1.0))
    off = learner_of(Pass, network, samples, kept, pass__prototype_weight=0.0)
    noise = draws()
    off.observe(samples, noise)
    assert torch.equal(noise.generator.get_state(), draws().generator.get_state())


@pytest.mark.parametrize("kind", [Pass, FedSpace])
def test_other_networks_are_refused(kind):
    plain = Architecture("mlp", 1, 2, 2, CLASSES, (WIDTH,)).build()
    with pytest.raises(ModelError, match="set 'model' to rotation-mlp, rotation-cnn or"):
        kind.check_suited(plain, settings())
    with pytest.raises(ModelError, match="has no outputs for them"):
        learner_of(kind, plain, images(0))


def test_prototypes_of_another_network_are_refused(network):
    wrong = prototypes(c0=(1.0, 1.0))
    wrong["means"] = torch.zeros(CLASSES, WIDTH + 1)
    with pytest.raises(UselessError, match=r"The prototypes has 'means' as .* \[3, 3\]"):
        learner_of(FedSpace, network, images(0), memory=wrong)
    with pytest.raises(ParcelError, match=r"The hospital's memory has 'means'"):
        learner_of(Pass, network, images(0), wrong)
    with pytest.raises(UselessError, match="The prototypes lacks 'counts'"):
        learner_of(FedSpace, network, images(0), memory={"means": wrong["means"]})
    with pytest.raises(UselessError, match="negative radius"):
        learner_of(FedSpace, network, images(0), memory=prototypes(radius=-1.0))
