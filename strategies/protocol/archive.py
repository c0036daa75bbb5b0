"""The one codec of arrays: a ZIP archive of NumPy .npy files, which `numpy.load` reads too.

An `Array` of Flower holds its values in the .npy format already, so they go in unopened.
"""

import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import IO

import numpy as np
from flwr.app import Array


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
                    array = np.load(BytesIO(content), allow_pickle=False)
                    arrays[entry.removesuffix(".npy")] = Array(array)
                else:
                    texts[entry] = content.decode()
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError) as error:
        raise ArchiveError(f"Not an archive of arrays: {error}") from error
    return arrays, texts
