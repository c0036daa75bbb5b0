"""The one codec of arrays: what is no archive of whole arrays is refused."""

import zipfile
from io import BytesIO

import numpy as np
import pytest
from flwr.app import Array

from strategies.protocol import archive


def npy(array, old=b"\0\0\0\0nowhere", new=b""):
    file = BytesIO()
    np.save(file, array)
    return file.getvalue().replace(old, new)


def zipped(content):
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive_:
        archive_.writestr("w.npy", content)
    return BytesIO(file.getvalue())


def test_arrays_and_texts_come_out_as_they_went_in():
    arrays = {"a": Array(np.arange(6.0).reshape(2, 3)), "b/c": Array(np.asarray(7))}
    file = BytesIO()
    archive.write(file, arrays, {"label": "ä"})
    assert archive.read(BytesIO(file.getvalue())) == (arrays, {"label": "ä"})


@pytest.mark.parametrize(
    "content",
    [
        b"no array",
        npy(np.zeros(4))[:-1],
        npy(np.zeros(4)) + b"x",
        npy(np.zeros((2, 2)), b"(2, 2), ", b"(-2,-2),"),
        npy(np.array([None, 1])),
    ],
)
def test_what_is_not_a_whole_array_of_numbers_is_refused(content):
    with pytest.raises(archive.ArchiveError):
        archive.read(zipped(content))


def test_what_is_no_archive_is_refused():
    with pytest.raises(archive.ArchiveError):
        archive.read(BytesIO(b"PK nothing"))
