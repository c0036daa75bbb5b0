"""Opens one image file: the usual formats, DICOM and NIfTI.

The content of a file determines its format, not its name. DICOM and NIfTI need optional packages
(extras `dicom` and `nifti`). Legend: C channels; H, W pixels of the upright image.
"""

import gzip
import io
import logging
import os
import re
import stat
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal, cast

import numpy as np
import PIL.Image
import PIL.ImageCms
import PIL.ImageOps
from numpy.typing import NDArray

from client_app.datasets.dicom import open_dicom
from client_app.datasets.image import (
    MAX_BYTES,
    MAX_PIXELS,
    SEVERAL,
    TOO_LARGE,
    Header,
    Opened,
    UnusableImage,
    stretch,
)
from client_app.datasets.nifti import open_nifti
from client_app.datasets.unread import RAW, TIFF, format_within

# Pillow knows more formats, but it hands some, such as EPS, to other programs.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
SUFFIX = re.compile(  # at the end of a name in lower case
    r"\.(avif|bmp|gif|jpg|jpeg|jpe|jfif|jp2|j2k|png|ppm|pgm|pbm|pnm|tif|tiff|webp|dcm|dicom"
    r"|nii|nii\.gz)\Z"
)
# DICOM without its preamble: an element of group 2 or 8, with a VR or a short length.
BARE = re.compile(rb"(?s)(\x02\0[\0-\x02]|\x08\0[\0-\x20])\0([A-Z]{2}|..\0\0)")
# The libraries' warnings quote the file, so one filter hides them. warnings.catch_warnings is not
# safe here: threads that leave it in another order than they entered it restore the wrong filters.
LIBRARIES = r"(PIL|pydicom|nibabel|pylibjpeg|libjpeg|openjpeg|rle)\b"
QUIET = ("ignore", None, Warning, re.compile(LIBRARIES), 0)
logging.getLogger("pydicom").propagate = False  # its log lines quote the file too


def read_header(file: Path, slice_: int | None = None) -> Header:
    """Read the header of an image file, and no pixels.

    EXIF that follows the pixels of a PNG is not read, for example.

    Raises:
        UnusableImage: The image cannot be used. Some reasons appear only in decoding.
    """
    with _unusable_on_error(), _open_regular(file) as stream:
        return _open(stream, slice_, 0)[0]


def read_file(file: Path) -> bytes:
    """Read a whole file.

    Raises:
        UnusableImage: The file cannot be read, is no regular file, or is too large.
    """
    with _unusable_on_error(), _open_regular(file) as stream:
        return stream.read(MAX_BYTES)


def is_image(file: Path) -> bool:
    """Whether a file may hold an image: by its suffix, or by the first bytes of DICOM."""
    if SUFFIX.search(file.name.lower()):
        return True
    try:
        with _open_regular(file) as stream:
            return _is_dicom(stream.read(132))
    except UnusableImage:
        return False
    except OSError:
        return True  # the listing then reports that the file cannot be read


def _is_dicom(start: bytes) -> bool:
    """Whether a file is DICOM, by its first 132 bytes."""
    return start[128:132] == b"DICM" or BARE.match(start) is not None


@contextmanager
def _open_regular(file: Path) -> Iterator[IO[bytes]]:
    """Open a regular file. A pipe would wait for a writer, and a device has no end."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UnusableImage("is not a regular file")
        if found.st_size >= MAX_BYTES:
            raise UnusableImage("is too large a file")
        yield stream


def read_pixels(content: bytes, slice_: int | None = None, size: int = 0) -> NDArray[np.uint8]:
    """Decode the image in the content of a file: [C, H, W].

    Pixels of more than 8 bits become 8 bits. Grey pixels are scaled by the window of the DICOM
    file, or else linearly from the smallest to the largest finite value. Colours keep their upper
    8 bits.

    Args:
        content: The bytes of the file.
        slice_: Number of a slice of a volume, from 0 along the third stored axis.
        size: Wanted size in pixels. A much larger JPEG is decoded at 1/2, 1/4 or 1/8 of its size,
            to at least twice the wanted size; 0 = full size.

    Raises:
        UnusableImage: The image cannot be used, at any wanted size.
    """
    with _unusable_on_error():
        header, decode = _open(io.BytesIO(content), slice_, size)
        image = np.atleast_3d(decode())
        told = header.height, header.width, header.channels
        scales = (1, 2, 4, 8) if size and header.kind == "JPEG" else (1,)
        # At any size: otherwise a server, which chooses it, would choose the images that are used.
        if image.shape not in [(-(-told[0] // s), -(-told[1] // s), told[2]) for s in scales]:
            raise UnusableImage("has another size than its header says: save it anew")
        return np.ascontiguousarray(np.moveaxis(image, 2, 0))


@contextmanager
def _unusable_on_error() -> Iterator[None]:
    """Turn every error into an `UnusableImage`."""
    try:
        yield
    except UnusableImage:
        raise
    except PIL.Image.DecompressionBombError:
        raise UnusableImage(TOO_LARGE) from None
    except Exception as error:  # decoders raise many types, with texts that quote the file
        raise UnusableImage(f"cannot be read or decoded ({type(error).__name__})") from None


def _open(stream: IO[bytes], slice_: int | None, size: int) -> Opened:
    if QUIET not in warnings.filters:
        warnings.filterwarnings("ignore", module=LIBRARIES)
    zipped = stream.read(2) == b"\x1f\x8b"
    stream.seek(0)
    unzipped = cast(IO[bytes], gzip.GzipFile(fileobj=stream)) if zipped else stream
    start = unzipped.read(540)
    unzipped.seek(0)
    if start[344:348] == b"n+1\0" or start[4:8] == b"n+2\0":
        opened = open_nifti(unzipped, start, slice_)
    else:
        dicom = _is_dicom(start) and not zipped
        opened = open_dicom(stream) if dicom else _picture(stream, size)
        if slice_:
            raise UnusableImage("is not a volume, and has no such slice")
    pixels = opened[0].width * opened[0].height
    if not pixels:
        raise UnusableImage("has a width or height of 0: copy or export it again")
    if pixels > MAX_PIXELS:
        raise UnusableImage(TOO_LARGE)
    return opened


def _is_cut_off(stream: IO[bytes], start: bytes) -> bool:
    """Whether a TIFF, from its first bytes, has no whole directory before its end."""
    order: Literal["little", "big"] = "little" if start[:1] == b"I" else "big"
    # The place has 8 bytes in a BigTIFF. Then come a number of entries, and 12 bytes each.
    place = int.from_bytes(start[8:16] if b"+" in start[:4] else start[4:8], order)
    end = stream.seek(0, os.SEEK_END)
    stream.seek(place)
    return place + 2 + 12 * int.from_bytes(stream.read(2), order) > end


def _picture(stream: IO[bytes], size: int) -> Opened:
    try:
        picture: PIL.Image.Image = PIL.Image.open(stream, formats=FORMATS)
    except PIL.UnidentifiedImageError:
        stream.seek(0)
        start = stream.read(540)
        format_ = format_within(start)
        if format_ == TIFF and _is_cut_off(stream, start):
            raise UnusableImage("ends before its pixels do: copy it again") from None
        raise UnusableImage(str(format_ or "is not an image file that can be read here")) from None
    # Telephones append thumbnails to a JPEG. Pillow calls such a file MPO.
    kind = "JPEG" if picture.format == "MPO" else str(picture.format)
    if kind != "JPEG" and getattr(picture, "is_animated", False):
        raise UnusableImage(SEVERAL)
    tags = cast(Mapping[int, Any], getattr(picture, "tag_v2", {}))  # of a TIFF
    if tags.get(254) == 1 and 330 in tags:  # the first page is a preview of a raw photograph
        raise UnusableImage(str(RAW))
    width, height = picture.size
    if not tags:  # the size of a TIFF is already that of the upright image
        # The method of the base class, since the method of PNG decodes.
        with suppress(Exception):  # Pillow keeps the readable part of a broken EXIF
            PIL.Image.Image.getexif(picture)
        if PIL.Image.Image.getexif(picture).get(0x0112) in (5, 6, 7, 8):
            width, height = height, width
    # Pillow reads these unsigned numbers as signed, or signed numbers as unsigned.
    number = (picture.mode, tags.get(339, (1,))[0] if tags else 0)
    other = {("I", 1): np.uint32, ("L", 2): np.int8}.get(number)
    deep = picture.mode.startswith(("I", "F")) or other is not None
    grey = deep or picture.mode in ("1", "L", "LA")
    raw = f"{picture.mode} {getattr(picture, 'tile', None)}"  # the latter has, say, "RGB;16B"
    bits = 16 if ";16" in raw and kind != "BMP" else {"1": 1, "I": 32, "F": 32}.get(picture.mode, 8)

    def decode() -> NDArray[np.uint8]:
        shown = picture
        if size:
            shown.draft(None, (2 * size, 2 * size))
        shown.load()
        shown.info.clear()  # otherwise Pillow rewrites the EXIF and fails on odd entries
        PIL.ImageOps.exif_transpose(shown, in_place=True)
        if deep:
            values = np.asarray(shown)
            pixels = stretch(values if other is None else values.view(other))
            return 255 - pixels if tags.get(262) == 0 else pixels  # 0: WhiteIsZero
        if shown.mode == "LAB":  # Pillow converts LAB only by colour profiles
            lab, rgb = PIL.ImageCms.createProfile("LAB"), PIL.ImageCms.createProfile("sRGB")
            transform = PIL.ImageCms.buildTransform(lab, rgb, "LAB", "RGB")
            shown = cast(PIL.Image.Image, PIL.ImageCms.applyTransform(shown, transform))
        # Pillow keeps the upper 8 bits of 16-bit colours and of 16-bit grey with transparency.
        return np.array(shown.convert("L" if grey else "RGB"))

    return Header(kind, width, height, 1 if grey else 3, bits), decode
