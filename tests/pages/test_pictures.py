"""Strips of images, of a hospital's own and of those that came."""

from base64 import b64decode
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from flwr.app import Array, ArrayRecord, RecordDict

from learning.packing import pack_buffer
from learning.samples import Samples
from pages.pictures import CLASSES, GAP, SHOWN, SIDE, strip, strips_by_class, strips_of_column
from server_app.report.pictures import HOSPITALS, pictures
from tests.server_app.fake_runs import handed_on_with_images


def pixels_of(strip):
    with PIL.Image.open(BytesIO(b64decode(strip.source.partition(",")[2]))) as picture:
        return np.array(picture.convert("L"))


@pytest.mark.parametrize(("side", "shown"), [(8, 80), (43, 86), (60, 60), (256, SIDE)])
def test_images_are_of_a_size_that_people_can_see(side, shown):
    picture = pixels_of(strip("a", [np.full((1, side, side), 200, np.uint8)] * (SHOWN + 1)))
    assert picture.shape == (shown, SHOWN * (shown + GAP))
    assert (picture[:, :shown] == 200).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_a_buffer_is_shown_by_class(channels):
    """Images of class k are all k + 1; those of class 1 are the second, the fourth, and so on."""
    labels = torch.arange(40) % 2
    images = (labels + 1).to(torch.uint8).view(-1, 1, 1, 1).expand(40, channels, 8, 8)
    record = pack_buffer(Samples(images, labels), "00" * 32)
    png, marks = (record[name].numpy() for name in ("images", "labels"))
    shown = strips_of_column(png.tobytes(), marks, ["a", "b"])
    assert [each.name for each in shown] == ["a", "b"]
    assert [pixels_of(each)[0, 0] for each in shown] == [1, 2]
    whole = strips_by_class(images.numpy(), labels.numpy(), ["a", "b"])
    assert [each.source for each in shown] == [each.source for each in whole]


def test_of_many_classes_the_first_are_shown():
    images, labels = np.zeros((100, 1, 8, 8), np.uint8), np.arange(100)
    assert len(strips_by_class(images, labels, [str(k) for k in range(100)])) == CLASSES


def column(height, width=8):
    file = BytesIO()
    PIL.Image.new("L", (width, height)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("png", "labels"),
    [
        (b"no picture", np.zeros(4, np.int64)),
        (column(33), np.zeros(4, np.int64)),
        (column(32), np.zeros(0, np.int64)),
        (column(32)[:45], np.zeros(4, np.int64)),
        (column(32), np.zeros((4, 2), np.int64)),
    ],
)
def test_what_is_no_buffer_is_not_shown(png, labels):
    assert strips_of_column(png, labels, ["a"]) == []


def state(**buffers: ArrayRecord) -> Any:
    shelf = {name: RecordDict({"buffer": record}) for name, record in buffers.items()}
    return SimpleNamespace(
        classes=["a"],
        buffers={name: name for name in buffers},
        shelf=SimpleNamespace(get=shelf.get),
    )


def test_the_report_shows_what_came_and_nothing_that_is_sealed():
    images = Samples(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64))
    sealed = ArrayRecord({"sealed": Array(np.zeros(9, np.uint8))})
    found = pictures(state(graz=pack_buffer(images, "00" * 32), wien=sealed))
    assert {name: [each.name for each in strips] for name, strips in found.items()} == {
        "graz": ["a"]
    }
    run = handed_on_with_images()
    assert "data:image/png" in run.page(found)
    assert "data:image/png" not in run.page({})


def test_of_many_hospitals_the_first_are_shown():
    images = Samples(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
    record = pack_buffer(images, "00" * 32)
    assert len(pictures(state(**{f"h{k}": record for k in range(HOSPITALS + 3)}))) == HOSPITALS
