"""Networks of timm: their last layer, and the points that they do not have."""

import pytest

from learning.errors import ModelError
from learning.models import Architecture
from learning.models.taps import last_layer, points

pytest.importorskip("timm", reason="needs the extra timm")


def of_timm(name):
    return Architecture(f"timm:{name}", 3, 224, 224, 3)


def test_an_identity_behind_the_last_layer_does_not_hide_it():
    network = of_timm("regnety_002").skeleton()
    assert last_layer(network) is network.head.fc


def test_a_network_whose_answer_is_the_mean_of_two_layers_is_refused():
    with pytest.raises(ModelError, match="Distilled does not end in a linear layer"):
        last_layer(of_timm("deit_tiny_distilled_patch16_224").skeleton())


def test_a_resnet_whose_relus_have_other_names_is_refused():
    """timm's have `act1` where torchvision's have `relu`."""
    with pytest.raises(ModelError, match=r"no known points .* a ResNet of torchvision"):
        points(of_timm("resnet10t").skeleton())
