"""Image files that libraries write here, those that pydicom ships, and broken ones."""

import bz2
import gzip
import io
import logging
import lzma
import struct
import sys
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib import import_module
from logging.handlers import BufferingHandler
from pathlib import Path

import numpy as np
import PIL.Image
import PIL.PngImagePlugin
import PIL.TiffImagePlugin
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_app.datasets import files
from client_app.datasets.files import FORMATS
from client_app.datasets.image import MAX_PIXELS, Header, UnusableImage

COLOURS = np.random.default_rng(0).integers(0, 256, (5, 4, 3)).astype(np.uint8)  # [H, W, C]


@pytest.fixture
def read(tmp_path):
    """Read the header and the pixels of a file, which agree, or raise the same."""

    def both(content, slice_=None, size=0):
        file = tmp_path / "meier"
        file.write_bytes(content)
        pixels = files.read_pixels(content, slice_, size)
        header = files.read_header(file, slice_)
        assert pixels.dtype == np.uint8
        if not size:
            assert pixels.shape == (header.channels, header.height, header.width)
        return header, pixels

    return both


@pytest.fixture
def refused(read, tmp_path):
    """Check that a file is refused for a reason, which is not the file's name."""

    def check(content, reason, slice_=None, by_header=True):
        with pytest.raises(UnusableImage, match=reason) as error:
            read(content, slice_)
        assert "meier" not in str(error.value)
        if by_header:
            with pytest.raises(UnusableImage, match=reason):
                files.read_header(tmp_path / "meier", slice_)

    return check


def saved(picture, kind="PNG", **options):
    if not isinstance(picture, PIL.Image.Image):
        picture = PIL.Image.fromarray(np.asarray(picture))
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


# The usual formats


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format(kind, read):
    options = {"quality": 95, "lossless": True} if kind in ("JPEG", "WEBP") else {}
    header, pixels = read(saved(PIL.Image.new("RGB", (4, 5), (200, 100, 50)), kind, **options))

    assert header == Header(kind, 4, 5, 3, 8)
    assert np.abs(pixels[:, 2, 2] - np.array([200, 100, 50])).max() <= 2


@pytest.mark.parametrize(
    ("mode", "value", "kind", "bits", "expected"),
    [
        ("1", 1, "PNG", 1, [255]),
        ("L", 7, "PNG", 8, [7]),
        ("LA", (7, 0), "PNG", 8, [7]),
        ("P", 1, "PNG", 8, [4, 5, 6]),
        ("RGB", (1, 2, 3), "PNG", 8, [1, 2, 3]),
        ("RGBA", (1, 2, 3, 0), "PNG", 8, [1, 2, 3]),
        ("CMYK", (255, 0, 0, 0), "TIFF", 8, [0, 255, 255]),
        ("YCbCr", (100, 128, 128), "TIFF", 8, [100, 100, 100]),
        ("LAB", (255, 128, 128), "TIFF", 8, [255, 255, 255]),
    ],
)
def test_every_mode(mode, value, kind, bits, expected, read):
    picture = PIL.Image.new(mode, (4, 5), value)
    if mode == "P":
        picture.putpalette([1, 2, 3, 4, 5, 6])
    # Pillow warns of this palette.
    options = {"transparency": b"\x00\x80", "bits": 8} if mode == "P" else {}
    header, pixels = read(saved(picture, kind, **options))

    assert header == Header(kind, 4, 5, len(expected), bits)
    if mode == "LAB":  # white; its second and third numbers have a sign in the file
        assert pixels[0].std() == 0
    else:
        assert (pixels == np.reshape(expected, (-1, 1, 1))).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize(
    ("orientation", "turns", "mirrored"),
    [(1, 0, 0), (2, 0, 1), (3, 2, 0), (4, 2, 1), (5, 3, 1), (6, 1, 0), (7, 1, 1), (8, 3, 0)],
)
def test_images_are_upright(kind, orientation, turns, mirrored, read):
    """By the EXIF standard a file of, say, orientation 6 is a quarter turn (to the left) off."""
    upright = np.zeros((16, 32), np.uint8)
    upright[:8, :16] = 255  # the upper left quarter
    stored = np.rot90(upright, turns)[:, :: -1 if mirrored else 1]
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    header, pixels = read(saved(stored, kind, exif=exif, **options))

    assert (header.width, header.height) == (32, 16)
    assert ((pixels[0] > 128) == (upright > 128)).all()


@pytest.mark.parametrize(
    ("entries", "turned"),
    [
        ([(0x0112, 3, 6), (0x011A, 10, 38)], True),  # a ratio of -1/0, which cannot be written
        ([(0x0112, 3, 6), (0x011A, 5, 9_999)], True),  # one that is not in the file
        ([(0x0112, 3, 9)], False),
        ([], False),
    ],
)
def test_a_picture_counts_whatever_else_its_exif_holds(entries, turned, read):
    jpeg = saved(PIL.Image.new("RGB", (8, 4)), "JPEG")
    exif = b"Exif\0\0" + struct.pack("<2sHIH", b"II", 42, 8, len(entries))
    for tag, kind, value in entries:
        exif += struct.pack("<HHII", tag, kind, 1, value)
    exif += bytes(4) + struct.pack("<ii", -1, 0)
    for data in (exif, exif[:-20], b"Exif\0\0meier"):
        content = jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(data) + 2) + data + jpeg[2:]
        header, _ = read(content)
        if data is exif:
            assert (header.width, header.height) == ((4, 8) if turned else (8, 4))


@pytest.mark.parametrize(
    ("dtype", "kind", "bits"),
    [
        (np.uint16, "PNG", 16),
        (np.uint16, "TIFF", 16),
        (">u2", "TIFF", 16),
        (np.uint16, "PPM", 16),
        (np.uint16, "JPEG2000", 16),
        (np.int32, "TIFF", 32),
        (np.float32, "TIFF", 32),
    ],
)
def test_deep_grey_is_stretched(dtype, kind, bits, read):
    """From 1000 to 1510: twice the steps of 8 bits."""
    values = np.array([[1000, 1002], [1255, 1510]], dtype)
    header, pixels = read(saved(values, kind))

    assert header == Header(kind, 2, 2, 1, bits)
    assert pixels.tolist() == [[[0, 1], [128, 255]]]
    assert read(saved(np.full((2, 2), 999, dtype), kind))[1].max() == 0


def tiff(values, white_is_zero=False, order="<"):
    """A TIFF of one grey page, since Pillow writes few kinds."""
    data = values.astype(values.dtype.newbyteorder(order)).tobytes()
    bits, kind = 8 * values.dtype.itemsize, "uif".index(values.dtype.kind) + 1
    tags = [(256, values.shape[1]), (257, values.shape[0]), (258, bits), (259, 1)]
    tags += [(262, int(not white_is_zero)), (273, 8), (277, 1), (278, values.shape[0])]
    tags += [(279, len(data)), (339, kind)]
    content = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8 + len(data))
    content += data + struct.pack(f"{order}H", len(tags))
    for tag, value in tags:  # of type LONG
        content += struct.pack(f"{order}HHII", tag, 4, 1, value)
    return content + bytes(4)


@pytest.mark.parametrize(
    ("values", "white_is_zero", "expected"),
    [
        (np.array([[0, 50, 255]], np.uint8), True, [255, 205, 0]),
        (np.array([[0, 200, 1000]], np.uint16), True, [255, 204, 0]),
        (np.array([[0, 200, 1000]], np.float32), True, [255, 204, 0]),
        (np.array([[-100, 0, 100]], np.int8), False, [0, 128, 255]),
        (np.array([[-1000, 0, 1000]], np.int16), False, [0, 128, 255]),
        (np.array([[-(2**31), 0, 2**31 - 1]], np.int32), False, [0, 128, 255]),
        (np.array([[0, 2**31 + 5, 2**32 - 1]], np.uint32), False, [0, 128, 255]),
    ],
)
def test_tiff_of_every_kind_of_number(values, white_is_zero, expected, read):
    assert read(tiff(values, white_is_zero))[1].tolist() == [[expected]]
    with suppress(UnusableImage):  # Pillow reads fewer kinds in the other order
        assert read(tiff(values, white_is_zero, ">"))[1].tolist() == [[expected]]


@pytest.mark.parametrize(
    ("dtype", "white_is_zero"),
    [(np.int16, True), (np.uint32, True), (np.float16, False), (np.float64, False)],
)
def test_kinds_of_tiff_that_pillow_does_not_read(dtype, white_is_zero, refused):
    refused(
        tiff(np.ones((2, 2), dtype), white_is_zero), r"not read here \(this kind of TIFF\): save"
    )


def test_values_that_are_not_finite(read):
    values = np.array([[np.nan, -np.inf, np.inf], [-1, 0, 1]], np.float32)
    assert read(saved(values, "TIFF"))[1].tolist() == [[[0, 0, 255], [0, 128, 255]]]
    assert read(saved(np.full((2, 2), np.nan, np.float32), "TIFF"))[1].max() == 0


def test_of_deep_colours_the_upper_8_bits_stay(read):
    """A PNG of one pixel, since Pillow writes none with 16 bits per colour."""
    stream = io.BytesIO(b"\x89PNG\r\n\x1a\n")
    stream.seek(8)
    chunk = PIL.PngImagePlugin.putchunk
    chunk(stream, b"IHDR", bytes([0, 0, 0, 1, 0, 0, 0, 1, 16, 2, 0, 0, 0]))
    chunk(stream, b"IDAT", zlib.compress(bytes([0, 1, 255, 2, 0, 3, 128])))
    chunk(stream, b"IEND")
    header, pixels = read(stream.getvalue())

    assert header == Header("PNG", 1, 1, 3, 16)
    assert pixels[:, 0, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "WEBP", "PNG"])
def test_several_frames_are_refused(kind, refused):
    frames = [PIL.Image.new("L", (4, 5), value) for value in (0, 100, 200)]
    content = saved(frames[0], kind, save_all=True, append_images=frames[1:])

    refused(content, "^has several frames or pages: save the one")


def test_of_a_telephone_the_main_image_counts(read):
    frames = [PIL.Image.new("L", (4, 5), value) for value in (100, 200)]
    header, pixels = read(saved(frames[0], "MPO", save_all=True, append_images=frames[1:]))

    assert header == Header("JPEG", 4, 5, 1, 8)
    assert pixels.max() < 110


@pytest.mark.parametrize(
    ("size", "expected"), [(0, 1024), (16, 128), (100, 256), (200, 512), (600, 1024)]
)
def test_a_large_jpeg_is_decoded_at_a_part_of_its_size(size, expected, read):
    content = saved(PIL.Image.new("L", (1024, 1024), 77), "JPEG")

    assert read(content, None, size)[1].shape == (1, expected, expected)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"name,age\nmeier,50\n",
        b"\x1f",
    ],
)
def test_other_files_are_no_images(content, refused):
    refused(content, "^is not an image file that can be read here$")


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic", "HEIC"),
        (b"\0\0\0\x18ftypcrx \0\0\0\1crx isom", "camera raw"),
        (b"FUJIFILMCCD-RAW 0201", "camera raw"),
        (b"\0\0\0\x20ftypisom\0\0\2\0isomiso2", "video"),
        (b"RIFF\0\0\0\0AVI LIST", "video"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
        (b"8BPS\0\1", "Photoshop"),
        (b"NRRD0004\n", "NRRD"),
        (b"ObjectType = Image\n", "MetaImage"),
        (b"\x5c\1\0\0" + bytes(344), "ANALYZE or NIfTI in two files"),
        (b"\x93NUMPY\1\0", "array"),
        (b"%PDF-1.7\n", "PDF"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "drawing"),
        (b'<?xml version="1.0"?>\n<svg xmlns="meier">', "drawing"),
        (b"PK\3\4\n\0", "archive"),
        (gzip.compress(b"meier", mtime=0), "archive"),
        (bz2.compress(b"meier"), "archive"),
        (lzma.compress(b"meier"), "archive"),
    ],
)
def test_formats_that_are_not_read_are_named(content, name, refused):
    """By what is in the file, whatever its name is; with what to do."""
    refused(content, rf"^is in a format that is not read here \({name}\): (save|unpack) ")


def test_a_camera_s_preview_is_not_taken_for_the_photograph(refused):
    """The first page of a Nikon or DNG file is a thumbnail, and leads to the other ones."""
    tags = PIL.TiffImagePlugin.ImageFileDirectory_v2()
    tags[254], tags[330] = 1, (8,)
    refused(
        saved(COLOURS, "TIFF", tiffinfo=tags), r"not read here \(camera raw\): save images as JPEG"
    )


@pytest.mark.parametrize("kind", FORMATS)
def test_truncated_files_are_refused(kind, refused):
    content = saved(np.tile(COLOURS, (20, 20, 1)), kind)

    # Pillow looks for the pixels of AVIF when it opens a file.
    reason = "is not an image" if kind == "AVIF" else r"cannot be read or decoded \(\w+\)$"
    refused(content[: len(content) * 2 // 3], f"^{reason}", by_header=False)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UnusableImage, match=r"^cannot be read or decoded \(FileNotFoundError\)$"):
        files.read_header(tmp_path / "meier")


def bmp(width, height):
    """A file that ends after its header."""
    content = saved(PIL.Image.new("RGB", (1, 1)), "BMP")
    return content[:18] + width.to_bytes(4, "little") + height.to_bytes(4, "little") + content[26:]


def test_bombs_are_refused_by_their_header(refused, monkeypatch):
    """Whatever the limit of Pillow is; those of MAX_PIXELS are read, and end too early."""
    rows = MAX_PIXELS // 10_000
    for limit in (PIL.Image.MAX_IMAGE_PIXELS, None):
        monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", limit)
        refused(bmp(10_000, rows + 1), f"^has more than {MAX_PIXELS} pixels$")
    monkeypatch.undo()
    refused(bmp(10_000, rows), r"^cannot be read or decoded \(OSError\)$", by_header=False)


def test_large_images_give_no_warning(refused):
    """Pillow warns from 89 million pixels on, and warnings are errors here."""
    refused(bmp(10_000, 9_000), f"^has more than {MAX_PIXELS} pixels$")


@pytest.mark.parametrize("slice_", [None, 0, 1])
def test_a_slice_hides_no_other_reason(slice_, refused):
    refused(b"NRRD0004\n", r"not read here \(NRRD\): save volumes as one NIfTI file each", slice_)
    refused(b"", "^is not an image file that can be read here$", slice_)


@pytest.mark.parametrize("kind", ["tiff_lzw", "tiff_deflate", "packbits"])
def test_a_tiff_that_was_cut_off_is_not_called_another_kind(kind, refused):
    """Its directory follows its pixels, and so is missing, whole or in part."""
    content = saved(np.tile(COLOURS, (20, 20, 1)), "TIFF", compression=kind)
    directory = int.from_bytes(content[4:8], "little")
    big = b"II+\0\x08\0\0\0" + (9000).to_bytes(8, "little") + bytes(100)
    for cut in (content[:8], content[: directory - 9], content[: directory + 30], big):
        refused(cut, "^ends before its pixels do: copy it again$")


def test_only_volumes_have_slices(read, refused):
    assert read(saved(COLOURS), 0)[1].shape == (3, 5, 4)
    for slice_ in (1, -1):
        refused(saved(COLOURS), "^is not a volume, and has no such slice$", slice_)


def test_threads_may_read_at_once():
    """Not even their warnings get in each other's way."""
    palette = PIL.Image.new("P", (40, 50))
    content = saved(palette, transparency=b"\x00\x80")
    with ThreadPoolExecutor(4) as pool:
        shapes = set(pool.map(lambda _: files.read_pixels(content).shape, range(200)))
    assert shapes == {(3, 50, 40)}


# DICOM


def dicom(pixels, **tags):
    """Write a DICOM file with an extra set of tags; None takes one away."""
    pydicom = pytest.importorskip("pydicom")
    pixels = np.asarray(pixels)
    dataset = pydicom.Dataset()
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
    dataset.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    dataset.PatientName = "meier"
    dataset.Rows, dataset.Columns = pixels.shape[:2]
    dataset.SamplesPerPixel = 1 if pixels.ndim == 2 else 3
    if pixels.ndim == 3:
        dataset.PlanarConfiguration = 0
    dataset.PhotometricInterpretation = "MONOCHROME2" if pixels.ndim == 2 else "RGB"
    dataset.BitsAllocated = dataset.BitsStored = 8 * pixels.itemsize
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelRepresentation = int(pixels.dtype.kind == "i")
    dataset.PixelData = pixels.tobytes()
    stream = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):  # of values that the standard forbids
        for name, value in tags.items():
            if value is None:
                del dataset[name]
            else:
                setattr(dataset, name, value)
        pydicom.dcmwrite(stream, dataset, enforce_file_format=True)
    return stream.getvalue()


SLOPE = {"RescaleSlope": 2, "RescaleIntercept": -1000}
WINDOW = {"WindowCenter": 299.5, "WindowWidth": 201}


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ({}, [[0, 51], [102, 255]]),
        (SLOPE, [[0, 51], [102, 255]]),
        ({"PhotometricInterpretation": "MONOCHROME1"}, [[255, 204], [153, 0]]),
        # Of 0, 200, 400, 1000: from 199 to 399 are 0 to 255, as PS3.3 C.11.2.1.2.1 has it.
        ({"WindowCenter": 299.5, "WindowWidth": 201}, [[0, 1], [255, 255]]),
        ({"WindowCenter": [299.5, 1], "WindowWidth": [201, 1]}, [[0, 1], [255, 255]]),
        (
            {"WindowCenter": 300, "WindowWidth": 400, "VOILUTFunction": "LINEAR_EXACT"},
            [[0, 64], [191, 255]],
        ),
        (
            {"WindowCenter": 200, "WindowWidth": 400, "VOILUTFunction": "SIGMOID"},
            [[30, 128], [225, 255]],  # 1 / (1 + exp(±2)) of 255
        ),
        # Values are -1000, -600, -200, 1000.
        ({**SLOPE, "WindowCenter": -399.5, "WindowWidth": 801}, [[0, 64], [191, 255]]),
        (
            {
                **SLOPE,
                **{"WindowCenter": -399.5, "WindowWidth": 801},
                "PhotometricInterpretation": "MONOCHROME1",
            },
            [[255, 191], [64, 0]],
        ),
        ({"PixelPaddingValue": 1000}, [[0, 128], [255, 0]]),
        ({"PixelPaddingValue": 1000, "PixelPaddingRangeLimit": 300}, [[0, 255], [0, 0]]),
        (
            {"PixelPaddingValue": 0, "PhotometricInterpretation": "MONOCHROME1"},
            [[0, 255], [191, 0]],
        ),
        ({"PixelPaddingValue": 0, "PixelPaddingRangeLimit": 1000}, [[0, 0], [0, 0]]),
    ],
)
def test_grey_values_of_dicom(tags, expected, read):
    values = np.array([[0, 200], [400, 1000]], np.uint16)
    header, pixels = read(dicom(values, **tags))

    assert header == Header("DICOM", 2, 2, 1, 16)
    assert pixels.tolist() == [expected]


@pytest.mark.parametrize(
    ("tags", "as_if"),
    [
        *(({"RescaleSlope": b, "RescaleIntercept": b, **WINDOW}, WINDOW) for b in ("", " ", "\\")),
        ({"RescaleSlope": "0", "RescaleIntercept": "0", **WINDOW}, WINDOW),
        ({"RescaleSlope": "1\\2", **WINDOW}, WINDOW),
        (
            {"RescaleIntercept": "-100", **WINDOW},
            SLOPE | {"RescaleSlope": 1, "RescaleIntercept": -100} | WINDOW,
        ),
        *(({"WindowCenter": b, "WindowWidth": b}, {}) for b in ("", " ", "\\")),
        *(
            ({"WindowCenter": 300, "WindowWidth": w}, {})
            for w in ("", "0", "-5", "0.5", "nan", "inf")
        ),
        ({"WindowCenter": "", "WindowWidth": 201}, {}),
        ({"WindowCenter": "1\\299.5", "WindowWidth": "0\\201"}, WINDOW),
        ({"WindowCenter": "\\299.5", "WindowWidth": "9\\201"}, WINDOW),
        ({"WindowCenter": "299.5\\1\\2", "WindowWidth": "201"}, WINDOW),
        *(
            ({**WINDOW, "VOILUTFunction": f}, WINDOW)
            for f in ("", " ", "linear", "LINEAR\\SIGMOID")
        ),
        ({"VOILUTFunction": "OTHER"}, {}),
        *(({**WINDOW, name: []}, WINDOW) for name in ("VOILUTSequence", "ModalityLUTSequence")),
        ({**WINDOW, "PixelPaddingValue": "", "PixelPaddingRangeLimit": ""}, WINDOW),
    ],
)
def test_blank_and_sloppy_attributes_count_as_absent(tags, as_if, read):
    """Those that only say how to show a picture."""
    values = np.array([[0, 200], [400, 1000]], np.uint16)
    assert read(dicom(values, **tags))[1].tolist() == read(dicom(values, **as_if))[1].tolist()


@pytest.mark.parametrize(
    "tags",
    [
        {"RescaleSlope": "1,5"},
        {"RescaleIntercept": "meier"},
        {"WindowCenter": "1 2", "WindowWidth": 5},
        {"WindowCenter": 1, "WindowWidth": "meier"},
        {**WINDOW, "VOILUTFunction": "OTHER"},
    ],
)
def test_attributes_that_say_what_is_not_understood_are_named(tags, refused):
    content = dicom(np.array([[0, 200], [400, 1000]], np.uint16), **dict.fromkeys(tags, "77777"))
    for value in tags.values():
        content = content.replace(b"77777 ", f"{value:<6}".encode(), 1)
    name = "Rescale|Window" if "VOILUTFunction" not in tags else "VOI LUT Function"
    refused(content, f"^is DICOM with .*({name})", by_header=False)


@pytest.mark.parametrize("groups", ["Shared", "PerFrame", "both"])
def test_enhanced_objects_say_in_functional_groups_how_they_are_shown(groups, read):
    pydicom = pytest.importorskip("pydicom")

    def item(**tags):
        dataset = pydicom.Dataset()
        for name, value in tags.items():
            setattr(dataset, name, value)
        return dataset

    shown = {**SLOPE, "WindowCenter": -399.5, "WindowWidth": 801}
    rescale, window = item(**SLOPE), item(WindowCenter=-399.5, WindowWidth=801)
    group = item(PixelValueTransformationSequence=[rescale], FrameVOILUTSequence=[window])
    tags = {f"{each}FunctionalGroupsSequence": [group] for each in ("Shared", "PerFrame")}
    if groups == "both":  # the frame's own counts
        other = item(RescaleSlope=9, RescaleIntercept=9)
        tags["SharedFunctionalGroupsSequence"] = [item(PixelValueTransformationSequence=[other])]
    else:
        tags = {name: value for name, value in tags.items() if name.startswith(groups)}
    values = np.array([[0, 200], [400, 1000]], np.uint16)
    found = read(dicom(values, NumberOfFrames=1, WindowCenter="", **tags))[1]

    assert found.tolist() == read(dicom(values, **shown))[1].tolist() == [[[0, 64], [191, 255]]]


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("start", [132, "data"])
def test_dicom_without_its_preamble(start, implicit, read, tmp_path):
    """It begins with its meta information, or with its first element, whose syntax is guessed."""
    pydicom = pytest.importorskip("pydicom")
    values = np.array([[0, 200], [400, 1000]], np.uint16)
    dataset = pydicom.dcmread(io.BytesIO(dicom(values, SOPInstanceUID="1.2.3")))
    if implicit:
        dataset.file_meta.TransferSyntaxUID = pydicom.uid.ImplicitVRLittleEndian
    stream = io.BytesIO()
    if start == "data":
        del dataset.file_meta, dataset.preamble
        pydicom.dcmwrite(stream, dataset, implicit_vr=implicit, little_endian=True)
    else:
        pydicom.dcmwrite(stream, dataset, enforce_file_format=True)
    content = stream.getvalue()[0 if start == "data" else start :]
    (tmp_path / "IM1").write_bytes(content)

    assert content[:1] in (b"\x02", b"\x08")
    assert read(content)[1].tolist() == [[[0, 51], [102, 255]]]
    assert files.is_image(tmp_path / "IM1")


@pytest.mark.parametrize("signed", [False, True])
def test_bits_above_those_stored_do_not_count(signed, read):
    """Old files keep overlays there. Of 12 bits a signed value has its sign in the upper one."""
    values = np.array([[0, 200, 400, 1000]], np.int16) - (500 if signed else 0)
    junk = (values.view(np.uint16) & 0x0FFF) | np.array([0x9000, 0, 0x7000, 0xF000], np.uint16)
    tags = {"BitsStored": 12, "HighBit": 11, "PixelRepresentation": int(signed)}

    assert read(dicom(junk, **tags))[1].tolist() == [[[0, 51, 102, 255]]]


@pytest.mark.parametrize("first", [0, -1000])
def test_values_above_a_table_take_its_last_entry(first, read):
    """Far above, by more than 16 bits count."""
    pydicom = pytest.importorskip("pydicom")
    item = pydicom.Dataset()
    item.LUTDescriptor = [256, first, 8]
    item.add_new("LUTData", "US", list(range(256)))
    item["LUTDescriptor"].VR = "SS" if first < 0 else "US"
    values = np.array([[0, 100], [255, 1000]], np.int16 if first < 0 else np.uint16)
    tags = {"VOILUTSequence": [item], "RescaleSlope": 100, "RescaleIntercept": first}

    assert read(dicom(values, **tags))[1].tolist() == [[[0, 255], [255, 255]]]


def test_padding_of_signed_values_may_be_written_unsigned(read):
    pytest.importorskip("pydicom")
    content = dicom(np.array([[-2000, 0, 100]], np.int16), PixelPaddingValue=-2000)
    signed, unsigned = b"\x28\0\x20\x01SS", b"\x28\0\x20\x01US"
    assert content.count(signed) == 1

    assert read(content.replace(signed, unsigned))[1].tolist() == [[[0, 0, 255]]]


@pytest.mark.parametrize(
    ("padding", "expected"),
    [(65535, [0, 50, 255]), (63536, [0, 50, 255]), (256, [0, 50, 255]), (255, [0, 255, 0])],
)
def test_padding_that_8_bits_cannot_have_is_ignored(padding, expected, read):
    content = dicom(np.array([[0, 50, 255]], np.uint8), PixelPaddingValue=padding)
    assert read(content)[1].tolist() == [[expected]]


def test_the_first_value_of_a_table_may_be_written_unsigned(read):
    pydicom = pytest.importorskip("pydicom")
    item = pydicom.Dataset()
    item.add_new("LUTDescriptor", "US", [4, 65534, 8])
    item.add_new("LUTData", "US", [0, 10, 20, 255])
    values = np.array([[-2, -1], [0, 1]], np.int16)

    assert read(dicom(values, VOILUTSequence=[item]))[1].tolist() == [[[0, 10], [20, 255]]]


@pytest.mark.parametrize("vr", ["US", "OW"])
@pytest.mark.parametrize("depth", [8, 12, 16])
@pytest.mark.parametrize(
    ("values", "first", "length"),
    [
        (np.array([[-1024, -1, 1000, 3071]], np.int16), -(2**15), 2**16),
        (np.array([[-1024, -1, 1000, 3071]], np.int16), 64512, 4096),  # -1024
        (np.array([[0, 50, 100, 255]], np.uint8), 30, 200),
        (np.array([[0, 100, 200, 255]], np.uint8), 300, 100),
        (np.array([[0, 200, 400, 1000]], np.uint16), 100, 512),
        (np.array([[0, 200, 400, 65535]], np.uint16), 64512, 1024),
    ],
)
def test_tables_of_stored_values_do_not_overflow(values, first, length, depth, vr, read):
    """Entry i has the share i / (length - 1) of the largest number."""
    entries = (np.arange(length) * (2**depth - 1) // (length - 1)).astype("<u2")
    item = pytest.importorskip("pydicom").Dataset()
    item.add_new("LUTDescriptor", "SS" if first < 0 else "US", [length % 2**16, first, depth])
    item.add_new("LUTData", vr, entries.tolist() if vr == "US" else entries.tobytes())
    signed = first - 2**16 if first == 64512 and values.dtype.kind == "i" else first
    shown = entries[np.clip(values.astype(int) - signed, 0, length - 1)].astype(float)
    expected = (shown - shown.min()) / max(1, shown.max() - shown.min()) * 255

    assert read(dicom(values, ModalityLUTSequence=[item]))[1].tolist() == [
        np.rint(expected).tolist()
    ]


TABLES = {"VOILUTSequence": "VOI LUT Sequence", "ModalityLUTSequence": "Modality LUT Sequence"}


def table(descriptor, data, vr):
    item = pytest.importorskip("pydicom").Dataset()
    item.add_new("LUTDescriptor", "US", descriptor)
    item.add_new("LUTData", vr, data)
    return [item]


@pytest.mark.parametrize("vr", ["US", "OW"])
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(
    ("descriptor", "entries"),
    [
        ([256, 0, 0], 256),
        ([256, 0, 1], 256),
        ([256, 0, 17], 256),
        ([256], 256),
        ([300, 0, 12], 256),
    ],
)
def test_tables_that_do_not_fit_are_named(descriptor, entries, name, vr, refused):
    data = list(range(entries)) if vr == "US" else np.arange(entries, dtype="<u2").tobytes()
    content = dicom(np.array([[0, 255]], np.uint8), **{name: table(descriptor, data, vr)})
    refused(content, f"^is DICOM with a {TABLES[name]} that", by_header=False)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("length", [255, 256])
def test_entries_of_8_bits_may_be_bytes(length, name, read):
    item = table([length, 0, 8], bytes(range(length)) + b"\0" * (length % 2), "OW")
    _, pixels = read(dicom(np.array([[0, 50, 254]], np.uint8), **{name: item}))
    top = 255 if name.startswith("VOI") else 254  # the largest number, or that of the image
    assert pixels.tolist() == [[[0, round(50 / top * 255), round(254 / top * 255)]]]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_without_entries_counts_as_absent(name, read):
    item = pytest.importorskip("pydicom").Dataset()
    values = np.array([[0, 200], [400, 1000]], np.uint16)
    assert read(dicom(values, **{name: [item]}))[1].tolist() == read(dicom(values))[1].tolist()


@pytest.mark.parametrize("depth", [8, 12])
def test_tables_go_before_windows(depth, read):
    """The table of 512 values from 100 on is theirs divided by 2, in all of 8 or 12 bits."""
    pydicom = pytest.importorskip("pydicom")
    item = pydicom.Dataset()
    item.LUTDescriptor = [512, 100, depth]
    top = 2**depth - 1
    item.add_new("LUTData", "US", [round(i / 511 * top) for i in range(512)])
    item["LUTDescriptor"].VR = "US"
    values = np.array([[0, 100], [355, 9999]], np.uint16)
    tags = {"VOILUTSequence": [item], "WindowCenter": 5, "WindowWidth": 2}

    assert read(dicom(values, **tags))[1].tolist() == [[[0, 0], [127, 255]]]
    assert read(dicom(values, **tags, RescaleSlope=1, RescaleIntercept=0))[1][0, 1, 0] == 127


def test_a_patient_of_dicom_is_one_however_the_id_is_typed(read):
    ids = ["P7", "p7 ", " P7", "P 7", ""]
    found = [read(dicom(np.array([[0, 1]], np.uint8), PatientID=each))[0].patient for each in ids]
    assert [found.index(each) for each in found] == [0, 0, 0, 3, 4]
    assert found[4] == ""


def test_images_of_one_dicom_study_without_a_patient_belong_together(read):
    ids = [("", "1.2.3"), (" ", "1.2.3"), ("", "1.2.4"), ("P7", "1.2.3")]
    pixels = np.array([[0, 1]], np.uint8)
    files = [dicom(pixels, PatientID=name, StudyInstanceUID=study) for name, study in ids]
    found = [read(file)[0].patient for file in files]
    assert [found.index(each) for each in found] == [0, 0, 2, 3]


def test_colours_of_dicom(read):
    header, pixels = read(dicom(COLOURS))
    assert header == Header("DICOM", 4, 5, 3, 8)
    assert (pixels == COLOURS.transpose(2, 0, 1)).all()

    deep = COLOURS.astype(np.uint16) * 16 + 15  # 12 bits
    header, pixels = read(dicom(deep, BitsStored=12, HighBit=11))
    assert header.bits == 12
    assert (pixels == COLOURS.transpose(2, 0, 1)).all()

    yellow = np.full((2, 2, 3), (226, 0, 149), np.uint8)
    _, pixels = read(dicom(yellow, PhotometricInterpretation="YBR_FULL"))
    assert np.abs(pixels[:, 0, 0] - np.array([255, 255, 0])).max() <= 2


@pytest.mark.parametrize("depth", [8, 16])
def test_palettes_of_dicom(depth, read):
    entries = np.array([10, 20], f"u{depth // 8}") << (depth - 8)
    tags: dict[str, object] = {"PhotometricInterpretation": "PALETTE COLOR"}
    for add, colour in enumerate(("Red", "Green", "Blue")):
        tags[f"{colour}PaletteColorLookupTableDescriptor"] = [2, 0, depth]
        table = entries + entries.dtype.type(add << (depth - 8))
        tags[f"{colour}PaletteColorLookupTableData"] = table.tobytes()
    header, pixels = read(dicom(np.array([[0, 1]], np.uint8), **tags))

    assert header.channels == 3
    assert pixels.tolist() == [[[10, 20]], [[11, 21]], [[12, 22]]]


@pytest.mark.parametrize("depth", [8, 16])
@pytest.mark.parametrize("first", [0, 100])
def test_values_beyond_a_palette_show_its_ends(depth, first, read):
    """A palette of 256 entries of 8 bits, 0 to 255, that may claim to have 16 bits."""
    tags: dict[str, object] = {"PhotometricInterpretation": "PALETTE COLOR"}
    for colour in ("Red", "Green", "Blue"):
        tags[f"{colour}PaletteColorLookupTableDescriptor"] = [256, first, depth]
        tags[f"{colour}PaletteColorLookupTableData"] = bytes(range(256))
    values = np.array([[0, 44, 150, 255, 300, 356, 2**16 - 1]], np.uint16)
    _, pixels = read(dicom(values, **tags))

    assert pixels.tolist() == [np.clip(values.astype(int) - first, 0, 255).tolist()] * 3


@pytest.mark.parametrize("segmented", ["", "Segmented"])
def test_palettes_that_are_not_there_are_named(segmented, refused):
    names = ["RedPaletteColorLookupTableDescriptor"]
    names += [f"{segmented}{each}PaletteColorLookupTableData" for each in ("Red", "Green", "Blue")]
    tags: dict[str, object] = {"PhotometricInterpretation": "PALETTE COLOR"}
    words = "(Segmented )?(Red|Green|Blue) Palette Color Lookup Table (Descriptor|Data)"
    for name in names:
        refused(dicom(np.array([[0, 1]], np.uint8), **tags), f"^is DICOM without {words}")
        tags[name] = [2, 0, 8] if "Descriptor" in name else b"\1\2"
    assert len(tags) == 5


REPEATED = [2, 2, 0, 0, 2, 3, 0, 0]  # the first two segments again, and then all three


@pytest.mark.parametrize("more", [[], REPEATED, [1, 60_000, 5, 1, 60_000, 5]])
def test_palettes_in_segments_are_read_if_they_are_small(more, read, refused):
    """A file of 718 bytes took 370 MB, and each segment more doubled that."""
    tags: dict[str, object] = {"PhotometricInterpretation": "PALETTE COLOR"}
    for colour in ("Red", "Green", "Blue"):
        tags[f"{colour}PaletteColorLookupTableDescriptor"] = [4, 0, 16]
        segments = np.array([0, 2, 10 << 8, 20 << 8, 1, 2, 40 << 8, *more], "<u2").tobytes()
        tags[f"Segmented{colour}PaletteColorLookupTableData"] = segments
    content = dicom(np.array([[0, 1, 2, 3]], np.uint8), **tags)
    if more:
        refused(content, "^is DICOM with a palette in segments that are not", by_header=False)
    else:
        assert read(content)[1].tolist() == [[[10, 20, 30, 40]]] * 3


@pytest.mark.parametrize("colours", [(), (3,)])
def test_frames_without_their_number_are_refused(colours, refused):
    frame = np.zeros((4, 3, *colours), np.uint8)
    content = dicom(frame, PixelData=bytes(4 * frame.nbytes))
    refused(content, "^has several frames or pages", by_header=False)


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ({"NumberOfFrames": 2}, "^has several frames or pages"),
        ({"PixelData": None}, "^is DICOM that ends before its pixels do: copy or export it again$"),
        ({"Rows": None}, "^is DICOM that ends before its pixels"),
        ({"Rows": 0}, "^has a width or height of 0: copy or export it again$"),
        ({"Rows": 60_000, "Columns": 60_000}, f"^has more than {MAX_PIXELS} pixels$"),
        ({"HighBit": 6}, "^is DICOM with a High Bit other than Bits Stored - 1: export it again$"),
        ({"BitsStored": 6}, "^is DICOM with a High Bit other than"),
        *(
            ({keyword: None}, f"^is DICOM without {name}: export it again$")
            for keyword, name in (
                ("Columns", "Columns"),
                ("SamplesPerPixel", "Samples per Pixel"),
                ("PhotometricInterpretation", "Photometric Interpretation"),
                ("BitsStored", "Bits Stored"),
                ("PixelRepresentation", "Pixel Representation"),
            )
        ),
        *(
            (
                {"PhotometricInterpretation": colour},
                "^is DICOM with a Photometric Interpretation",
            )
            for colour in ("RGB", "HSV", "ARGB", "CMYK", "YBR_FULL", "YBR_PARTIAL_420", "XRAY")
        ),
    ],
)
def test_dicom_that_does_not_fit(tags, reason, refused):
    refused(dicom(np.zeros((2, 2), np.uint8), **tags), reason)


@pytest.mark.parametrize(
    "tags",
    [
        *(
            {"PhotometricInterpretation": c}
            for c in ("MONOCHROME2", "PALETTE COLOR", "HSV", "CMYK")
        ),
        # Uncompressed, nothing takes these back.
        *({"PhotometricInterpretation": c} for c in ("YBR_ICT", "YBR_RCT", "YBR_PARTIAL_422")),
        {"PixelRepresentation": 1},
    ],
)
def test_colours_of_dicom_that_do_not_fit(tags, refused):
    refused(dicom(COLOURS, **tags), "^is DICOM with a Photometric Interpretation")
    refused(dicom(COLOURS, PlanarConfiguration=None), "^is DICOM without Planar Configuration: ")


@pytest.mark.parametrize(
    "tags",
    [
        {"Modality": modality, "Rows": None, "PixelData": None}
        for modality in ("SR", "PR", "KO", "DOC", "REG", "RTSTRUCT", "RTPLAN", "ECG")
    ]
    + [
        {"SOPClassUID": number, "Rows": None, "PixelData": None}
        for number in (
            "1.2.840.10008.1.3.10",  # a DICOMDIR of another name
            "1.2.840.10008.5.1.4.1.1.66",  # raw data
            "1.2.840.10008.5.1.4.1.1.88.11",  # a text
            "1.2.840.10008.5.1.4.1.1.104.1",  # a PDF
            "1.2.840.10008.5.1.4.1.1.9.1.1",  # an ECG
        )
    ]
    # A spectrum has rows and no pixels. Masks and doses have pixels, and are no images.
    + [{"SOPClassUID": "1.2.840.10008.5.1.4.1.1.4.2", "PixelData": None}]
    + [{"Modality": modality, "NumberOfFrames": 2} for modality in ("SEG", "RTDOSE")],
)
def test_dicom_that_is_no_image(tags, refused):
    refused(dicom(np.zeros((2, 2), np.uint8), **tags), "^is DICOM that holds no picture$")


def test_transfer_syntaxes_that_do_not_fit(refused, monkeypatch):
    pytest.importorskip("pydicom")
    from pydicom.pixels.decoders.base import Decoder

    content = dicom(np.zeros((2, 2), np.uint8))
    little, other = b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.9\0"
    assert content.count(little) == 1
    refused(content.replace(little, other), "^is DICOM in a transfer syntax that cannot be decoded")
    other = b"1.2.840.10008.1.2.1.99"
    deflated = content.replace(b"\x14\0" + little, b"\x16\0" + other)
    refused(
        deflated, "^is DICOM compressed as Deflated Explicit VR, and cannot be read here: export it"
    )
    monkeypatch.setattr(Decoder, "is_available", False)
    refused(
        content,
        "^is DICOM compressed as Explicit VR Little Endian: .*`uv sync --inexact --extra dicom`",
    )


@pytest.mark.parametrize(
    ("package", "start", "reason"),
    [
        (
            "pydicom",
            bytes(128) + b"DICM",
            "^is DICOM: install .* `uv sync --inexact --extra dicom`$",
        ),
        (
            "nibabel",
            bytes(344) + b"n+1\0",
            "^is NIfTI: install .* `uv sync --inexact --extra nifti`$",
        ),
    ],
)
def test_packages_that_are_not_installed(package, start, reason, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    refused(start, reason)


@cache
def shipped():
    """The files that come with pydicom, by name; none is downloaded."""
    pydicom = pytest.importorskip("pydicom")
    folder = Path(pydicom.__file__).parent / "data"
    return {file.name: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.slow
def test_the_files_of_pydicom(read, monkeypatch):
    """Each is an image or is refused, and nothing of it is logged. Few cannot be decoded at all."""
    log = BufferingHandler(1000)
    monkeypatch.setattr(logging.getLogger(), "handlers", [log])
    reasons = []
    for name, content in shipped().items():
        try:
            read(content)
        except UnusableImage as error:
            if "decoded" in str(error) and content[128:132] == b"DICM":
                reasons.append(name)
    assert set(reasons) <= {
        "JPEG-lossy.dcm",  # differs from the standard
        "JPEG2000-embedded-sequence-delimiter.dcm",
        "MR_truncated.dcm",
        "badVR.dcm",
    }
    assert not log.buffer


def compressed(frame, syntax, pixels=COLOURS, **tags):
    """DICOM with a compressed frame, and the attributes of `pixels`."""
    pydicom = pytest.importorskip("pydicom")
    dataset = pydicom.dcmread(io.BytesIO(dicom(pixels, **tags)))
    dataset.file_meta.TransferSyntaxUID = getattr(pydicom.uid, syntax)
    dataset.PixelData = pydicom.encaps.encapsulate([frame])
    dataset["PixelData"].is_undefined_length = True
    stream = io.BytesIO()
    pydicom.dcmwrite(stream, dataset, enforce_file_format=True)
    return stream.getvalue()


def test_bombs_within_dicom(refused):
    """A JPEG 2000 of which the header of DICOM does not say that it has 25 000 x 25 000 pixels."""
    pytest.importorskip("pydicom")
    content = shipped()["SC_rgb_gdcm_KY.dcm"]
    sides = (100).to_bytes(4, "big") * 2
    place = content.index(b"\xff\x4f\xff\x51") + 8
    assert content[place : place + 8] == sides
    content = content[:place] + (25_000).to_bytes(4, "big") * 2 + content[place + 8 :]

    refused(content, f"^has more than {MAX_PIXELS} pixels$", by_header=False)


@pytest.mark.parametrize(
    ("size", "samples"), [((12_000, 12_000), 1), ((0, 0), 1), ((64, 32), 1), ((64, 64), 3)]
)
def test_jpeg_ls_of_another_size_is_not_decoded(size, samples, refused, monkeypatch):
    pydicom = pytest.importorskip("pydicom")
    content = shipped()["MR_small_jpeg_ls_lossless.dcm"]
    height, width = (side.to_bytes(2, "big") for side in size)
    place = content.index(b"\xff\xf7") + 5
    assert content[place : place + 5] == bytes([0, 64, 0, 64, 1])
    content = content[:place] + height + width + bytes([samples]) + content[place + 5 :]
    monkeypatch.setattr(pydicom.Dataset, "pixel_array", None)

    refused(content, "^is DICOM with another height, width or number", by_header=False)


@pytest.mark.parametrize(
    ("syntax", "kind", "options"),
    [
        ("JPEGBaseline8Bit", "JPEG", {"quality": 95}),
        ("JPEG2000Lossless", "JPEG2000", {"no_jp2": True}),
    ],
)
@pytest.mark.parametrize(
    ("stored", "described"),
    [
        ((8, 32), (32, 8)),
        ((8, 32), (16, 16)),
        ((8, 32), (8, 16)),
        ((8, 32), (16, 32)),
        ((16, 16, 3), (48, 16)),
        ((48, 16), (16, 16, 3)),
    ],
)
def test_frames_that_are_not_as_described_are_refused(
    stored, described, syntax, kind, options, refused
):
    """Most of these have as many samples as described, which pydicom would take for an image."""
    frame = saved(np.zeros(stored, np.uint8), kind, **options)
    content = compressed(frame, syntax, np.zeros(described, np.uint8))

    refused(content, "^is DICOM with another height, width or number of samples", by_header=False)


@pytest.mark.parametrize(("marker", "transformed"), [("JFIF", 1), ("Adobe", 0), ("Adobe", 1)])
@pytest.mark.parametrize("colour", ["YBR_FULL", "YBR_FULL_422", "RGB"])
def test_a_jpeg_s_own_word_on_its_colours_counts(colour, marker, transformed, read):
    """Whatever the attributes say. Adobe's marker ends with 0 for RGB, or with 1 for YCbCr."""
    picture = np.full((16, 16, 3), (200, 60, 20), np.uint8)
    frame = saved(picture, "JPEG", quality=98, keep_rgb=not transformed)
    if marker == "Adobe" and transformed:
        segment = b"\xff\xee\0\x0eAdobe\0d\0\0\0\0\1"
        assert frame[2:11] == b"\xff\xe0\0\x10JFIF\0"
        frame = frame[:2] + segment + frame[20:]
    elif not transformed:  # the numbers of the components name no colours, either
        frame = frame.replace(b"R\x11\0G\x11\0B\x11\0", b"\1\x11\0\2\x11\0\3\x11\0")
        frame = frame.replace(b"\3R\0G\0B\0\0?\0", b"\3\1\0\2\0\3\0\0?\0")
    tags = {"PhotometricInterpretation": colour}
    pixels = read(compressed(frame, "JPEGBaseline8Bit", picture, **tags))[1]

    assert np.abs(pixels[:, 8, 8] - np.array([200, 60, 20])).max() <= 2


@pytest.mark.parametrize("transformed", [0, 1])
@pytest.mark.parametrize("colour", ["YBR_FULL", "YBR_FULL_422", "YBR_RCT", "RGB"])
def test_jpeg_2000_that_transforms_colours_itself(colour, transformed, read, refused):
    """As YBR_FULL its colours would be transformed twice."""
    pydicom = pytest.importorskip("pydicom")
    frame = saved(COLOURS, "JPEG2000", irreversible=False, mct=transformed, no_jp2=True)
    stream = io.BytesIO()
    dataset = pydicom.dcmread(io.BytesIO(dicom(COLOURS, PhotometricInterpretation=colour)))
    dataset.file_meta.TransferSyntaxUID = pydicom.uid.JPEG2000Lossless
    dataset.PixelData = pydicom.encaps.encapsulate([frame])
    dataset["PixelData"].is_undefined_length = True
    pydicom.dcmwrite(stream, dataset, enforce_file_format=True)

    if transformed and colour.startswith("YBR_FULL"):
        refused(stream.getvalue(), "^is DICOM with a Photometric Interp", by_header=False)
    elif not colour.startswith("YBR_FULL"):
        assert (read(stream.getvalue())[1] == COLOURS.transpose(2, 0, 1)).all()
    else:
        read(stream.getvalue())


@pytest.mark.parametrize("share", [0.5, 0.9])
@pytest.mark.parametrize(
    ("syntax", "kind", "options"),
    [
        ("JPEGBaseline8Bit", "JPEG", {"quality": 95}),
        ("JPEGBaseline8Bit", "JPEG", {"quality": 95, "progressive": True}),
        ("JPEG2000Lossless", "JPEG2000", {"no_jp2": True}),
        ("JPEGLSLossless", "", {}),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_frames_that_end_too_early_are_refused(
    channels, syntax, kind, options, share, read, refused
):
    """In a file that is whole. Of a grey JPEG the decoder would invent the other pixels."""
    pydicom = pytest.importorskip("pydicom")
    values = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    if kind:
        pixels = values if channels == 3 else values[..., 0]
        frame = saved(pixels, kind, **options)
    else:
        name = "SC_rgb_jls_lossy_line.dcm" if channels == 3 else "JPEGLSNearLossless_08.dcm"
        dataset = pydicom.dcmread(io.BytesIO(shipped()[name]))
        pixels = np.zeros(dataset.pixel_array.shape, np.uint8)
        frame = pydicom.encaps.get_frame(dataset.PixelData, 0, number_of_frames=1)
    read(compressed(frame, syntax, pixels))
    for filling in (b"", bytes(10)):
        read(compressed(frame + filling, syntax, pixels))
        cut = frame[: int(len(frame) * share)] + filling
        reason = "^is DICOM that ends before its pixels do: copy or export it again$"
        refused(compressed(cut, syntax, pixels), reason, by_header=False)


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_dicom_that_was_cut_off_is_refused(share, refused):
    pytest.importorskip("pydicom")
    frame = saved(COLOURS, "JPEG")
    names = "MR_small", "MR_small_RLE", "MR_small_jpeg_ls_lossless", "MR_small_jp2klossless"
    contents = [shipped()[f"{name}.dcm"] for name in (*names, "SC_rgb_small_odd_jpeg")]
    contents += [dicom(np.zeros((64, 64), np.uint16)), compressed(frame, "JPEGBaseline8Bit")]
    floats = np.zeros((64, 64), np.float32)
    none = dict.fromkeys(["PixelData", "BitsStored", "HighBit", "PixelRepresentation"])
    contents.append(dicom(floats, FloatPixelData=floats.tobytes(), **none))
    for content in contents:
        start = content.rindex(b"\xe0\x7f") + 12  # the pixels are last
        cut = content[: start + int(share * (len(content) - start))]
        refused(cut, "^is DICOM that ends before its pixels do", by_header=False)


def test_computed_tomography(read):
    """No window, and no padding that occurs: from the smallest to the largest stored value."""
    pytest.importorskip("pydicom")
    header, pixels = read(shipped()["CT_small.dcm"])

    assert replace(header, patient="") == Header("DICOM CT", 128, 128, 1, 16)
    assert len(header.patient) == 16
    # Stored are 128 to 2191, and first 175, 180, 166, 143.
    assert pixels[0, 0, :4].tolist() == [
        round((v - 128) / 2063 * 255) for v in (175, 180, 166, 143)
    ]
    assert (pixels.min(), pixels.max()) == (0, 255)


def test_magnetic_resonance(read):
    """The window of the file is 600 ± 800, its upper half open by one: from -200 to 1399."""
    pytest.importorskip("pydicom")
    header, pixels = read(shipped()["MR_small.dcm"])

    assert replace(header, patient="") == Header("DICOM MR", 64, 64, 1, 16)
    stored = (905, 1019, 1227, 1259)
    assert pixels[0, 0, :4].tolist() == [round((v + 200) / 1599 * 255) for v in stored]
    for name in ("RLE", "jp2klossless", "jpeg_ls_lossless", "bigendian", "implicit"):
        assert (read(shipped()[f"MR_small_{name}.dcm"])[1] == pixels).all()


def test_colour_files_of_pydicom(read, refused):
    """A test card, red at its top, in several encodings and colour spaces."""
    pytest.importorskip("pydicom")
    for name in ("rle", "rle_16bit", "rle_32bit", "jpeg_gdcm", "jls_lossy_line", "dcmtk_+eb+cy+s4"):
        header, pixels = read(shipped()[f"SC_rgb_{name}.dcm"])
        assert (header.channels, header.width, header.height) == (3, 100, 100)
        assert np.abs(pixels[:, 5, 50] - np.array([255, 0, 0])).max() <= 5
    refused(shipped()["SC_rgb_rle_2frame.dcm"], "^has several frames")


# NIfTI


def nifti(values, affine=None, slope=None, kind="Nifti1Image", zipped=False):
    """Write a NIfTI file; its axes go to the right, to anterior and to superior (RAS)."""
    nibabel = pytest.importorskip("nibabel")
    image = getattr(nibabel, kind)(values, np.eye(4) if affine is None else affine)
    if slope:
        image.header.set_slope_inter(*slope)
    content = image.to_bytes()
    return gzip.compress(content) if zipped else content


VOLUME = np.arange(24, dtype=np.int16).reshape(2, 3, 4)  # [R, A, S]


@pytest.mark.parametrize("kind", ["Nifti1Image", "Nifti2Image"])
@pytest.mark.parametrize("zipped", [False, True])
def test_slices_of_volumes(kind, zipped, read):
    """Anterior is up, and the patient's right at the left.

    Slice 1 is 1, 5, 9 from posterior to anterior at the left of the patient, 13, 17, 21 at the
    right; from 1 to 21 are 0 to 255.
    """
    header, pixels = read(nifti(VOLUME, kind=kind, zipped=zipped), 1)

    assert header == Header("NIFTI", 2, 3, 1, 16)
    values = np.array([[21, 9], [17, 5], [13, 1]])
    assert pixels[0].tolist() == np.rint((values - 1) / 20 * 255).tolist()


def test_slices_far_into_a_zipped_file(read):
    """Further than is unzipped at once."""
    values = np.random.default_rng(0).integers(0, 256, (100, 90, 80)).astype(np.uint8)
    values[:2, 0] = np.array([[0], [255]])

    for slice_ in (0, 1, 40, 79):
        pixels = read(nifti(values, zipped=True), slice_)[1]
        assert (pixels[0] == values[::-1, ::-1, slice_].T).all()


@pytest.mark.parametrize("axes", [(0, 1, 2), (1, 0, 2), (2, 0, 1), (0, 2, 1), (1, 2, 0), (2, 1, 0)])
@pytest.mark.parametrize("flips", [(), (0,), (0, 1, 2)])
def test_orientations(axes, flips, read):
    """However a volume is stored, it is shown alike: `axes[i]` is what the stored axis i goes to.

    The planes through the last stored axis are axial, coronal or sagittal; of the two others, what
    goes to superior, or else to anterior, is up, and what goes to the right, or else to anterior,
    is at the left.
    """
    affine = np.zeros((4, 4))
    affine[3, 3] = 1
    stored = VOLUME.transpose(axes)
    for axis, to in enumerate(axes):
        affine[to, axis] = -1 if axis in flips else 1
    stored = np.flip(stored, flips)
    slice_ = stored.shape[2] - 1 if 2 in flips else 0  # the first to left, posterior or inferior
    plane = np.take(VOLUME, 0, axis=axes[2])[::-1, ::-1].T
    expected = np.rint((plane - plane.min()) / (plane.max() - plane.min()) * 255)

    assert (read(nifti(stored, affine), slice_)[1][0] == expected).all()


def test_single_slices_and_their_scale(read):
    values = np.array([[1, 2], [3, 5]], np.uint8)
    expected = [[[255, 64], [128, 0]]]
    for shape in ((2, 2), (2, 2, 1), (2, 2, 1, 1)):
        assert read(nifti(values.reshape(shape)))[1].tolist() == expected
        assert read(nifti(values.reshape(shape)), 0)[1].tolist() == expected
    assert read(nifti(values, slope=(-1, 7)))[1].tolist() == [[[0, 191], [128, 255]]]
    holes = np.where(values == 5, np.nan, values).astype(np.float32)
    assert read(nifti(holes))[1].tolist() == [[[0, 128], [255, 0]]]


def damaged(image, **fields):
    """The bytes of a NIfTI image with fields of its header changed after it was written."""
    content = bytearray(image.to_bytes())
    header = type(image.header)(bytes(content[: image.header.sizeof_hdr]), check=False)
    for name, value in fields.items():
        header[name] = value
    content[: header.sizeof_hdr] = header.binaryblock
    return bytes(content)


EMPTY = dict.fromkeys(["srow_x", "srow_y", "srow_z"], 0.0)
BY_QFORM = {"sform_code": 0, "qform_code": 1}


@pytest.mark.parametrize("kind", ["Nifti1Image", "Nifti2Image"])
@pytest.mark.parametrize(
    "fields",
    [
        {"vox_offset": 0},
        {**EMPTY, "qform_code": 1},
        {"srow_y": np.nan, "qform_code": 1},
        {**BY_QFORM, "pixdim": [0, 1, 1, 1, 1, 1, 1, 1]},
        {**BY_QFORM, "pixdim": [1, -1, 0, np.nan, 1, 1, 1, 1]},
        {"scl_slope": 0},
        {"scl_slope": np.nan},
        {"scl_slope": 2, "scl_inter": np.nan},
    ],
)
def test_headers_of_nifti_that_other_programs_leave(kind, fields, read):
    nibabel = pytest.importorskip("nibabel")
    image = getattr(nibabel, kind)(VOLUME, np.diag([-1, 1, -1, 1]))

    assert (read(damaged(image, **fields), 1)[1] == read(image.to_bytes(), 1)[1]).all()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (EMPTY, r"^is NIfTI with an unusable matrix of orientation \(sform, qform\)"),
        ({**BY_QFORM, "quatern_b": 5}, r"^is NIfTI with an unusable matrix of orientation"),
        (
            {"vox_offset": 348},
            r"^is NIfTI with values that begin within the header \(vox_offset\): save it anew$",
        ),
        ({"vox_offset": -16}, "^is NIfTI with values that begin within the header"),
    ],
)
def test_headers_of_nifti_that_say_nothing_that_can_be_used(fields, reason, refused):
    nibabel = pytest.importorskip("nibabel")
    refused(damaged(nibabel.Nifti1Image(VOLUME, np.eye(4)), **fields), reason, 1)


@pytest.mark.parametrize(
    ("shape", "dtype", "slice_", "reason"),
    [
        ((2, 3, 4), np.int16, None, "^is a volume: name one slice, .* column `slice`$"),
        ((2, 3, 4), np.int16, 4, "^has no such slice: the first is 0, the last 3$"),
        ((2, 3, 4), np.int16, -1, "^has no such slice"),
        ((2, 3), np.int16, 1, "^has no such slice"),
        ((2, 3, 4, 2), np.int16, 0, "^is NIfTI that is neither an image nor a volume$"),
        ((2,), np.int16, 0, "^is NIfTI that is neither an image nor a volume$"),
        ((2, 3), np.complex64, None, "^is NIfTI with values that are not real numbers$"),
    ],
)
def test_nifti_that_does_not_fit(shape, dtype, slice_, reason, refused):
    refused(nifti(np.zeros(shape, dtype)), reason, slice_)


def test_bombs_of_nifti(read, refused):
    """Too many pixels in a slice, and a zipped file of which only a part belongs to the image."""
    large = bytearray(nifti(np.zeros((2, 3), np.uint8)))
    large[42:46] = (30_000).to_bytes(2, "little") * 2
    refused(bytes(large), f"^has more than {MAX_PIXELS} pixels$")

    # A file of which only the first part belongs to the image: the end, which is cut off, is not
    # unzipped.
    content = gzip.compress(nifti(VOLUME) + bytes(10**7))[:-100]
    assert read(content, 3)[1].shape == (1, 3, 2)
    refused(nifti(VOLUME, zipped=True)[:-30], "^cannot be read or decoded", 3, by_header=False)


# Broken files


@cache
def intact():
    """A few files, all small, to break."""
    contents = [saved(COLOURS, kind) for kind in FORMATS]
    contents.append(saved(COLOURS[..., 0].astype(np.uint16), "TIFF"))
    with suppress(ImportError):
        import_module("pydicom")
        names = ("SC_rgb_small_odd_jpeg", "MR_small_RLE", "MR_small_jpeg_ls_lossless")
        contents += [dicom(COLOURS), *(shipped()[f"{name}.dcm"] for name in names)]
    with suppress(ImportError):
        import_module("nibabel")
        contents += [nifti(VOLUME), nifti(VOLUME, zipped=True)]
    return contents


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=600), st.sampled_from([b"", b"\x1f\x8b", b"\xff\xd8\xff", b"BM", b"P5 "]))
def test_any_bytes_are_an_image_or_are_refused(content, start):
    with suppress(UnusableImage):
        files.read_pixels(start + content)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_broken_files_are_an_image_or_are_refused(data):
    content = bytearray(data.draw(st.sampled_from(intact())))
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=5)):
        content[place] = data.draw(st.integers(0, 255))
    length = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    with suppress(UnusableImage):
        files.read_pixels(bytes(content[:length]), data.draw(st.sampled_from([None, 0, 1])))
