"""Libraries of images of a few pixels, changed and killed in every way."""

import errno
import hashlib
import io
import logging
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from client_app.datasets import files, library
from client_app.datasets.files import read_header, read_pixels
from client_app.datasets.image import Header, UnusableImage
from client_app.datasets.library import DecodedImages, open_library
from client_app.datasets.listing import Entry
from client_app.datasets.resize import Form
from client_app.errors import DataError
from strategies.protocol import console

ROOT = Path(__file__).parents[2]
TIMES = count(10**18, 10**9)  # no two files are as old, whatever the clock says


def facts(opened: DecodedImages, name: str) -> list[Any]:
    return [getattr(file, name) for file in opened.files]


def rows(opened: DecodedImages) -> NDArray[np.int64]:
    return np.array(facts(opened, "row"), dtype=np.int64)


class Folder:
    """Image files, and a library of them."""

    def __init__(self, place: Path) -> None:
        self.images, self.library = place / "images", place / "library"
        self.images.mkdir(parents=True)

    def draw(self, name: str, seed: int, width: int = 3, height: int = 2, mode: str = "L") -> None:
        shape = (height, width, 3)[: 2 + (mode == "RGB")]
        pixels = np.random.default_rng(seed).integers(1, 256, shape).astype(np.uint8)
        PIL.Image.fromarray(pixels).save(self.images / name, format="PNG")
        self.touch(name)

    def write(self, name: str, content: bytes) -> None:
        (self.images / name).write_bytes(content)
        self.touch(name)

    def touch(self, name: str) -> None:
        os.utime(self.images / name, ns=(0, next(TIMES)))

    def remove(self, name: str) -> None:
        (self.images / name).unlink()

    def rename(self, name: str, other: str) -> None:
        (self.images / name).rename(self.images / other)

    @property
    def entries(self) -> list[Entry]:
        return [Entry(file.name, file, "a") for file in sorted(self.images.iterdir())]

    def open(self, form: Form = Form(), retry: bool = False) -> DecodedImages:  # noqa: B008
        return open_library(self.library, self.entries, form, retry=retry)

    def pixel_files(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in self.library.glob("*.pixels")}

    def check(self, opened: DecodedImages, form: Form = Form()) -> None:  # noqa: B008
        """Each image is as if it were decoded now; one that cannot be has a reason."""
        channels = opened.pixels.shape[1]
        assert self.entries == [file.entry for file in opened.files]
        for file in opened.files:
            stored = file.entry.file.read_bytes()
            try:
                image = torch.from_numpy(read_pixels(stored, file.entry.slice, form.size))[None]
            except UnusableImage:
                assert (file.row, bool(file.reason)) == (-1, True)
            else:
                image = form.apply(image).expand(1, channels, -1, -1)[0]
                assert (file.row >= 0, file.reason) == (True, "")
                assert np.array_equal(opened.pixels[file.row], image.numpy())
                assert file.content == hashlib.sha256(stored).hexdigest()


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


@pytest.fixture
def read(folder, monkeypatch):
    """Names of the files that were looked at, and of those that were decoded."""
    looked, decoded = [], []
    lock = threading.Lock()

    def header(file, slice_=None, real=read_header):
        looked.append(file.name)
        return real(file, slice_)

    def pixels(content, slice_=None, size=0):
        with lock:
            names = {each.file.read_bytes(): each.file.name for each in folder.entries}
            decoded.append(names[content])
        return read_pixels(content, slice_, size)

    def take():
        """Those since the last time."""
        taken = sorted(looked), sorted(decoded)
        looked.clear()
        decoded.clear()
        return taken

    monkeypatch.setattr(library, "read_header", header)
    monkeypatch.setattr(library, "read_pixels", pixels)
    return take


@pytest.mark.slow
@pytest.mark.parametrize("fit", ["squash", "pad", "crop"])
@pytest.mark.parametrize("size", [1, 2, 4, 7])
@pytest.mark.parametrize("channels", [0, 3])
def test_images_are_brought_to_a_form(fit, size, channels, folder):
    for number, (width, height) in enumerate([(3, 2), (2, 5), (4, 4)]):
        folder.draw(f"{number}.png", number, width, height)
    form = Form(size, fit, channels)
    opened = folder.open(form)

    assert opened.pixels.shape == (3, channels or 1, size, size)
    assert opened.pixels.dtype == np.uint8
    assert sorted(rows(opened)) == [0, 1, 2]
    folder.check(opened, form)


def turned_late(picture: PIL.Image.Image) -> bytes:
    """A PNG with an orientation after its pixels, which does not count at any size."""
    exif, stream = PIL.Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    picture.save(stream, "PNG", exif=exif)
    content = stream.getvalue()
    begin = content.index(b"eXIf") - 4
    end = begin + 12 + int.from_bytes(content[begin : begin + 4], "big")
    last = content.index(b"IEND") - 4
    return content[:begin] + content[end:last] + content[begin:end] + content[last:]


def saved(picture: PIL.Image.Image, kind: str) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind)
    return stream.getvalue()


@pytest.mark.parametrize("fit", ["squash", "pad", "crop"])
@pytest.mark.parametrize("channels", [0, 3])
def test_the_form_does_not_choose_which_images_are_used(fit, channels, folder):
    """A server chooses the form. It must not choose the patients with it."""
    noise = PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 96), np.uint8))
    jpeg = saved(noise, "JPEG")
    folder.write("0 used.png", saved(noise, "PNG"))
    folder.write("1 used.png", turned_late(noise))
    folder.write("2 used.jpg", jpeg)
    folder.write("3.jpg", jpeg[: len(jpeg) // 2])
    folder.write("4 used.png", saved(noise.convert("RGB"), "PNG"))

    def check(size: int) -> None:
        for file in folder.open(Form(size, fit, channels)).files:
            assert (file.row >= 0) == ("used" in file.entry.where)

    check(0)
    for number, strip in enumerate([(2, 200), (200, 2), (1, 6000)]):
        for kind in ("PNG", "JPEG"):
            folder.write(f"5 used {number} {kind}", saved(noise.resize(strip), kind))
    check(8)
    check(40)


@pytest.mark.parametrize("shape", [(1, 3), (2, 1), (3, 2), (2, 3, 3), (4, 6), (1, 2)])
@pytest.mark.parametrize("form", [Form(), Form(1, "crop"), Form(4, "pad"), Form(8, channels=3)])
def test_pixels_that_are_not_as_the_header_says_are_unusable_in_any_form(
    shape, form, folder, monkeypatch
):
    folder.draw("0.png", 0)

    def lying(*arguments, real=files._open):
        return real(*arguments)[0], lambda: np.ones(shape, np.uint8)

    monkeypatch.setattr(files, "_open", lying)
    assert facts(folder.open(form), "reason")[0].startswith("has another size than its header")


def test_images_stay_as_they_are_without_a_size(folder):
    folder.draw("0.png", 0)
    folder.draw("1.png", 1)
    opened = folder.open()

    assert opened.pixels.shape == (2, 1, 2, 3)
    with PIL.Image.open(folder.images / "1.png") as picture:
        assert opened.pixels[rows(opened)[1], 0].tolist() == np.asarray(picture).tolist()


def test_grey_images_among_colour_get_three_equal_channels(folder):
    PIL.Image.new("L", (3, 2), 7).save(folder.images / "0.png")
    assert folder.open().pixels.shape == (1, 1, 2, 3)
    PIL.Image.new("RGB", (3, 2), (9, 0, 1)).save(folder.images / "1.png")
    opened = folder.open()

    assert opened.pixels.shape == (2, 3, 2, 3)
    assert opened.pixels[rows(opened)][:, :, 0, 0].tolist() == [[7, 7, 7], [9, 0, 1]]
    folder.remove("1.png")
    assert folder.open().pixels[:, :, 0, 0].tolist() == [[7]]


def test_a_large_jpeg_is_decoded_at_a_part_of_its_size(folder):
    """A ramp of grey from left to right stays one: 16 columns of 1024/16 pixels."""
    ramp = np.tile(np.linspace(0, 255, 1024), (512, 1)).astype(np.uint8)
    PIL.Image.fromarray(ramp).save(folder.images / "0.jpg", quality=95)
    pixels = folder.open(Form(16)).pixels

    assert pixels.shape == (1, 1, 16, 16)
    columns = ramp[0].reshape(16, 64).mean(axis=1)
    assert np.abs(pixels[0, 0] - columns).max() < 6  # the filter reflects at the two sides


def test_a_large_jpeg_that_is_padded_keeps_its_proportions(folder):
    """1024 by 512 pixels become 16 by 8, 4 black rows above and below."""
    PIL.Image.new("L", (1024, 512), 200).save(folder.images / "0.jpg")
    pixels = folder.open(Form(16, "pad", 3)).pixels

    assert pixels.shape == (1, 3, 16, 16)
    assert pixels[:, :, 4:12].min() == pixels.max() == 200
    assert pixels[:, :, [3, 12]].max() == 0


def test_what_is_known_of_images(folder):
    folder.draw("0.png", 0, mode="RGB")
    folder.write("1.png", b"no image")
    opened = folder.open()

    assert facts(opened, "header") == [Header("PNG", 3, 2, 3, 8), None]
    assert facts(opened, "reason") == ["", "is not an image file that can be read here"]
    assert rows(opened).tolist() == [0, -1]
    folder.check(opened)
    assert (facts(folder.open(), "header"), facts(folder.open(), "reason")) == (
        facts(opened, "header"),
        facts(opened, "reason"),
    )


def test_images_of_different_sizes_need_an_image_size(folder):
    folder.draw("meier.png", 0, 3, 2)
    folder.draw("1.png", 1, 5, 4)
    with pytest.raises(
        DataError, match=r"^The images of the hospital differ in size: give [^1-9]*$"
    ) as e:
        folder.open()
    assert "meier" not in str(e.value)
    folder.check(folder.open(Form(6)), Form(6))


def test_no_image_that_can_be_used(folder):
    folder.write("meier.png", b"no image")
    opened = folder.open()
    assert rows(opened).tolist() == [-1]
    assert facts(opened, "reason") == ["is not an image file that can be read here"]
    assert len(opened.pixels) == 0


def test_images_are_mapped_and_the_file_is_not_written_to(folder):
    folder.draw("0.png", 0)
    opened = folder.open()
    before = folder.pixel_files()
    torch.from_numpy(opened.pixels).zero_()

    assert isinstance(opened.pixels, np.memmap)
    assert folder.pixel_files() == before == {"1x2x3-squash.pixels": folder.open().pixels.tobytes()}


def test_only_the_hospital_can_look_into_its_store(folder, tmp_path):
    """The names of libraries are those of folders of images."""
    folder.draw("0.png", 0)
    open_library(tmp_path / "store" / "images" / "skin", folder.entries, Form())
    for place in ("store", "store/images", "store/images/skin"):
        assert (tmp_path / place).stat().st_mode & 0o777 == 0o700


def test_a_second_time_nothing_is_opened(folder, read):
    for number in range(5):
        folder.draw(f"{number}.png", number)
    folder.write("5.png", b"no image")
    first = folder.open()
    assert read() == ([f"{number}.png" for number in range(6)], [f"{n}.png" for n in range(5)])
    second = folder.open()

    assert read() == ([], [])
    assert np.array_equal(first.pixels, second.pixels)
    assert np.array_equal(rows(first), rows(second))
    assert (facts(first, "content"), facts(first, "header")) == (
        facts(second, "content"),
        facts(second, "header"),
    )


def test_another_form_is_decoded_once_and_the_first_is_kept(folder, read):
    folder.draw("0.png", 0)
    folder.open(Form(2))
    read()
    folder.check(folder.open(Form(3)), Form(3))
    assert read() == ([], ["0.png"])
    for size in (2, 3):
        folder.check(folder.open(Form(size)), Form(size))
    assert read() == ([], [])


def test_a_changed_file_is_decoded_again_and_no_other(folder, read):
    for number in range(3):
        folder.draw(f"{number}.png", number)
    folder.open()
    read()
    folder.draw("1.png", 9)
    folder.check(folder.open())

    assert read() == (["1.png"], ["1.png"])


def test_a_file_of_the_same_size_is_known_to_have_changed_by_its_time(folder, read):
    for name, value in (("0.pgm", b"1"), ("1.pgm", b"2")):
        folder.write(name, b"P5 1 1 255 " + value)
    folder.open()
    read()
    folder.write("1.pgm", b"P5 1 1 255 3")
    opened = folder.open()

    assert read() == (["1.pgm"], ["1.pgm"])
    assert opened.pixels[rows(opened)].ravel().tolist() == [ord("1"), ord("3")]


def test_a_touched_file_is_not_decoded_again(folder, read):
    folder.draw("0.png", 0)
    first = folder.open()
    read()
    folder.touch("0.png")
    second = folder.open()

    assert read() == (["0.png"], [])
    assert rows(second).tolist() == rows(first).tolist()
    folder.check(second)


def test_moved_and_copied_files_are_not_decoded_again(folder, read):
    folder.draw("0.png", 0)
    folder.draw("1.png", 1)
    first = rows(folder.open()).tolist()
    read()
    folder.rename("0.png", "2.png")
    shutil.copy(folder.images / "1.png", folder.images / "3.png")
    opened = folder.open()  # 1, 2 (was 0), 3 (is 1)

    assert read()[1] == []
    assert rows(opened).tolist() == [first[1], first[0], first[1]]
    folder.check(opened)


def test_updated_code_decodes_all_files_again(folder, monkeypatch):
    """It may decode them otherwise, as here, and find other patients."""
    folder.draw("0.png", 0)
    old = folder.open()
    before = old.pixels.copy()
    monkeypatch.setattr(library, "VERSION", library.VERSION ^ 1)
    monkeypatch.setattr(library, "read_pixels", lambda *each: 255 - read_pixels(*each))
    for _ in range(2):
        opened = folder.open()
        assert (opened.pixels[rows(opened)] == 255 - before).all()
    assert (old.pixels == before).all()  # of a run that goes on
    (content,) = folder.pixel_files().values()
    assert before.tobytes() not in content


@pytest.mark.parametrize("chunk", [1, 2, 99])
def test_identical_files_share_a_row(chunk, folder, monkeypatch):
    monkeypatch.setattr(library, "CHUNK", chunk)
    for number, seed in enumerate([5, 6, 5, 5, 6]):
        folder.draw(f"{number}.png", seed)
    opened = folder.open()

    assert rows(opened).tolist() == [0, 1, 0, 0, 1]
    assert len(opened.pixels) == 2
    folder.check(opened)


def test_what_is_no_longer_listed_is_overwritten_in_every_form(folder):
    for number in range(3):
        folder.draw(f"{number}.png", number)
    forms = [Form(2), Form(3), Form(3, "pad"), Form(2, channels=3)]
    row = {rows(folder.open(form))[1] for form in forms}
    before = folder.pixel_files()
    folder.remove("1.png")
    folder.check(folder.open(Form(2)), Form(2))

    assert row == {1}
    assert len(before) == 4
    for name, content in folder.pixel_files().items():
        old, new = (
            np.frombuffer(each, np.uint8).reshape(3, -1) for each in (before[name], content)
        )
        assert old[1].any()
        assert not new[1].any()
        assert np.array_equal(new[[0, 2]], old[[0, 2]])


def test_a_changed_file_leaves_no_pixels_behind(folder):
    folder.draw("0.png", 0)
    before = folder.open().pixels.tobytes()
    folder.draw("0.png", 1)
    opened = folder.open()

    assert before not in folder.pixel_files()["1x2x3-squash.pixels"]
    folder.check(opened)


def test_the_place_of_a_deleted_image_is_used_again(folder):
    for number in range(3):
        folder.draw(f"{number}.png", number)
    folder.open()
    folder.remove("1.png")
    folder.open()
    folder.draw("3.png", 3)
    folder.draw("4.png", 4)
    opened = folder.open()

    assert rows(opened).tolist() == [0, 2, 1, 3]
    folder.check(opened)


def test_copies_keep_the_pixels_of_a_deleted_image(folder, read):
    folder.draw("0.png", 0)
    folder.draw("1.png", 0)
    folder.open()
    read()
    folder.remove("0.png")
    folder.check(folder.open())

    assert read() == ([], [])


def broken(folder):
    """A file whose header is good and whose pixels are not."""
    folder.draw("1.png", 1, 30, 20)
    folder.write("1.png", (folder.images / "1.png").read_bytes()[:80])


@pytest.mark.parametrize("header", [True, False])
def test_an_unusable_file_is_tried_again_only_on_request(header, folder, read):
    folder.draw("0.png", 0)
    if header:
        broken(folder)
    else:
        folder.write("1.png", b"no image")
    first = folder.open(Form(2))
    tried = read()
    assert ("1.png" in tried[1]) == header
    again = folder.open(Form(2))

    assert read() == ([], [])
    assert facts(first, "reason") == facts(again, "reason")
    assert rows(first).tolist() == rows(again).tolist() == [0, -1]
    assert facts(folder.open(Form(2), retry=True), "reason") == facts(first, "reason")
    assert read() == ((["1.png"], []) if not header else ([], ["1.png"]))


@pytest.mark.parametrize("function", ["read_header", "read_pixels"])
def test_a_package_that_was_missing_is_used_on_request(function, folder, monkeypatch):
    folder.draw("0.png", 0)
    folder.draw("1.png", 1)
    real, missing = getattr(library, function), (folder.images / "1.png").read_bytes()

    def without(file, *arguments):
        if missing == (file if isinstance(file, bytes) else file.read_bytes()):
            raise UnusableImage("is DICOM: install it")
        return real(file, *arguments)

    monkeypatch.setattr(library, function, without)
    assert facts(folder.open(), "reason") == ["", "is DICOM: install it"]
    monkeypatch.setattr(library, function, real)
    assert facts(folder.open(), "reason") == ["", "is DICOM: install it"]
    opened = folder.open(retry=True)

    assert facts(opened, "reason") == ["", ""]
    folder.check(opened)


def test_a_repaired_file_is_tried_again(folder):
    folder.draw("0.png", 0, 30, 20)
    broken(folder)
    folder.open()
    folder.draw("1.png", 1, 30, 20)

    folder.check(folder.open())


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 2, 1), (1, 3, 2), (3, 2, 3), (1, 4, 6)])
def test_what_is_not_as_its_header_says_is_unusable(shape, folder, monkeypatch):
    folder.draw("0.png", 0)
    folder.draw("1.png", 1)
    other = (folder.images / "1.png").read_bytes()

    def lying(content, *arguments):
        return np.ones(shape, np.uint8) if content == other else read_pixels(content, *arguments)

    monkeypatch.setattr(library, "read_pixels", lying)
    opened = folder.open()
    assert facts(opened, "reason")[0] == ""
    found = " x ".join(map(str, shape))
    assert facts(opened, "reason")[1].startswith(f"is {found} where ")
    assert rows(opened).tolist() == [0, -1]


@pytest.mark.parametrize("when", ["listed", "looked at"])
def test_a_file_that_disappears_is_unusable_until_it_is_back(when, folder, monkeypatch):
    folder.draw("0.png", 0)
    folder.draw("1.png", 1)
    entries, away = folder.entries, folder.library.parent / "away"

    def look(file, slice_, real=read_header):
        header = real(file, slice_)
        if file.name == "1.png":
            file.rename(away)
        return header

    if when == "listed":
        (folder.images / "1.png").rename(away)
    else:
        monkeypatch.setattr(library, "read_header", look)
    opened = open_library(folder.library, entries, Form())
    assert rows(opened).tolist() == [0, -1]
    assert facts(opened, "reason")[0] == ""
    assert "FileNotFoundError" in facts(opened, "reason")[1]
    assert "1.png" not in facts(opened, "reason")[1]

    monkeypatch.undo()
    away.rename(folder.images / "1.png")
    folder.touch("1.png")
    folder.check(folder.open())


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("opened", [1, 2])
@pytest.mark.parametrize("method", ["open", "fstat"])
def test_a_failure_of_the_disk_is_not_remembered(method, opened, error, folder, monkeypatch):
    """At the first opening of a file its header is read, and at the second its pixels."""
    folder.draw("0.png", 0)
    times, real = [], getattr(os, method)

    def fail(*arguments):
        times.append(1)
        if len(times) == opened:
            raise OSError(error, "the disk fails")
        return real(*arguments)

    monkeypatch.setattr(files, "os", SimpleNamespace(**{**vars(os), method: fail}))
    assert facts(folder.open(), "reason")[0].startswith("cannot be read or decoded")
    monkeypatch.undo()

    folder.check(folder.open())


def test_slices_of_a_file_are_images_of_their_own(folder, monkeypatch):
    folder.write("volume", b"a volume")
    looks = []

    def look(file, slice_):
        looks.append(slice_)
        return Header("NIFTI", 2, 2, 1, 8)

    monkeypatch.setattr(library, "read_header", look)
    monkeypatch.setattr(
        library, "read_pixels", lambda content, slice_, size: np.full((1, 2, 2), slice_, np.uint8)
    )
    file = folder.images / "volume"
    entries = [Entry(f"row {slice_}", file, "a", slice=slice_) for slice_ in (3, 0, 7)]
    for _ in range(2):
        opened = open_library(folder.library, entries, Form())
        assert opened.pixels[rows(opened)][:, 0, 0, 0].tolist() == [3, 0, 7]
        assert len(set(facts(opened, "content"))) == 1
        assert sorted(looks) == [0, 3, 7]
    opened = open_library(folder.library, entries[:1], Form())
    assert opened.pixels[:, 0, 0, 0].tolist() == [3]
    assert folder.pixel_files()["1x2x2-squash.pixels"] == bytes([3] * 4 + [0] * 8)


def test_an_open_library_keeps_its_images(folder):
    """Also if another process then forgets some of them, and uses their places."""
    for name in "abc":
        folder.draw(f"{name}.png", ord(name))
    opened, before = [], []
    for number, name in enumerate(["a.png", "c.png", "b.png", "0.png"]):
        opened.append(folder.open())
        before.append(folder.open().pixels.copy())
        folder.remove(name)
        folder.draw(f"{number}.png", number)
    folder.check(folder.open())

    assert len(folder.pixel_files()["1x2x3-squash.pixels"]) == 4 * 6
    for one, other in zip(opened, before, strict=True):
        assert np.array_equal(one.pixels[rows(one)], other[rows(one)])


@pytest.mark.parametrize("kept", [-1, 0, 1, 2])
def test_an_image_is_forgotten_whose_pixels_are_lost_in_another_form(kept, folder):
    """Of three images of four bytes each, so many are left; -1 = the file is gone."""
    for number in range(3):
        folder.draw(f"{number}.png", number)
    folder.open(Form(2))
    file = folder.library / "1x2x2-squash.pixels"
    if kept < 0:
        file.unlink()
    else:
        os.truncate(file, kept * 4)
    folder.remove("2.png")
    folder.open()

    folder.check(folder.open(Form(2)), Form(2))


def test_a_damaged_index_says_what_to_remove(folder):
    folder.draw("0.png", 0)
    folder.open()
    (folder.library / "index.sqlite").write_bytes(b"x" * 4096)
    with pytest.raises(DataError, match="remove the store's folder 'images'"):
        folder.open()


def test_progress_is_logged(folder, monkeypatch, caplog):
    monkeypatch.setattr(library, "CHUNK", 1)
    monkeypatch.setattr(console, "PAUSE", 0.0)
    for number in range(4):
        folder.draw(f"{number}.png", number)
    with caplog.at_level(logging.INFO):
        open_library(folder.library, folder.entries, Form())
    assert re.search(r"importing images: 3 of 4, [\d.]+/s, \d+ s left", caplog.text)


# What a kill or a person leaves behind.


@pytest.mark.parametrize("victim", range(7))
def test_an_import_goes_on_where_it_was_killed(victim, folder, read, monkeypatch):
    """Seven images in chunks of two: what was in a chunk before the victim's is there."""
    monkeypatch.setattr(library, "CHUNK", 2)
    for number in range(7):
        folder.draw(f"{number}.png", number)
    target = (folder.images / f"{victim}.png").read_bytes()
    real = vars(library)["read_pixels"]  # which is `read`'s

    def killed(content, *arguments):
        if content == target:
            raise KeyboardInterrupt
        return real(content, *arguments)

    monkeypatch.setattr(library, "read_pixels", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.open()
    read()
    monkeypatch.setattr(library, "read_pixels", real)
    folder.check(folder.open())

    assert read() == ([], [f"{number}.png" for number in range(victim // 2 * 2, 7)])


class Killer:
    """Ends whatever comes to a step, the lasting ones of a library, once that is reached."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.lock = -1, threading.Lock()
        killer = self

        class Connection(sqlite3.Connection):
            def commit(self) -> None:
                killer.step()
                super().commit()

        for place, name in (
            *((os, "pwrite"), (os, "fsync")),
            *((library, "read_header"), (library, "read_pixels")),
        ):
            monkeypatch.setattr(place, name, self.counted(getattr(place, name)))
        connect = sqlite3.connect
        monkeypatch.setattr(sqlite3, "connect", lambda file: connect(file, factory=Connection))

    def counted(self, function):
        def call(*arguments):
            self.step()
            return function(*arguments)

        return call

    def step(self) -> None:
        with self.lock:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("comes_back", [False, True])
def test_a_kill_at_any_moment_leaves_a_good_library(comes_back, tmp_path, monkeypatch):
    monkeypatch.setattr(library, "CHUNK", 2)
    killer = Killer(monkeypatch)
    for moment in count(1):
        folder, away = Folder(tmp_path / str(moment)), tmp_path / f"away-{moment}"
        for number in range(4):
            folder.draw(f"{number}.png", number)
        killer.left = -1
        folder.open()
        deleted = folder.open().pixels[1].tobytes()
        (folder.images / "1.png").rename(away)
        folder.draw("2.png", 9)
        folder.touch("3.png")
        folder.draw("4.png", 4)
        folder.draw("5.png", 0)
        folder.draw("6.png", 6)
        killer.left = moment
        try:
            folder.open()
        except KeyboardInterrupt:
            killer.left = -1
        if comes_back:
            away.rename(folder.images / "1.png")
        unharmed = killer.left > 0
        killer.left = -1
        folder.check(folder.open())
        stored = folder.pixel_files()["1x2x3-squash.pixels"]
        assert (deleted in stored) == comes_back
        if unharmed:
            break
    assert moment > 15  # steps of that opening


def test_the_draft_of_a_killed_process_is_removed(folder):
    folder.draw("0.png", 0)
    folder.open()
    draft = folder.library / ".1x2x3-squash.pixels.0123.part"
    draft.touch()
    folder.open()

    assert not draft.exists()


@pytest.mark.parametrize("stray", [1, 6, 100])
def test_stray_bytes_after_the_last_image_are_harmless(stray, folder):
    """An image has six bytes; those of a kill before the index was told may follow."""
    folder.draw("0.png", 0)
    folder.open()
    with (folder.library / "1x2x3-squash.pixels").open("ab") as file:
        file.write(b"x" * stray)
    folder.check(folder.open())
    folder.draw("1.png", 1)
    opened = folder.open()

    assert rows(opened).tolist() == [0, 1]
    folder.check(opened)


@pytest.mark.parametrize(
    ("kept", "lost"), [(17, "2"), (12, "2"), (7, "12"), (0, "012"), (-1, "012")]
)
@pytest.mark.parametrize("added", [False, True])
def test_lost_pixels_are_decoded_again(kept, lost, added, folder, read):
    """Three images of six bytes each; -1 = the file is gone."""
    for number in range(3):
        folder.draw(f"{number}.png", number)
    folder.open()
    read()
    file = folder.library / "1x2x3-squash.pixels"
    if kept < 0:
        file.unlink()
    else:
        os.truncate(file, kept)
    if added:
        folder.draw("3.png", 3)
    folder.check(folder.open())

    assert read()[1] == [f"{number}.png" for number in [*lost, *(["3"] if added else [])]]


def test_threads_that_open_a_library_at_once_get_the_same(folder, read, monkeypatch):
    monkeypatch.setattr(library, "CHUNK", 2)
    for number in range(9):
        folder.draw(f"{number}.png", number)
    start = threading.Barrier(3)

    def open_(_):
        start.wait()
        return folder.open()

    with ThreadPoolExecutor(3) as threads:
        opened = list(threads.map(open_, range(3)))
    assert read() == ([f"{n}.png" for n in range(9)],) * 2
    for each in opened:
        folder.check(each)
        assert rows(each).tolist() == rows(opened[0]).tolist()


SCRIPT = """
import sys, time
from pathlib import Path
from client_app.datasets import files, library
from client_app.datasets.listing import Entry
from client_app.datasets.resize import Form

def read_pixels(*arguments, real=library.read_pixels):
    time.sleep(0.05)
    return real(*arguments)

library.CHUNK, library.read_pixels = 2, read_pixels
entries = [Entry(file.name, file, "a") for file in sorted(Path(sys.argv[1]).iterdir())]
library.Pace = lambda what: lambda done, of: print(what, done, of, flush=True)
opened = library.open_library(Path(sys.argv[2]), entries, Form())
print([file.row for file in opened.files], flush=True)
"""


def process(folder):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder.images), str(folder.library)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )


@pytest.mark.slow
def test_a_process_that_is_killed(folder, read):
    for number in range(20):
        folder.draw(f"{number:02}.png", number)
    with process(folder) as importing:
        assert importing.stdout is not None
        for line in importing.stdout:
            if line == "importing images 8 20\n":  # the first 8 are committed
                importing.kill()
                break
    assert importing.returncode == -signal.SIGKILL
    read()
    folder.check(folder.open())

    looked, decoded = read()
    assert looked == []
    assert set(decoded) <= {f"{number:02}.png" for number in range(8, 20)}
    assert "19.png" in decoded


@pytest.mark.slow
def test_processes_that_open_a_library_at_once_get_the_same(folder, read):
    for number in range(20):
        folder.draw(f"{number:02}.png", number)
    both = [process(folder) for _ in range(2)]
    outputs = [each.communicate()[0].splitlines() for each in both]

    assert outputs[0][-1] == outputs[1][-1] == str(list(range(20)))
    assert sorted(map(len, outputs)) == [1, 21]  # one of them imported, in 2 · 10 chunks
    folder.check(folder.open())
    assert read() == ([], [])


NAMES = st.sampled_from(["0.png", "1.png", "2.png", "3.png"])
SEEDS = st.integers(0, 4)
CHANGES = st.one_of(
    st.tuples(st.just("draw"), NAMES, SEEDS, st.sampled_from(["L", "RGB"])),
    st.tuples(st.just("break"), NAMES),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("touch"), NAMES),
    st.tuples(st.just("open"), st.sampled_from([Form(), Form(2), Form(4, "pad")])),
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(CHANGES, max_size=25))
def test_images_are_right_after_any_changes(changes):
    with TemporaryDirectory() as place:
        folder = Folder(Path(place))
        folder.draw("always.png", 100)
        for verb, *what in [*changes, ("open", Form())]:
            if verb == "draw":
                folder.draw(what[0], what[1], mode=what[2])
            elif verb == "break":
                folder.write(what[0], b"no image")
            elif verb == "open":
                folder.check(folder.open(what[0]), what[0])
            elif (folder.images / what[0]).exists():
                getattr(folder, verb)(*what)
