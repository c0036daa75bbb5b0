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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from client_app.datasets.files.dicom import is_dicom, open_dicom
from client_app.datasets.files.image import (
    MAX_BYTES,
    MAX_PIXELS,
    TOO_LARGE,
    Header,
    Opened,
    UnusableImage,
)
from client_app.datasets.files.nifti import open_nifti
from client_app.datasets.files.picture import open_picture

SUFFIX = re.compile(  # at the end of a name in lower case
    r"\.(avif|bmp|gif|jpg|jpeg|jpe|jfif|jp2|j2k|png|ppm|pgm|pbm|pnm|tif|tiff|webp|dcm|dicom"
    r"|nii|nii\.gz)\Z"
)
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
            return is_dicom(stream.read(132))
    except UnusableImage:
        return False
    except OSError:
        return True  # the listing then reports that the file cannot be read


@contextmanager
def _open_regular(file: Path) -> Iterator[IO[bytes]]:
    """Open a regular file. A pipe would wait for a writer, and a device has no end."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UnusableImage("is no regular file")
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
        UnusableImage: The image cannot be used.
    """
    with _unusable_on_error():
        return _open(io.BytesIO(content), slice_, size)[1]()


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
    elif slice_:
        raise UnusableImage("is no volume, and has no such slice")
    elif is_dicom(start) and not zipped:
        opened = open_dicom(stream)
    else:
        opened = open_picture(stream, size)
    if opened[0].width * opened[0].height > MAX_PIXELS:
        raise UnusableImage(TOO_LARGE)
    return opened
