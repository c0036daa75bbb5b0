"""Data sets in the forms of the Hugging Face hub, written to a folder; the hub is out of reach."""

import re
from typing import Any

import datasets
import numpy as np
import PIL.Image
import pytest

from client_app.datasets.hub import load_hub
from client_app.datasets.resize import Form
from client_app.errors import DataError


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def picture(value: Any = 7, size: tuple[int, int] = (3, 2), mode: str = "L") -> PIL.Image.Image:
    """An image of one value, of (width, height) pixels."""
    return PIL.Image.new(mode, size, value)


def save(folder, split="train", kinds=None, **columns):
    kinds = {"image": datasets.Image()} | (kinds or {})
    table = datasets.Dataset.from_dict(columns)
    for name, kind in kinds.items():
        table = table.cast_column(name, kind)
    table.to_parquet(folder / f"{split}.parquet")


def test_a_folder_of_classes(folder):
    for name, value in (("benign", 10), ("malignant", 20)):
        (folder / name).mkdir()
        picture(value).save(folder / name / "1.png")
    pool = load_hub(str(folder), Form())

    assert pool.images.shape == (2, 1, 2, 3)
    assert pool.images[:, 0, 0, 0].tolist() == [10, 20]
    assert pool.labels.tolist() == [0, 1]
    assert pool.classes == ("benign", "malignant")
    assert pool.sites is None
    assert pool.held_out is None


def test_splits_come_in_the_order_train_test_others(folder):
    for split, value, label in (("validation", 3, 0), ("test", 2, 1), ("train", 1, 0)):
        save(folder, split, image=[picture(value)], label=[label])
    pool = load_hub(str(folder), Form())

    assert pool.images[:, 0, 0, 0].tolist() == [1, 2, 3]
    assert pool.labels.tolist() == [0, 1, 0]
    assert pool.classes == ("0", "1")
    assert pool.held_out is not None
    assert pool.held_out.tolist() == [False, True, False]
    assert not pool.always_held_out


def test_columns_are_found_by_their_kind_and_sites_by_their_name(folder):
    """The sites are numbered in the order of their classes: Rome 0, Bonn 1."""
    kinds = {
        "site": datasets.ClassLabel(names=["Rome", "Bonn"]),
        "finding": datasets.ClassLabel(names=["none", "some"]),
    }
    save(folder, kinds=kinds, site=[1, 0], image=[picture(), picture()], finding=[1, 0])
    pool = load_hub(str(folder), Form())

    assert pool.labels.tolist() == [1, 0]
    assert pool.classes == ("none", "some")
    assert pool.sites is not None
    assert pool.sites.tolist() == [1, 0]


def test_columns_called_image_and_label_go_before_others(folder):
    """Otherwise a run would learn the sex of masks."""
    kinds = {
        "mask": datasets.Image(),
        "sex": datasets.ClassLabel(names=["f", "m"]),
        "label": datasets.ClassLabel(names=["MEL", "NV"]),
    }
    masks, pictures = [picture(0)] * 2, [picture(7)] * 2
    save(folder, kinds=kinds, mask=masks, sex=[0, 1], image=pictures, label=[1, 0])
    pool = load_hub(str(folder), Form())

    assert pool.images[:, 0, 0, 0].tolist() == [7, 7]
    assert [pool.classes[label] for label in pool.labels] == ["NV", "MEL"]


def test_centres_are_sites_too_and_no_classes(folder):
    """As in flwrlabs/fed-isic2019."""
    kinds = {
        "image": datasets.Image(),
        "center": datasets.ClassLabel(num_classes=6),
        "label": datasets.ClassLabel(names=["MEL", "NV"]),
    }
    save(folder, kinds=kinds, image=[picture()] * 3, center=[4, 0, 4], label=[0, 1, 1])
    pool = load_hub(str(folder), Form())
    assert pool.sites is not None
    assert pool.sites.tolist() == [1, 0, 1]
    assert pool.classes == ("MEL", "NV")
    assert pool.labels.tolist() == [0, 1, 1]


def test_sites_may_be_words(folder):
    save(folder, image=[picture()] * 3, label=[0, 0, 0], site=["Rome", "Bonn", "Rome"])
    pool = load_hub(str(folder), Form())

    assert pool.sites is not None
    assert pool.sites.tolist() == [1, 0, 1]


def test_grey_among_colour_gets_three_channels(folder):
    red = picture((9, 0, 0), mode="RGB")
    transparent = picture((1, 2, 3, 0), mode="RGBA")
    save(folder, image=[picture(7), red, transparent], label=[0, 0, 0])
    pool = load_hub(str(folder), Form())

    assert pool.images.shape == (3, 3, 2, 3)
    assert pool.images[:, :, 0, 0].tolist() == [[7, 7, 7], [9, 0, 0], [1, 2, 3]]


def test_images_of_different_sizes_need_an_image_size(folder):
    save(folder, image=[picture(7), picture(8, size=(5, 4))], label=[0, 0])

    with pytest.raises(DataError, match=r"differ in size: .*'image-size'"):
        load_hub(str(folder), Form())
    pool = load_hub(str(folder), Form(6))
    assert pool.images.shape == (2, 1, 6, 6)
    assert np.array_equal(pool.images[:, 0, 0, 0], [7, 8])


def test_images_are_brought_to_a_form_as_they_are_decoded(folder):
    """3 columns by 2 rows stay as they are; of 8 by 4 become 4 by 2: one black row on each side."""
    save(folder, image=[picture(7), picture(8, size=(8, 4))], label=[0, 0])
    images = load_hub(str(folder), Form(4, "pad", 3)).images

    assert images.shape == (2, 3, 4, 4)
    assert images[:, 2, 1].tolist() == [[7, 7, 7, 0], [8, 8, 8, 8]]
    assert images[:, :, [0, 3]].sum() == 0


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": [picture()], "grade": [0]}, "must have .* It has the columns image, grade"),
        ({"image": [picture()], "label": [0.5]}, "a whole number everywhere.* It is 'label'"),
        ({"image": [picture(), picture()], "label": [0, None]}, "a whole number everywhere"),
        ({"image": [picture(), picture()], "label": [0, -1]}, "There are labels of no class"),
        ({"image": [picture(), None], "label": [0, 0]}, r"Image 1, .* is not there\."),
        ({"image": [picture()], "label": [0], "site": [None]}, "'site' .* is empty for some"),
    ],
)
def test_columns_that_do_not_fit(columns, message, folder):
    save(folder, **columns)

    with pytest.raises(DataError) as error:
        load_hub(str(folder), Form())
    assert re.search(message, error.value.explain())
    assert not re.search("grade|[1-9]", str(error.value).replace(str(folder), ""))


def test_a_broken_file_is_not_named(folder):
    for name in ("benign", "malignant"):
        (folder / name).mkdir()
        (folder / name / "patient-7.png").write_text("not an image")

    with pytest.raises(DataError, match=r"^An image of '[^']+' cannot be used; [^0-9]*$") as error:
        load_hub(str(folder), Form())
    assert error.value.own.startswith("Image 0, counted from 0, is not an image file")
    assert "patient" not in error.value.explain()


def test_a_strip_is_cropped(folder):
    save(folder, image=[picture(), picture(size=(650, 1))], label=[0, 0])
    assert load_hub(str(folder), Form(2, "crop")).images.shape == (2, 1, 2, 2)


def test_what_is_not_there(folder):
    with pytest.raises(DataError, match="There is no folder '/no/such/folder'"):
        load_hub("/no/such/folder", Form())
    with pytest.raises(DataError, match=r"data' cannot be read as a data set \(EmptyDatasetError"):
        load_hub(str(folder), Form())
    with pytest.raises(DataError, match=r"hub cannot be reached .* hf:<absolute folder> or npz:"):
        load_hub("ylecun/mnist", Form())
