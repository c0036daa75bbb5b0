"""The one codec of arrays: a ZIP archive of NumPy .npy files, which `numpy.load` reads too.

An `Array` of Flower holds its values in the .npy format already, so they are copied unopened.
Archives come from other hospitals, so `read` accepts only archives as `write` makes them: without
compression, and without a size above the bytes that are there. A header is compared with NumPy's
own, and never evaluated.
"""

import errno
import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray

from strategies.protocol.files import open_checked

MAX_TEXT = 64 * 2**20  # bytes of a text: a parcel's manifest, which names all visits of its model
# Limits of an archive that NumPy wrote: bytes of its file, bytes in memory for each byte of the
# file, and extra bytes in memory. Images take 2 to 10 bytes for each byte of the file.
MOST, UNPACKED, ROOM = 2**40, 20, 64 * 2**20
_TYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
_NAMES = {np.dtype(name).str.encode(): name for name in _TYPES}
# The header that `numpy.save` writes, in version 1.0 of the format.
_SIDE = rb"(?:0|[1-9][0-9]{0,17})"
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00(..)(\{'descr': '([^']{3})', 'fortran_order': (?:False|True), "
    rb"'shape': \((S,|S(?:, S)+|)\), \} {0,99}\n)".replace(b"S", _SIDE),
    re.DOTALL,
)


class ArchiveError(ValueError):
    """Bytes are not an archive of arrays."""


def write(
    file: Path | IO[bytes], arrays: Mapping[str, Array], texts: Mapping[str, str] | None = None
) -> None:
    """Write arrays under their names, and texts under theirs, without compression."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", array.data)
        for name, text in (texts or {}).items():
            archive.writestr(name, text)


def read(file: Path | IO[bytes]) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays and the texts of an archive, each by its name; or an ArchiveError."""
    arrays: dict[str, Array] = {}
    texts: dict[str, str] = {}
    named = open_checked(file, MOST) if isinstance(file, Path) else nullcontext(file)
    with named as opened, _open_zip(opened) as archive:
        _check_stored(archive)
        for entry in archive.infolist():
            content = archive.read(entry)
            if entry.filename.endswith(".npy"):
                arrays[entry.filename.removesuffix(".npy")] = array_of(content)
            else:
                texts[entry.filename] = content.decode()
    return arrays, texts


@contextmanager
def _open_zip(file: Path | IO[bytes]) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(file) as archive:
            if len(set(archive.namelist())) < len(archive.namelist()):
                raise ArchiveError("An archive has two arrays of one name.")
            yield archive
    except Exception as error:  # zipfile and numpy fail in many ways
        # EINVAL: in a damaged archive arrays begin before the file does.
        if isinstance(error, ArchiveError) or getattr(error, "errno", errno.EINVAL) != errno.EINVAL:
            raise
        raise ArchiveError(f"Not an archive of arrays ({type(error).__name__}).") from error


def _check_stored(archive: zipfile.ZipFile) -> None:
    """Refuse an archive whose entries take more memory than its file."""
    entries = archive.infolist()
    assert archive.fp is not None
    size = archive.fp.seek(0, 2)
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ArchiveError("An archive is compressed.")
    if sum(entry.file_size for entry in entries) > size:
        raise ArchiveError("An archive announces more bytes than it has.")
    texts = [entry.file_size for entry in entries if not entry.filename.endswith(".npy")]
    if max(texts, default=0) > MAX_TEXT:
        raise ArchiveError(f"An archive has a text of more than {MAX_TEXT} bytes.")


def load(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an archive that NumPy wrote, of any plain type, compressed or not.

    Raises:
        ArchiveError: The file is no such archive, or would take far more memory than its size.
    """
    arrays: dict[str, NDArray[Any]] = {}
    with open_checked(path, MOST) as file, _open_zip(file) as archive:
        _check_unpacked(archive)
        for entry in archive.infolist():
            with archive.open(entry) as content:
                _check_header(content, entry.file_size)
            with archive.open(entry) as content:
                name = entry.filename.removesuffix(".npy")
                arrays[name] = np.lib.format.read_array(content, allow_pickle=False)
    return arrays


def check_unpacked(path: Path) -> None:
    """Refuse (ArchiveError) a ZIP archive that is damaged, or unpacks to far more than its size."""
    if zipfile.is_zipfile(path):
        with open_checked(path, MOST) as file, _open_zip(file) as archive:
            _check_unpacked(archive)


def _check_unpacked(archive: zipfile.ZipFile) -> None:
    assert archive.fp is not None
    size, whole = archive.fp.seek(0, 2), sum(entry.file_size for entry in archive.infolist())
    if whole > ROOM + UNPACKED * size:
        raise ArchiveError(
            f"An archive of {size:,} bytes unpacks to {whole:,}: write it without compression."
        )


def _check_header(file: IO[bytes], size: int) -> None:
    """Refuse an array whose header and bytes have different sizes.

    NumPy would allocate the announced size before it reads a value.
    """
    npy = np.lib.format
    old = npy.read_magic(file) == (1, 0)
    shape, _, dtype = (npy.read_array_header_1_0 if old else npy.read_array_header_2_0)(file)
    values = math.prod(side or 1 for side in shape)  # NumPy leaves out sides of 0
    if dtype.hasobject or not dtype.itemsize > 0 or not 0 < values <= MOST:
        raise ArchiveError(f"An array has the type {dtype} and the shape {shape!s:.80}.")
    if file.tell() + math.prod(shape) * dtype.itemsize != size:
        raise ArchiveError("An array is cut short, or has no such shape.")


def array_of(content: bytes) -> Array:
    """The array of a .npy file, of which only the header is read (`form_of`)."""
    dtype, shape = form_of(content)
    return Array(dtype, shape, "numpy.ndarray", content)


def form_of(content: bytes) -> tuple[str, tuple[int, ...]]:
    """The type and shape of the array of a .npy file; an ArchiveError if it is none of numbers."""
    header = _HEADER.match(content)
    if not header or int.from_bytes(header[1], "little") != len(header[2]):
        raise ArchiveError("An array is not in version 1.0 of the .npy format.")
    dtype, sides = _NAMES.get(header[3]), header[4].split(b",")
    if dtype is None:
        raise ArchiveError(f"An array has the type {header[3]!r}, which is not a type of numbers.")
    shape = tuple(int(side) for side in sides if side)
    values = math.prod(side or 1 for side in shape)  # NumPy leaves out sides of 0
    size = np.dtype(dtype).itemsize * values if all(shape) else 0
    if len(content) != header.end() + size or values > len(content) or len(shape) > 32:
        raise ArchiveError("An array is cut short, or has no such shape.")
    return dtype, shape


def values_of(array: Array) -> NDArray[Any]:
    """The values of an array whose header `array_of` has accepted.

    `Array.numpy` parses the header as Python source. That takes ten times as long as the copy of a
    small network's values.
    """
    start = 10 + int.from_bytes(array.data[8:10], "little")
    order: Literal["C", "F"] = "F" if b"'fortran_order': True" in array.data[10:start] else "C"
    flat = np.frombuffer(array.data, array.dtype, offset=start)
    return flat.reshape(array.shape, order=order).copy(order="K")
