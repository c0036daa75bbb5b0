"""The two forms of a NumPy archive, and whatever else may be in a file."""

import re

import numpy as np
import pytest

from client_app.datasets.npz import load_npz
from client_app.errors import DataError

GREY = np.arange(5 * 2 * 3, dtype=np.uint8).reshape(5, 2, 3)  # [N, H, W]
LABELS = np.array([0, 1, 2, 1, 0], dtype=np.uint8)
ONE_SET = {"x_train": GREY[:3], "y_train": LABELS[:3], "x_test": GREY[3:], "y_test": LABELS[3:]}


@pytest.fixture
def save(tmp_path):
    def write(**arrays):
        np.savez(tmp_path / "images.npz", **arrays)
        return str(tmp_path / "images.npz")

    return write


def test_one_set_becomes_one_pool_that_says_what_was_its_test_set(save):
    pool = load_npz(save(**ONE_SET))

    assert np.array_equal(pool.images, GREY[:, None])
    assert pool.labels.tolist() == LABELS.tolist()
    assert pool.classes == ("0", "1", "2")
    assert pool.sites is None
    assert pool.held_out is not None
    assert pool.held_out.tolist() == [False, False, False, True, True]
    assert not pool.always_held_out


def test_a_set_without_test_images_is_read(save):
    large = np.zeros((3, 28, 28), np.uint8)  # more pixels than the file of an empty array has bytes
    pool = load_npz(save(x_train=large, y_train=[0, 1, 0], x_test=large[:0], y_test=LABELS[:0]))

    assert pool.held_out is not None
    assert pool.held_out.tolist() == [False] * 3


def test_an_archive_without_images_is_refused(save):
    """A learner that trains on public images asked for their largest label."""
    with pytest.raises(DataError, match="holds no image"):
        load_npz(save(**{name: array[:0] for name, array in ONE_SET.items()}))


def test_sets_per_hospital_say_site_and_test_set(save):
    """Hospital 0 trains on 2 images and tests on 1, hospital 1 on 1 and 1."""
    bounds = {"train_{}_0": (0, 2), "test_{}_0": (2, 3), "train_{}_1": (3, 4), "test_{}_1": (4, 5)}
    sets = {name.format("x"): GREY[slice(*b)] for name, b in bounds.items()}
    sets |= {name.format("y"): LABELS[slice(*b)] for name, b in bounds.items()}
    pool = load_npz(save(**sets))

    assert np.array_equal(pool.images, GREY[:, None])
    assert pool.labels.tolist() == LABELS.tolist()
    assert pool.sites is not None
    assert pool.sites.tolist() == [0, 0, 0, 1, 1]
    assert pool.held_out is not None
    assert pool.held_out.tolist() == [False, False, True, False, True]
    assert pool.always_held_out


def test_channels_come_first(save):
    colour = np.stack([GREY, GREY + 100, GREY + 200], axis=-1)  # [N, H, W, C]
    pool = load_npz(save(**ONE_SET | {"x_train": colour[:3], "x_test": colour[3:]}))

    assert np.array_equal(pool.images, np.stack([GREY, GREY + 100, GREY + 200], axis=1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": GREY[:3] / 255}, r"must be uint8.* 'x_train' is float64 \[3, 2, 3\]\."),
        ({"x_train": GREY[:3, :0]}, r"H and W above 0.* is uint8 \[3, 0, 3\]\."),
        ({"x_train": GREY[:3, :, :, None][..., [0, 0]]}, r"1 or 3 .* is uint8 \[3, 2, 3, 2\]\."),
        ({"x_test": GREY[3]}, r"'x_test' is uint8 \[2, 3\]"),
        ({"x_test": GREY[3:, :1]}, "differ in size or channels"),
        ({"y_test": LABELS[:1]}, r"'y_test' is uint8 \[1\], with 2 images in 'x_test'"),
        ({"y_train": LABELS[:3] / 2}, "whole numbers.* 'y_train' is float64"),
        ({"y_train": np.array([-1, 1, 2])}, "There are labels of no class"),
        ({"y_train": np.array([0, 10**9, 2])}, "There are labels of no class"),
        ({"y_train": np.array([0, 4, 2])}, "No image has the class '3'"),
        ({"more": LABELS}, "either .*x_train, .* or train_x_i.* It holds more, x_test"),
    ],
)
def test_arrays_that_do_not_fit(change, message, save):
    file = save(**ONE_SET | change)
    with pytest.raises(DataError) as error:
        load_npz(file)
    assert re.search(message, error.value.explain())
    # Neither a shape of the hospital's arrays nor a name or a label of its own leaves.
    leaves = str(error.value).replace(file, "")
    assert not re.search(r"\[\d|more|'|\d\d", leaves.replace("''", ""))


@pytest.mark.parametrize("keys", [[], ["x"], ["train_x_0", "train_y_0", "test_x_0", "test_y_1"]])
def test_other_keys_are_named(keys, save):
    with pytest.raises(DataError) as error:
        load_npz(save(**dict.fromkeys(keys, LABELS)))
    assert error.value.own == f"It holds {', '.join(sorted(keys)) or 'none'}."


def test_files_that_are_no_archives(tmp_path):
    with pytest.raises(DataError, match=r"'images\.npz' .* must be an absolute path"):
        load_npz("images.npz")
    with pytest.raises(DataError, match=r"There is no file '.*missing"):
        load_npz(str(tmp_path / "missing"))

    np.save(tmp_path / "array.npy", GREY)
    np.savez(tmp_path / "pickle.npz", x_train=np.array([{}]))
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("image, label")
    (tmp_path / "damaged").write_bytes((tmp_path / "pickle.npz").read_bytes()[:60])
    for name in ("array.npy", "pickle.npz", "empty", "text", "damaged"):
        with pytest.raises(DataError, match=rf"{name}' cannot be read .* numpy\.savez"):
            load_npz(str(tmp_path / name))
