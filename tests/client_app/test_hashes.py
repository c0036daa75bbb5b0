"""Hashes of a hospital's images, which it tells the server."""

from dataclasses import replace

import pytest
import torch

from client_app.datasets import LocalData
from client_app.datasets.pool import LocalSamples
from strategies.protocol.may_leave import CARD


@pytest.fixture
def data():
    pixels = torch.arange(6 * 4, dtype=torch.uint8).reshape(6, 1, 2, 2)
    train = LocalSamples(pixels, torch.tensor([0, 1, 0, 1]), torch.tensor([0, 1, 2, 3]))
    test = LocalSamples(pixels, torch.tensor([0, 1]), torch.tensor([4, 5]))
    return LocalData(train, test, ("a", "b"))


def test_the_same_images_have_the_same_hash_in_any_order(data):
    train = data.train
    turned = LocalSamples(train.pixels, train.labels.flip(0), train.rows.flip(0))
    assert replace(data, train=turned).hashes(b"") == data.hashes(b"")


@pytest.mark.parametrize("what", ["an image", "a class", "a name"])
def test_other_images_or_classes_have_another(what, data):
    train, classes = data.train, data.classes
    if what == "an image":
        train = replace(train, rows=torch.tensor([0, 1, 2, 5]))
    elif what == "a class":
        train = replace(train, labels=torch.tensor([0, 1, 0, 0]))
    else:
        classes = ("a", "c")
    other = replace(data, train=train, classes=classes).hashes(b"")
    assert other["train-images"] != data.hashes(b"")["train-images"]
    assert (other["test-images"] == data.hashes(b"")["test-images"]) == (what != "a name")


def test_files_count_and_not_their_form(data):
    """Files of the same content, which were brought to another size."""
    files = replace(data.train, contents=list("wxyz"))
    larger = replace(files, pixels=torch.zeros(6, 1, 9, 9, dtype=torch.uint8), rows=None)
    assert replace(data, train=larger).hashes(b"") == replace(data, train=files).hashes(b"")
    assert replace(data, train=files).hashes(b"") != data.hashes(b"")


def test_with_a_secret_nobody_can_try_images(data):
    """Two hospitals with the same images have other hashes; each always has the same."""
    here, there = data.hashes(b"graz"), data.hashes(b"linz")
    assert {*here.values()}.isdisjoint({*there.values(), *data.hashes(b"").values()})
    assert here == data.hashes(b"graz")
    assert here["train-images"].startswith("keyed-")
    for each in (*here.values(), *data.hashes(b"").values()):
        assert CARD["train-images"](each)


@pytest.mark.parametrize(
    ("field", "value", "leaves"),
    [
        ("data", "folder of DICOM files", True),
        ("data", "/home/graz/images", False),
        ("train-images", "keyed-" + "0" * 16, True),
        ("train-images", "Maria Huber", False),
        ("own-settings", ["train.batch-size=8", "pretrained=a file of its own"], True),
        ("own-settings", ["data-dir=/home/graz"], False),
        ("own-settings", "model=cnn", False),
        ("own-settings", ["model=cnn"] * 1_000_000, False),
    ],
)
def test_no_path_and_no_name_leaves_with_them(field, value, leaves):
    assert CARD[field](value) == leaves
