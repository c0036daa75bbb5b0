import json
import re
import socket
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.error import URLError

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

from learning.errors import ModelError
from learning.models import MODELS, Architecture, activations, layout, torchvision_names
from learning.models.pixels import scale_input
from learning.models.pretrained import load_pretrained
from learning.models.taps import tap
from learning.randomness import use_seed

TORCHVISION = sorted(torchvision_names())
# The smallest of each family is tested by default: siblings differ in depth and width alone.
FAMILIES = [
    *("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "googlenet", "inception_v3"),
    *("maxvit_t", "mnasnet0_5", "mobilenet_v3_small", "regnet_y_400mf", "resnet18"),
    *("resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_1", "swin_t", "vgg11", "vit_b_32"),
    "wide_resnet50_2",
]


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


@pytest.mark.slow
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


IMAGES = torch.tensor([[[0, 51], [102, 255]], [[30, 40], [35, 30]], [[7, 7], [7, 7]]]).byte()[
    :, None
]


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        ("unit", [[0, 0.2, 0.4, 1], [30 / 255, 40 / 255, 35 / 255, 30 / 255], [7 / 255] * 4]),
        ("symmetric", [[-1, -0.6, -0.2, 1], [-195 / 255, -175 / 255, -185 / 255, -195 / 255]]),
        ("per-image", [[0, 0.2, 0.4, 1], [0, 1, 0.5, 0], [0] * 4]),
    ],
)
def test_a_network_scales_the_bytes_that_it_is_given(pixels, expected):
    network = nn.Flatten()
    scale_input(network, pixels)
    found = network(IMAGES)[: len(expected)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float32))


def test_the_scale_is_the_architecture_s_and_leaves_its_entries_alone():
    both = [
        replace(architecture("mlp", size=2), pixels=each).build() for each in ("unit", "symmetric")
    ]
    weight = torch.full((7, 4), 1 / 4)
    for network in both:
        network.load_state_dict({"1.weight": weight, "1.bias": torch.zeros(7)})
    assert [round(network(IMAGES)[0, 0].item(), 6) for network in both] == [0.4, -0.2]


def test_networks_of_libraries_compute_with_channels_at_the_end():
    """On a CPU; weights stay as they are stored."""
    network = architecture("resnet18", channels=3, size=32).build().eval()
    seen = []
    network.layer1.register_forward_hook(lambda layer, inputs, output: seen.append(output))
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    found = network(images)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert all(each.is_contiguous() for each in network.parameters())
    network._forward_pre_hooks.popitem()
    torch.testing.assert_close(found, network(images))
    assert seen[1].is_contiguous()


def test_a_per_image_scale_is_over_all_channels():
    network = nn.Flatten()
    scale_input(network, "per-image")
    assert network(torch.tensor([[[[10]], [[20]], [[30]]]]).byte()).tolist() == [[0, 0.5, 1]]


def test_an_unknown_scale_is_refused():
    with pytest.raises(ModelError, match="no scale of pixels 'signed'; choose one of unit, symm"):
        Architecture("cnn", 1, 8, 8, 2, pixels="signed")


def test_the_mlp_has_the_hidden_layers_asked_for():
    network = Architecture("mlp", 1, 28, 28, 10, hidden=(256, 128)).build()
    weights = [tuple(p.shape) for p in network.parameters() if p.ndim == 2]
    assert weights == [(256, 784), (128, 256), (10, 128)]


def test_the_cnn_is_small():
    network = architecture("cnn", channels=3).build()
    assert sum(parameter.numel() for parameter in network.parameters()) < 100_000


@pytest.mark.parametrize("name", ["mlp", "cnn", *slow(FAMILIES)])
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
        with use_seed(np.random.default_rng(seed)):
            networks.append(architecture("cnn").build())
    assert torch.equal(torch.get_rng_state(), before)
    first, same, other = (nn.utils.parameters_to_vector(n.parameters()) for n in networks)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_the_resnet_for_32_pixels_keeps_the_size_until_its_second_stage():
    """torchvision's has maps of 8 pixels after its stem, of 7 x 7 weights where ours has 3 x 3."""
    network = architecture("resnet18-32", channels=3, size=32).skeleton()
    _, features = tap(network, torch.empty(2, 3, 32, 32, device="meta"))
    assert [each.shape[2] for each in features] == [32, 32, 16, 8, 4]
    theirs = torchvision.models.resnet18(num_classes=7).parameters()
    ours = sum(each.numel() for each in network.parameters())
    assert sum(each.numel() for each in theirs) - ours == 3 * 64 * (7 * 7 - 3 * 3)


def test_an_unknown_model_names_its_neighbours():
    with pytest.raises(ModelError) as error:
        architecture("resnet81")
    assert str(error.value) == (
        "There is no model 'resnet81'; choose mlp, cnn, resnet18-32, ebr, vee, rotation-mlp, "
        "rotation-cnn, rotation-resnet18, ser-cnn, ser-resnet18 or a torchvision classification "
        "model, such as resnet18 or resnet152 or resnet101."
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
        activations(architecture(name, size=size))
    message = str(error.value)
    assert message.startswith(f"The model '{name}' cannot take 1x{size}x{size} images: {reason}")
    assert message.endswith(". Choose another model or image-size.")


@pytest.mark.parametrize(("name", "size"), [("mlp", 8), ("cnn", 8), ("resnet18", 32)])
def test_images_that_a_model_takes_pass(name, size):
    activations(architecture(name, size=size))


def test_an_architecture_survives_the_journey():
    sent = Architecture("mlp", 1, 28, 28, 10, hidden=(256, 256))
    assert Architecture.from_json(sent.to_json()) == sent


@pytest.mark.parametrize(
    "change",
    [{"depth": 3}, {"channels": "1"}, {"channels": True}, {"name": 1}, {"hidden": [2.5]}],
)
def test_an_architecture_with_other_keys_or_types_is_refused(change):
    fields = json.loads(architecture("mlp").to_json())
    with pytest.raises(ModelError, match=f"{next(iter(change))}.*Do all hospitals"):
        Architecture.from_json(json.dumps(fields | change))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": "cnn"}'])
def test_what_is_no_architecture_is_refused(text):
    with pytest.raises(ModelError, match=r"cannot be used: it .*Do all hospitals"):
        Architecture.from_json(text)


@pytest.mark.parametrize("side", ["channels", "height", "width"])
def test_no_image_of_an_architecture_is_too_large_to_be_prepared(side):
    with pytest.raises(ModelError, match="1 to 4096 channels and pixels a side"):
        Architecture.from_json(json.dumps({**vars(architecture("cnn")), side: 20_000}))


def test_an_architecture_of_an_unknown_model_is_refused():
    text = architecture("cnn").to_json().replace("cnn", "gnn")
    with pytest.raises(ModelError, match="There is no model 'gnn'"):
        Architecture.from_json(text)


def colour(name, classes=7):
    return replace(architecture(name, channels=3), classes=classes)


def state_of(network):
    return {entry: value.clone() for entry, value in network.state_dict().items()}


@pytest.fixture(scope="module")
def resnet18(tmp_path_factory):
    """A file with the state dict of torchvision's resnet18 for 1000 classes."""
    file = tmp_path_factory.mktemp("weights") / "resnet18.pth"
    torch.save(torchvision.models.resnet18().state_dict(), file)
    return file


def loads_all_but(head, file, blueprint):
    """Whether `file` replaces every entry of a new network but those of its head."""
    network, weights = blueprint.build(), torch.load(file)
    fresh = state_of(network)
    load_pretrained(network, blueprint, str(file))
    return all(
        torch.equal(value, (fresh if entry in head else weights)[entry])
        for entry, value in state_of(network).items()
    )


HEADS = {
    "resnet18": {"fc.weight", "fc.bias"},
    "squeezenet1_1": {"classifier.1.weight", "classifier.1.bias"},
    "mnasnet0_5": {"classifier.1.weight", "classifier.1.bias"},
}


@pytest.mark.parametrize("name", HEADS)
def test_all_but_the_head_is_pretrained(name, tmp_path):
    torch.save(torchvision.models.get_model(name).state_dict(), tmp_path / "weights.pth")
    assert loads_all_but(HEADS[name], tmp_path / "weights.pth", colour(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_auxiliary_heads_in_a_file_are_left_out(name, tmp_path):
    weights = torchvision.models.get_model(name, init_weights=False).state_dict()
    torch.save(weights, tmp_path / "weights.pth")
    assert any(entry.startswith(("aux1.", "AuxLogits.")) for entry in weights)
    assert loads_all_but({"fc.weight", "fc.bias"}, tmp_path / "weights.pth", colour(name))


def test_the_head_stays_new_even_for_as_many_classes(resnet18):
    assert loads_all_but(HEADS["resnet18"], resnet18, colour("resnet18", classes=1000))


def test_networks_saved_for_grey_images_fit_grey_images(tmp_path):
    torch.save(architecture("resnet18").build().state_dict(), tmp_path / "grey.pth")
    assert loads_all_but(HEADS["resnet18"], tmp_path / "grey.pth", architecture("resnet18"))


def test_old_files_of_densenets_have_other_names(tmp_path):
    """And none has the number of batches that BatchNorm has seen, as those of torch 0.4."""
    weights = torchvision.models.densenet121().state_dict()
    old = {
        re.sub(r"(denselayer\d+\.)(norm|conv)([12])", r"\1\2.\3", entry): value
        for entry, value in weights.items()
        if not entry.endswith("num_batches_tracked")
    }
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    torch.save(old, tmp_path / "old.pth")
    network = colour("densenet121").build()
    load_pretrained(network, colour("densenet121"), str(tmp_path / "old.pth"))
    loaded = state_of(network)
    assert all(torch.equal(loaded[e], weights[e]) for e in weights if e.startswith("features."))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("resnet34", "it has no 'layer1.2.conv1.weight'."),
        ("resnet50", "size mismatch for layer1.0.conv1.weight: copying a param with shape"),
        ("squeezenet1_1", "it has no 'features.0.weight'."),
    ],
)
def test_weights_of_another_network_are_refused(name, reason, resnet18):
    with pytest.raises(ModelError) as error:
        load_pretrained(colour(name).blank(), colour(name), str(resnet18))
    assert str(error.value).startswith(
        f"The weights '{resnet18}' of the setting 'pretrained' are not the state dict of "
        f"torchvision's {name} for 3x224x224 images: {reason}"
    )


def test_weights_of_a_larger_network_are_refused(tmp_path):
    torch.save(colour("resnet34").blank().state_dict(), tmp_path / "resnet34.pth")
    with pytest.raises(
        ModelError, match=r"resnet18 .*: the model has no 'layer1\.2\.conv1\.weight'"
    ):
        load_pretrained(colour("resnet18").blank(), colour("resnet18"), f"{tmp_path}/resnet34.pth")


@pytest.mark.parametrize("source", ["file", "imagenet"])
def test_pretrained_networks_need_three_channels(source, resnet18):
    grey = architecture("resnet18")
    with pytest.raises(ModelError, match=r"[Ss]et 'image-channels' to 3") as error:
        load_pretrained(grey.blank(), grey, str(resnet18) if source == "file" else source)
    if source == "file":
        assert "size mismatch for conv1.weight" in str(error.value)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_our_models_have_no_pretrained_weights(name):
    with pytest.raises(ModelError, match=f"'{name}' is not one of torchvision or timm: choose"):
        load_pretrained(colour(name).blank(), colour(name), "imagenet")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "There is no file '.*weights.pth'; the setting 'pretrained' names it"),
        ("hello", r"cannot be read \(\w+\): write it with torch.save"),
        ("cut", r"cannot be read \(\w+\): write it with torch.save"),
        (nn.Linear(1, 1), r"cannot be read \(UnpicklingError\): write it with torch.save"),
        ([], "it is a list, not a dict"),
        ({7: torch.zeros(1)}, "it is a dict, not a dict from names to tensors"),
        ({"patient": 7}, "it has no 'conv1.weight'"),
    ],
)
def test_files_that_hold_no_weights_are_refused(content, message, resnet18, tmp_path):
    file = tmp_path / "weights.pth"
    if content == "cut":
        file.write_bytes(resnet18.read_bytes()[:9999])
    elif isinstance(content, str):
        file.write_text(content)
    elif content is not None:
        torch.save(content, file)
    with pytest.raises(ModelError, match=message) as error:
        load_pretrained(colour("resnet18").blank(), colour("resnet18"), str(file))
    assert "patient" not in str(error.value)


def test_entries_that_are_no_tensors_are_refused(resnet18, tmp_path):
    torch.save({**torch.load(resnet18), "bn1.weight": 7}, tmp_path / "weights.pth")
    with pytest.raises(ModelError, match=r'"bn1\.weight", expected torch\.Tensor'):
        load_pretrained(colour("resnet18").blank(), colour("resnet18"), f"{tmp_path}/weights.pth")


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """Where torch looks for torchvision's resnet18 before it downloads it."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    return tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth"


def test_imagenet_weights_are_downloaded_once_and_checked(cached, resnet18, monkeypatch):
    downloads = []

    def download(url, file, digest, progress):
        downloads.append((url, digest))
        cached.write_bytes(resnet18.read_bytes())

    monkeypatch.setattr("learning.models.pretrained.urlopen", Mock())
    monkeypatch.setattr("torch.hub.download_url_to_file", download)
    for _ in range(2):
        network = colour("resnet18").blank()
        load_pretrained(network, colour("resnet18"), "imagenet")
        assert torch.equal(network.conv1.weight, torch.load(resnet18)["conv1.weight"])
    assert downloads == [("https://download.pytorch.org/models/resnet18-f37072fd.pth", "f37072fd")]


@pytest.mark.parametrize("damaged", [False, True])
def test_imagenet_weights_that_cannot_be_had_say_where_they_belong(cached, damaged, monkeypatch):
    def no_network(*_, timeout):
        raise URLError("no network")

    monkeypatch.setattr("learning.models.pretrained.urlopen", no_network)
    if damaged:
        cached.parent.mkdir(parents=True)
        cached.write_text("hello")
    where = re.escape(f"can neither be read from '{cached}' nor downloaded from https://download")
    reason = r"\(\w+\)" if damaged else r"\(URLError\)"
    with pytest.raises(ModelError, match=f"{where}.* {reason}: put that file there, .* or set"):
        load_pretrained(colour("resnet18").blank(), colour("resnet18"), "imagenet")


NEEDS_TIMM = (
    pytest.mark.extra,
    pytest.mark.skipif(not find_spec("timm"), reason="needs the extra timm"),
)


@pytest.mark.parametrize("name", ["resnet18", pytest.param("timm:gcvit_xtiny", marks=NEEDS_TIMM)])
def test_a_silent_server_of_weights_is_not_waited_for(name, cached, monkeypatch):
    monkeypatch.setattr("learning.models.pretrained.NETWORK_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/weights.pth"
        published = SimpleNamespace(url=url, has_weights=True, hf_hub_id=None)
        for place in ("published_weights", "timm_config"):
            monkeypatch.setattr(f"learning.models.pretrained.{place}", lambda _: published)
        with pytest.raises(ModelError, match=r"weights\.pth.* set 'pretrained' to") as error:
            load_pretrained(nn.Identity(), colour(name), "imagenet")
    assert isinstance(error.value.__cause__, TimeoutError)


@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), AssertionError()])
def test_a_network_that_cannot_be_built_is_refused_whatever_the_library_raises(error, monkeypatch):
    def fail(blueprint):
        raise error

    monkeypatch.setitem(MODELS, "cnn", fail)
    for step in (Architecture.blank, layout, activations):
        with pytest.raises(
            ModelError, match=r"cannot take 1x9x9 images: (division|AssertionError)"
        ):
            step(Architecture("cnn", 1, 9, 9, 2))
