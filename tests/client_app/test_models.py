import json
import re

import numpy as np
import pytest
import torch
from torch import nn

from client_app.errors import ModelError
from client_app.models import MODELS, Architecture
from client_app.randomness import seeded

TORCHVISION = sorted(MODELS.keys() - {"mlp", "cnn"})
# One of each family is tested by default: siblings differ in depth and width alone.
FAMILIES = {re.split(r"[\d_]", name)[0]: name for name in TORCHVISION}.values()


def slow(names):
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


def architecture(name, channels=1, size=224):
    return Architecture(name, channels, size, size, classes=7)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (1, 28), (3, 32), (3, 256)])
def test_our_models_learn_from_images_of_any_size(name, channels, size):
    network = architecture(name, channels, size).build()
    logits = network(torch.rand(2, channels, size, size))
    nn.functional.cross_entropy(logits, torch.tensor([0, 6])).backward()
    assert logits.shape == (2, 7)
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("name", [*FAMILIES, *slow(sorted({*TORCHVISION} - {*FAMILIES}))])
def test_every_torchvision_model_takes_one_channel_and_returns_logits(name):
    size = 299 if name == "inception_v3" else 224
    network = architecture(name, size=size).blank().to("meta")  # computes shapes alone
    assert network.training  # when models with auxiliary heads return more than logits
    assert network(torch.empty(2, 1, size, size, device="meta")).shape == (2, 7)


def test_the_stem_alone_changes_with_the_channels():
    grey, colour = architecture("resnet18").build(), architecture("resnet18", channels=3).build()
    assert str(grey.conv1) == str(colour.conv1).replace("Conv2d(3,", "Conv2d(1,")
    assert grey.conv1.weight.shape == (64, 1, 7, 7)
    assert grey.fc.out_features == 7
    shapes = [{k: v.shape for k, v in n.state_dict().items()} for n in (grey, colour)]
    assert {key for key in shapes[0] if shapes[0][key] != shapes[1][key]} == {"conv1.weight"}


def test_the_mlp_has_the_hidden_layers_asked_for():
    network = Architecture("mlp", 1, 28, 28, 10, hidden=(256, 128)).build()
    weights = [tuple(p.shape) for p in network.parameters() if p.ndim == 2]
    assert weights == [(256, 784), (128, 256), (10, 128)]


def test_the_cnn_is_small():
    network = architecture("cnn", channels=3).build()
    assert sum(parameter.numel() for parameter in network.parameters()) < 100_000


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18", *slow(FAMILIES)])
def test_a_blank_network_with_weights_loaded_is_the_network(name):
    size = 299 if name == "inception_v3" else 224
    built = architecture(name, size=size).build().eval()
    loaded = architecture(name, size=size).blank().eval()
    loaded.load_state_dict(built.state_dict())
    images = torch.rand(1, 1, size, size)
    with torch.no_grad():
        assert torch.equal(built(images), loaded(images))


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18", "swin_t"])
def test_a_blank_network_draws_no_random_number(name):
    before = torch.get_rng_state()
    assert all(parameter.requires_grad for parameter in architecture(name).blank().parameters())
    assert torch.equal(torch.get_rng_state(), before)


def test_the_same_generator_gives_the_same_weights_and_leaves_the_global_one_alone():
    before = torch.get_rng_state()
    networks = []
    for seed in (0, 0, 1):
        with seeded(np.random.default_rng(seed)):
            networks.append(architecture("cnn").build())
    assert torch.equal(torch.get_rng_state(), before)
    first, same, other = (nn.utils.parameters_to_vector(n.parameters()) for n in networks)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_an_unknown_model_names_its_neighbours():
    with pytest.raises(ModelError) as error:
        architecture("resnet81")
    assert str(error.value) == (
        "There is no model 'resnet81'; choose mlp, cnn or a torchvision classification model, "
        "such as resnet18 or resnet152 or resnet101."
    )


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [
        ("vgg11", 8, "Given input size: (512x1x1). Calculated output size: (512x0x0)"),
        ("vit_b_16", 33, "Input shape indivisible by patch size"),
        ("maxvit_t", 32, "Input size (8, 8) of block 0 is not divisible by partition size 7"),
    ],
)
def test_images_that_a_model_cannot_take_are_refused_with_the_reason(name, size, reason):
    with pytest.raises(ModelError) as error:
        architecture(name, size=size).check()
    message = str(error.value)
    assert message.startswith(f"The model '{name}' cannot take 1x{size}x{size} images: {reason}")
    assert message.endswith(". Choose another model or image-size.")


@pytest.mark.parametrize(("name", "size"), [("mlp", 8), ("cnn", 8), ("resnet18", 32)])
def test_images_that_a_model_takes_pass(name, size):
    architecture(name, size=size).check()


def test_an_architecture_survives_the_journey():
    sent = Architecture("mlp", 1, 28, 28, 10, hidden=(256, 256))
    assert Architecture.from_json(sent.to_json()) == sent


@pytest.mark.parametrize(
    "change",
    [{"depth": 3}, {"channels": "1"}, {"channels": True}, {"name": 1}, {"hidden": [2.5]}],
)
def test_an_architecture_with_other_keys_or_types_is_refused(change):
    fields = json.loads(architecture("mlp").to_json())
    with pytest.raises(ModelError, match=r"exactly name \(str\), channels \(int\), .*hidden"):
        Architecture.from_json(json.dumps(fields | change))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": "cnn"}'])
def test_what_is_no_architecture_is_refused(text):
    with pytest.raises(ModelError, match="must be a JSON object"):
        Architecture.from_json(text)


def test_an_architecture_of_an_unknown_model_is_refused():
    text = architecture("cnn").to_json().replace("cnn", "gnn")
    with pytest.raises(ModelError, match="There is no model 'gnn'"):
        Architecture.from_json(text)
