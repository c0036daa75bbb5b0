"""The one codec of arrays: a ZIP archive of NumPy .npy files, which `numpy.load` reads too.

An `Array` of Flower holds its values in the .npy format already: they go in and come out unopened.
"""

import math
import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import IO

from flwr.app import Array
from numpy.lib import format as npy


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
    """The arrays and the texts of an archive, each by its name.

    Raises:
        ArchiveError: It is no such archive.
        OSError: The file cannot be read.
    """
    arrays: dict[str, Array] = {}
    texts: dict[str, str] = {}
    try:
        with zipfile.ZipFile(file) as archive:
            for entry in archive.namelist():
                content = archive.read(entry)
                if entry.endswith(".npy"):
                    arrays[entry.removesuffix(".npy")] = _array(content)
                else:
                    texts[entry] = content.decode()
    # zipfile raises NotImplementedError for a compression that it does not know.
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError) as error:
        raise ArchiveError(f"Not an archive of arrays: {error}") from error
    return arrays, texts


def _array(content: bytes) -> Array:
    """The array of a .npy file, of which the header alone is read."""
    file = BytesIO(content)
    if npy.read_magic(file) != (1, 0):
        raise ValueError("an array is not in version 1.0 of the .npy format")
    shape, _, dtype = npy.read_array_header_1_0(file)
    size = dtype.itemsize * math.prod(shape)
    if dtype.hasobject or min(shape, default=0) < 0 or len(content) - file.tell() != size:
        raise ValueError("an array is cut short, or of Python objects")
    return Array(str(dtype), shape, "numpy.ndarray", content)
