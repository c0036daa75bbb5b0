"""Points before non-linearities, and the last layer."""

import pytest
import torch
from torch import nn

from learning.errors import ModelError
from learning.models import Architecture
from learning.models.taps import last_layer, points, tap


def built(name, side=32):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Architecture(name, 1, side, side, 3, (4,)).build()
    return network.eval()


def images(side=32):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (2, 1, side, side), generator=generator, dtype=torch.uint8)


def test_points_of_the_cnn_are_what_its_layers_say():
    """A layer is a convolution, a normalisation and a ReLU."""
    network = built("cnn")
    logits, found = tap(network, images())
    x = images() / 255
    for layer, point in enumerate(found):
        before = network[3 * layer + 1](network[3 * layer](x))
        torch.testing.assert_close(point, before)
        x = before.relu()
    assert len(found) == 4
    torch.testing.assert_close(logits, network[-1](x.mean(dim=(2, 3))))


@pytest.mark.parametrize(("name", "widths"), [("resnet18", 512), ("resnet50", 2048)])
def test_points_of_a_resnet_are_before_the_last_relu_of_stem_and_stages(name, widths):
    """What a stage gives to the next is the ReLU of its point."""
    network = built(name)
    given = []
    for stage in range(1, 5):
        layer = getattr(network, f"layer{stage}")
        layer.register_forward_hook(lambda module, inputs, output: given.append(output))
    _, (stem, *stages) = tap(network, images())
    torch.testing.assert_close(stem, network.bn1(network.conv1(images() / 255)))
    assert [point.shape[1] for point in stages][-1] == widths
    for point, output in zip(stages, given, strict=True):
        assert (point < 0).any()
        torch.testing.assert_close(point.relu(), output)


@pytest.mark.parametrize("name", ["cnn", "resnet18"])
def test_what_is_at_a_point_can_be_replaced(name):
    """With zeros before the last non-linearity the logits are the last layer's bias."""
    network, last = built(name), len(points(built(name))) - 1
    logits, found = tap(network, images(), lambda point, x: x * (point != last))
    torch.testing.assert_close(logits, last_layer(network).bias.expand(2, -1))
    assert found[last].abs().sum() > 0
    untouched, _ = tap(network, images())
    assert not torch.equal(logits, untouched)
    torch.testing.assert_close(untouched, network(images()))


@pytest.mark.parametrize("name", ["mlp", "mobilenet_v2"])
def test_other_networks_are_refused(name):
    with pytest.raises(ModelError, match=r"no known points .* set 'model' to cnn, or to a ResNet"):
        points(built(name))


def test_the_last_layer():
    assert all(last_layer(built(name)).out_features == 3 for name in ("mlp", "cnn", "resnet18"))
    with pytest.raises(ModelError, match="Sequential does not end in a linear layer"):
        last_layer(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
