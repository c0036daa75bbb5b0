"""Files that are whole or not there at all, wherever the process is killed; and those of people."""

import codecs
import csv
import errno
import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from strategies.protocol.shapes import ShapeError, ShapeT, from_json

MOST = 64 * 2**20  # bytes of a file of texts or numbers
# Where hospitals have their stores unless they say otherwise.
STORES = Path(os.environ.get("XDG_DATA_HOME", "~/.local/share")).expanduser() / "fedhandoff"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A draft beside `path` that takes its place, whole, once the block has ended without an error.

    After an error the draft is removed. An error of the draft names `path`.

    Raises:
        FileNotFoundError: The folder does not exist.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "This folder does not exist", str(path.parent))
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield draft
        os.replace(draft, path)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(draft):
            error.filename = str(path)
        raise


def make_private(folder: Path) -> None:
    """Make a folder for keys, and those above it that are missing, for this user alone.

    The topmost one that is made tells git to leave it alone: ~/fedhandoff, where the documentation
    has servers and hospitals, is where somebody may have cloned this repository to.
    """
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(new):
        each.mkdir(mode=0o700, exist_ok=True)
    if new:
        (new[-1] / ".gitignore").write_text("*\n", encoding="utf-8")


class FileError(ValueError):
    """A file is not what it must be: the text names the file and the place, and what to do."""


@contextmanager
def opened(path: Path, most: int = MOST) -> Iterator[BinaryIO]:
    """A file of others to read, once it is known that it is one, and how large it is.

    Raises:
        OSError: It cannot be read.
        FileError: It is a pipe or a device, or has more than `most` bytes.
    """
    # A pipe would keep whoever opens it waiting for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise FileError(f"{path} is no file: move it away.")
        if facts.st_size > most:
            size = f"{facts.st_size:,} bytes; at most {most:,} are read"
            raise FileError(f"{path} has {size}: move it away.")
        yield file


def read_text(path: Path, most: int = MOST) -> str:
    """The text of a file that a program wrote.

    Raises:
        OSError: It cannot be read.
        FileError: It is no text in UTF-8, or is too large.
    """
    with opened(path, most) as file:
        try:
            return file.read(most).decode()
        except UnicodeDecodeError as error:
            raise FileError(f"{path} is not in UTF-8: move it away.") from error


def read_json(path: Path, shape: type[ShapeT], *, any_version: bool = False) -> ShapeT:
    """The value of a JSON file that a program wrote, in the shape of a type (shapes.py).

    Raises:
        OSError: It cannot be read.
        FileError: It holds something else, or is too large.
    """
    text = read_text(path)
    try:
        return from_json(text, shape, any_version=any_version)
    except ShapeError as error:
        raise FileError(f"{path} is damaged, or of another version: {error}.") from error


def read_by_hand(path: Path) -> str:
    """The text of a file that people write: UTF-8, with or without a byte order mark.

    Raises:
        OSError: It cannot be read.
        ValueError: It is in another encoding, or too large; says what to do.
    """
    try:
        with opened(path) as file:
            return file.read(MOST).decode("utf-8-sig")  # editors on Windows begin with such a mark
    except UnicodeDecodeError as error:
        wide = error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        name = "in UTF-16 ('Unicode')" if wide else "not in UTF-8"
        raise ValueError(f"the file is {name}: save it as UTF-8.") from None


def read_table(path: Path) -> list[tuple[int, list[str]]]:
    """The rows of a CSV file that are not empty, with the numbers of their last lines, from 1.

    As spreadsheets write them in any country: its columns are separated by `,`, `;`, `|` or tabs.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no such file in UTF-8; names the line, and quotes nothing of it.
    """
    text = read_by_hand(path)
    first = next(filter(str.strip, text.splitlines()), "")
    # Not csv.Sniffer, which may take a letter of the texts for the delimiter.
    named = re.fullmatch(r'"?sep=([,;\t|])"?', first.strip(" "))  # a line for Excel
    delimiter = named[1] if named else max(",;\t|", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        rows = [(reader.line_num, row) for row in reader if any(map(str.strip, row))]
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num} is not that of a CSV file ({error}).") from error
    return rows[1:] if named else rows
