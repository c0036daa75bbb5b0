import json
import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import torch
from safetensors.torch import load_file, save_file

from client_app.datasets.library import prepare
from client_app.datasets.resize import Form
from learning.errors import ModelError
from learning.evaluation import probabilities
from learning.export import (
    ENTRY,
    ModelManifest,
    load_model,
    read_manifest,
    save_model,
    save_onnx,
)
from learning.model_card import model_card
from learning.models import Architecture
from learning.models.preprocessing import have_unit_features
from learning.models.pretrained import load_pretrained
from strategies.protocol.parcel import Manifest
from strategies.protocol.records import ParcelError
from tests.fakes import settings

CLASSES = ["naevus", "melanoma", "other"]


def architecture(name="cnn", **changes):
    return replace(Architecture(name, 1, 16, 16, 3, (8,), "symmetric"), **changes)


def manifest_of(blueprint, **changes):
    label = Manifest(
        "graz",
        blueprint.to_json(),
        CLASSES,
        round=2,
        hop=1,
        epochs=3,
        visited=["graz", "linz", "graz"],
        hashes=["model=abc"],
    )
    chosen = settings(image_size=16, image_fit="pad", strategy="rwt")
    images: dict[str, dict[str, float]] = {
        "graz": {"train": 30, "test": 9, "train/naevus": 30, "test/naevus": 9}
    }
    images["graz"] |= {"train/melanoma": 0, "test/melanoma": 0}
    told = {"num-examples": 9, "accuracy": 2 / 3, "accuracy-low": 0.354, "accuracy-high": 0.879}
    of_class = {"images-of-class-1": 4, "recall-of-class-1": 0.0, "specificity-of-class-1": 0.75}
    tested = {"graz": {**told, "auroc": 0.5, **of_class}}
    return replace(ModelManifest.from_label(label, chosen, "run-1", images, tested), **changes)


@pytest.fixture
def saved(tmp_path):
    """A file, and the network in it, whose BatchNorm has seen something."""
    network = architecture().build()
    network(torch.randint(0, 256, (8, 1, 16, 16), dtype=torch.uint8))
    save_model(tmp_path / "m.safetensors", network, manifest_of(architecture()))
    return tmp_path / "m.safetensors", network


def test_a_model_comes_back_as_it_was(saved):
    path, network = saved
    loaded, manifest = load_model(path)
    state = network.state_dict()
    assert loaded.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in loaded.state_dict().items())
    assert manifest == replace(manifest_of(architecture()), date=manifest.date)
    assert read_manifest(path) == manifest
    assert load_file(path).keys() == state.keys()  # any tool of the format reads the weights
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.pop("classes"),
        lambda values: values.update(more=1),
        lambda values: values.update(format=2),
        lambda values: values.update(visited="graz"),
        lambda values: values.update(visited=[1]),
        lambda values: values.update(round="2"),
        lambda values: values.update(tested={"graz": 1}),
        lambda values: values.update(tested={"graz": {"accuracy": "high"}}),
        lambda values: values["settings"].pop("image-fit"),
        lambda values: values["settings"].update(seed=[1]),
    ],
)
def test_another_manifest_is_refused(change):
    values = json.loads(manifest_of(architecture()).to_json())
    change(values)
    with pytest.raises(ModelError, match="is not one of format 1"):
        ModelManifest.from_json(json.dumps(values))


@pytest.mark.parametrize("text", ["", "[]", "7", '"a"', "[" * 100_000])
def test_what_is_no_manifest_is_refused(text):
    with pytest.raises(ModelError, match="is not one of format 1"):
        ModelManifest.from_json(text)


def test_other_files_are_refused(saved, tmp_path):
    path, network = saved
    (tmp_path / "cut").write_bytes(path.read_bytes()[:-1])
    save_file(network.state_dict(), tmp_path / "bare")
    next(network.parameters()).data.view(-1)[3] = torch.nan  # every prediction would be class 0
    save_model(tmp_path / "nan", network, manifest_of(architecture()))
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    for name, reason in (
        (
            "pipe",
            r"cannot be read as a safetensors file \(This is a pipe or a device, and not a file\)",
        ),
        ("cut", r"cannot be read as a safetensors file \(SafetensorError\)"),
        ("none", r"cannot be read as a safetensors file \(No such file or directory\)"),
        ("bare", "has no manifest"),
        ("nan", "The model of lineage 'graz' has weights that are not finite numbers"),
    ):
        with pytest.raises(ModelError, match=reason):
            load_model(tmp_path / name)


def test_weights_of_another_network_are_refused_before_it_is_built(saved, monkeypatch):
    """A file of a few bytes could name a network of many gigabytes."""
    path, network = saved
    huge = architecture("mlp", hidden=(10**6, 10**6))
    save_model(path, network, manifest_of(huge))
    with pytest.raises(ParcelError, match="The model of lineage 'graz' has the unknown array"):
        load_model(path)
    text = {ENTRY: manifest_of(architecture(classes=4)).to_json()}
    save_file(network.state_dict(), path, text)
    with pytest.raises(ModelError, match="4 outputs and 3 classes"):
        load_model(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "pixels"), [("cnn", "per-image"), ("mlp", "unit"), ("resnet18", "imagenet")]
)
def test_onnx_computes_what_torch_does(name, pixels, tmp_path):
    """For any number of images; the manifest is in the file."""
    pytest.importorskip("onnxscript", reason="needs the extra onnx")
    runtime = pytest.importorskip("onnxruntime")
    channels = 3 if pixels == "imagenet" else 1
    blueprint = architecture(name, pixels=pixels, channels=channels)
    network = blueprint.build()
    network(torch.randint(0, 256, (8, channels, 16, 16), dtype=torch.uint8))
    manifest = manifest_of(blueprint)
    save_onnx(tmp_path / "m.onnx", network, manifest)
    session = runtime.InferenceSession(tmp_path / "m.onnx")
    for count in (1, 5):
        images = torch.randint(0, 256, (count, channels, 16, 16), dtype=torch.uint8)
        (found,) = session.run(["probabilities"], {"images": images.numpy()})
        expected = probabilities(network, images, 1e12)
        np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-5)
    assert session.get_modelmeta().custom_metadata_map[ENTRY] == manifest.to_json()


@pytest.mark.slow
def test_images_that_are_resized_as_the_card_says_get_the_same_answers(tmp_path):
    """By Pillow alone, without torch; by another interpolation some answers are others."""
    pytest.importorskip("onnxscript", reason="needs the extra onnx")
    runtime = pytest.importorskip("onnxruntime")
    network = architecture().build().eval()
    manifest = manifest_of(architecture())
    assert "BILINEAR" in model_card(manifest)
    save_onnx(tmp_path / "m.onnx", network, manifest)
    session = runtime.InferenceSession(tmp_path / "m.onnx")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 47, 61), dtype=np.uint8)
    ours = Form(16, "squash", 0).apply(torch.from_numpy(images)[:, None])
    expected = probabilities(network, ours, math.inf).numpy()

    def apart(how):
        resized = [np.array(PIL.Image.fromarray(each).resize((16, 16), how)) for each in images]
        said = session.run(None, {"images": np.stack(resized)[:, None]})[0]
        return np.abs(said - expected).max()

    assert apart(PIL.Image.Resampling.BILINEAR) < 0.1 * apart(PIL.Image.Resampling.BICUBIC)


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1)])
@pytest.mark.parametrize(("kind", "shape"), [("png", (47, 61, 3)), ("jpg", (470, 610, 3))])
def test_the_code_of_the_page_prepares_a_turned_photograph_as_predict_does(
    kind, shape, mode, channels, tmp_path
):
    """A JPEG of many times the size is decoded at a part of its size, which changes its bytes."""
    page = (Path(__file__).parents[2] / "docs" / "using-a-model.md").read_text("utf-8")
    code = page.split("prepare them so:")[1].split("```")[1].removeprefix("python")
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    exif, file = PIL.Image.Exif(), tmp_path / f"a.{kind}"
    exif[0x0112] = 6  # the camera was held upright
    PIL.Image.fromarray(pixels).convert(mode).save(file, exif=exif)
    session = SimpleNamespace(run=lambda _, named: [named["images"]])
    names = {"Image": PIL.Image, "ImageOps": PIL.ImageOps, "np": np, "session": session}
    names |= {"file": file, "width": 16, "height": 16}
    exec(code.replace("RGB", mode), names)
    ours = prepare(file.read_bytes(), None, Form(16, "squash", 0), (channels, 16, 16))
    found = np.asarray(names["probabilities"])
    assert found.shape == (1, channels, 16, 16)
    np.testing.assert_allclose(found[0].astype(int), ours.numpy(), atol=1)


def test_without_the_extra_onnx_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("learning.export.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="uv sync --inexact --extra onnx"):
        save_onnx(tmp_path / "m.onnx", architecture().build(), manifest_of(architecture()))


def test_the_card_says_what_is_known_and_what_is_not():
    card = model_card(manifest_of(architecture()))
    assert "Visits: graz 2, linz 1. Route: graz → linz → graz." in card
    assert "It was trained on no synthetic images." in card
    assert "| graz | naevus | 30 | 9 |" in card
    assert "Not known here: the images of linz." in card
    assert "graz tested it on few images, or none, of: melanoma, other." in card
    assert "not a medical device" in card
    assert "| graz | 9 |  |  | 0.667 (0.354 to 0.879) | 0.500 |" in card
    assert "| graz | melanoma | 4 | 0.000 |  | 0.750 |" in card
    assert "At graz it found **no image** of: melanoma." in card
    manifest = json.loads(card.split("```json\n")[1].split("```")[0])
    assert ModelManifest.from_json(json.dumps(manifest)) == ModelManifest(**manifest)
    bare = model_card(manifest_of(architecture(), images={}, tested={}))
    assert "The hospitals' numbers of images are not known here." in bare
    assert "No figures are known here." in bare


ALL_WITH_INTERVALS = "Intervals are of 95 %, over patients, or over images if none are named."


@pytest.mark.parametrize(
    ("figures", "shown", "said"),
    [
        (
            {"accuracy": 0.7, "accuracy-low": 0.6, "accuracy-high": 0.8},
            "| 0.700 (0.600 to 0.800) |",
            f"{ALL_WITH_INTERVALS}\n",
        ),
        (
            {"accuracy": 0.7, "accuracy-low": 0.6, "accuracy-high": 0.8, "auroc": 0.7},
            "| 0.700 (0.600 to 0.800) | 0.700 |",
            f"{ALL_WITH_INTERVALS} Some figures have none.\n",
        ),
        ({"accuracy": 0.7}, "| 0.700 |", "The figures have no interval.\n"),
        (
            {"accuracy": 0.7, "accuracy-noise": 0.05},
            "| 0.700 (noise ±0.098) |",
            "The figures have no interval. Figures of graz are those that left the hospital: with",
        ),
    ],
)
def test_the_card_says_which_figures_have_an_interval(figures, shown, said):
    card = model_card(manifest_of(architecture(), tested={"graz": figures}))
    assert shown in card
    assert said in card


def test_the_card_says_what_a_model_has_seen_and_nothing_else():
    """Wien tested it; of graz's images it saw synthetic ones, in two of the visits of linz."""
    seen = {"train": 735, "test": 80, "train/naevus": 735}
    images = {name: dict(seen) for name in ("linz", "wien")}
    changes = {"visited": ["linz"] * 3, "replayed": ["1=graz", "3=graz"], "images": images}
    card = model_card(manifest_of(architecture(), **changes))
    assert "| linz | all | 735 | 80 |" in card
    assert "| wien | all | none | 80 |" in card
    assert "| wien | naevus | none |" in card
    assert "It was also trained on synthetic images: of graz in 2 visits." in card
    card = model_card(
        manifest_of(architecture(), **changes, not_own=["1=none", "2=none", "3=none"])
    )
    assert "| linz | all | none | 80 |" in card
    assert "At 3 of these visits it was trained on synthetic images alone" in card
    card = model_card(manifest_of(architecture(), **changes, not_own=["2=everyone"]))
    assert "| wien | all | 735 | 80 |" in card


def test_the_card_of_sums_says_that_nothing_was_trained():
    manifest = manifest_of(architecture(frozen="0" * 64))
    assert "In its last visit it was trained for 3 epochs." in model_card(manifest)
    sums = replace(manifest, settings={**manifest.settings, "strategy": "sums"})
    assert "Nothing was trained: it follows from sums of features" in model_card(sums)
    assert "In its last visit" not in model_card(sums)


def test_the_card_says_of_no_other_hospital_that_it_tested_the_model():
    images = {"graz": {"test/naevus": 9}, "linz": {"test/naevus": 9}}
    card = model_card(manifest_of(architecture(), images=images))
    assert "Hospitals whose tests are known here: graz. " in card
    assert "graz tested it on few images, or none, of: melanoma, other." in card
    assert "linz tested it" not in card


def test_a_file_of_an_older_version_is_read():
    manifest = manifest_of(architecture())
    whole = json.loads(manifest.to_json())
    del whole["replayed"], whole["resized"], whole["not_own"]
    assert ModelManifest.from_json(json.dumps(whole)) == manifest


def test_names_from_outside_are_shown_as_they_are():
    strange = "<img src=x>\n# a|b`c```"
    card = model_card(manifest_of(architecture(), classes=[strange, "b", "c"], lineage=strange))
    assert "<img" not in card.split("```json")[0].replace("\\<img", "")
    assert "\n# a" not in card
    assert card.count("```") == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18"])
@pytest.mark.parametrize("same", [True, False])
def test_any_network_starts_from_an_exported_model(name, same, tmp_path):
    """With the head too, if the classes are the same."""
    trained = architecture(name).build()
    save_model(tmp_path / "m.safetensors", trained, manifest_of(architecture(name)))
    network = architecture(name).build()
    fresh = {entry: value.clone() for entry, value in network.state_dict().items()}
    classes = CLASSES if same else ["a", "b", "c"]
    load_pretrained(network, architecture(name), str(tmp_path / "m.safetensors"), classes)
    state, expected = network.state_dict(), trained.state_dict()
    head = set(list(state)[-2:])  # weight and bias of the last layer
    for entry, value in state.items():
        assert torch.equal(value, (fresh if entry in head and not same else expected)[entry])


@pytest.mark.parametrize("facts", [{"frozen": "0" * 64}, {"unit_features": True}])
def test_a_network_starts_from_an_exported_one_that_was_frozen(facts, tmp_path):
    """Its last layer sees features of length 1, too."""
    exported = architecture(**facts)
    trained = exported.build().eval()
    save_model(tmp_path / "m.safetensors", trained, manifest_of(exported))
    assert "divided by their Euclidean length" in model_card(manifest_of(exported))
    ours = architecture(unit_features=have_unit_features(str(tmp_path / "m.safetensors")))
    network = ours.build().eval()
    load_pretrained(network, ours, str(tmp_path / "m.safetensors"), CLASSES)
    images = torch.randint(256, (5, *ours.image_shape), dtype=torch.uint8)
    with torch.no_grad():
        assert torch.equal(network(images), trained(images))
        bare = architecture().build().eval()
        bare.load_state_dict(network.state_dict())
        assert not torch.allclose(bare(images), trained(images))


def test_other_sizes_fit_where_weights_do_not_depend_on_them(tmp_path):
    save_model(tmp_path / "m.safetensors", architecture().build(), manifest_of(architecture()))
    larger = architecture(height=32, width=32)
    load_pretrained(larger.build(), larger, str(tmp_path / "m.safetensors"), CLASSES)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "mlp"}, "its name is 'cnn', here it is 'mlp'"),
        ({"channels": 3}, "its channels is 1, here it is 3"),
        ({"pixels": "unit"}, "its pixels is 'symmetric', here it is 'unit'"),
    ],
)
def test_what_does_not_fit_is_named(changes, reason, tmp_path):
    save_model(tmp_path / "m.safetensors", architecture().build(), manifest_of(architecture()))
    other = architecture(**changes)
    with pytest.raises(ModelError, match=reason) as error:
        load_pretrained(other.build(), other, str(tmp_path / "m.safetensors"), CLASSES)
    assert str(tmp_path) not in str(error.value)


def test_other_widths_and_sizes_of_an_mlp_are_named(tmp_path):
    mlp = architecture("mlp")
    save_model(tmp_path / "m.safetensors", mlp.build(), manifest_of(mlp))
    for changes in ({"hidden": (9,)}, {"height": 8}):
        other = architecture("mlp", **changes)
        with pytest.raises(ModelError, match=r"does not fit .*: size mismatch for 1\.weight"):
            load_pretrained(other.build(), other, str(tmp_path / "m.safetensors"), CLASSES)


def test_a_file_that_is_no_exported_model_is_refused(tmp_path):
    (tmp_path / "m.safetensors").write_text("hello")
    with pytest.raises(ModelError, match="'pretrained' names no exported model") as error:
        load_pretrained(architecture().build(), architecture(), f"{tmp_path}/m.safetensors")
    assert str(tmp_path) not in str(error.value)
