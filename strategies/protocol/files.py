"""Files that are written whole or not at all, and files of others that are read with care."""

import codecs
import csv
import errno
import fcntl
import io
import os
import re
import secrets
import stat
import time
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO

from strategies.protocol.shapes import ShapeError, ShapeT, from_json

MOST = 64 * 2**20  # bytes of a file of texts or numbers
LARGE = 16  # times as large is a file that has something for each pair of hospitals
# The default folder of hospitals' stores; `expand` refuses it where there is no home.
STORES = Path(os.path.expanduser(os.environ.get("XDG_DATA_HOME", "~/.local/share")), "fedhandoff")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A draft beside `path`, which replaces `path` if the block ends without an error.

    After an error the draft is removed. An error about the draft, or about a full disk, names
    `path`.

    Raises:
        FileNotFoundError: The folder does not exist.
        FileExistsError: `path` is a folder or a device, such as /dev/stdout.
    """
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "This is not a file, and is not replaced", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "There is no such folder", str(path.parent))
    # Not named by the process: in two containers on one volume both may have the number 1.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        yield draft
        os.replace(draft, path)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(draft)):  # None: a full disk
            error.filename = str(path)
        raise


def write_whole(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """Replace a file, as `replacing` does; only this user can read a `private` one."""
    with replacing(path) as draft:
        if private:
            draft.touch(mode=0o600)
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


def write_new(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a new file, which is created with its mode; a FileExistsError if there is one."""
    with open(path, "xb", buffering=0, opener=partial(os.open, mode=mode)) as file:
        try:
            if file.write(content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            path.unlink()  # a part of a key would be in the way of the next attempt
            error.filename = str(path)
            raise


def make_private(folder: Path) -> None:
    """Make a folder for keys, and its missing parents, for this user alone.

    The topmost new folder gets a .gitignore. The documentation has servers and hospitals in
    ~/fedhandoff, which may also be a clone of this repository. Without its .gitignore no new folder
    stays.
    """
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(new):
        each.mkdir(mode=0o700, exist_ok=True)
        if each == new[-1]:
            try:
                write_whole(each / ".gitignore", "*\n")
            except OSError:
                with suppress(OSError):  # another process may use it
                    each.rmdir()
                raise


class FileError(ValueError):
    """A file has wrong content. The text names the file, the place and the cure."""


def expand(path: Path | str) -> Path:
    """A path that people write, with a home folder for its `~`; a FileError if it is unknown."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise FileError(
            f"The home folder in '{path}' is unknown: give a path without ~, or set HOME."
        ) from None


@contextmanager
def open_checked(path: Path, most: int = MOST) -> Iterator[BinaryIO]:
    """Open a file of others for reading, and check its kind and size.

    Raises:
        OSError: It cannot be read, is a pipe or a device, or has more than `most` bytes.
    """
    with open(path, "rb", opener=open_at_once) as file:
        check_kind(file, path)
        if (size := os.fstat(file.fileno()).st_size) > most:
            text = f"This has {size:,} bytes, and at most {most:,} are read"
            raise OSError(errno.EFBIG, text, str(path))
        yield file


def open_at_once(path: str, flags: int) -> int:
    """Open a file for `open`, without a wait at a pipe; a new file is for this user alone."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, mode=0o600)


def lock_once(file: int) -> bool:
    """Lock an open file until it is closed; False if another process has it locked.

    A process that only looks has the lock for a moment (`is_locked`), so this tries for a second.
    """
    for _ in range(20):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.05)
    return False


def is_locked(path: Path) -> bool:
    """Whether a process has locked a file or folder; False on a file system without locks."""
    descriptor = open_at_once(str(path), os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        os.close(descriptor)
    return False


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let one process at a time change the files of a folder in the block."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def check_kind(file: IO[Any], path: Path) -> None:
    """Raise an `OSError` if an open file is a pipe or a device."""
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        raise OSError(errno.EINVAL, "This is a pipe or a device, and not a file", str(path))


def reason_of(error: Exception) -> str:
    """The reason in an error about a file, for a sentence that names the file itself."""
    return getattr(error, "strerror", None) or str(error)


def cure_of(error: Exception, otherwise: str, what: str = "it") -> str:
    """The cure of an error about a file, for a sentence that names the file.

    `otherwise` is the cure if the file is missing or damaged.
    """
    denied = isinstance(error, PermissionError)
    return f"give this user the right to read {what}" if denied else otherwise


def read_bytes(path: Path, most: int = MOST) -> bytes:
    """The content of a file, with the errors of `open_checked`."""
    with open_checked(path, most) as file:
        return file.read()


def read_secret(path: Path) -> bytes:
    """The content of a key or a secret; a FileError if other users can read or write its file."""
    with open_checked(path) as file:
        status = os.fstat(file.fileno())
        if status.st_mode & 0o077 or status.st_uid not in (os.geteuid(), 0):
            raise FileError(
                f"Others can read or write {path}: give it to this user, with mode 0600. If others "
                "may have read a key, make a new one."
            )
        return file.read()


def read_text(path: Path, most: int = MOST) -> str:
    """The text of a file that a program wrote; a FileError if it is not in UTF-8."""
    try:
        return read_bytes(path, most).decode()
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not in UTF-8: restore it from a backup.") from error


def read_json(
    path: Path, shape: type[ShapeT], *, any_version: bool = False, times: int = 1
) -> ShapeT:
    """The value of a JSON file that a program wrote, in the shape of a type (shapes.py).

    The file may have `times` as many bytes and values as others. A FileError if it has another
    shape, or too many values.
    """
    try:
        text = read_bytes(path, times * MOST).decode()
        return from_json(text, shape, any_version=any_version, times=times)
    except (UnicodeDecodeError, ShapeError) as error:
        raise FileError(f"{path} is damaged, or of another version: {error}.") from error


def read_by_hand(path: Path, most: int = MOST) -> str:
    """The text of a file that people write: UTF-8, with or without a byte order mark.

    Raises:
        ValueError: It is in another encoding; names the cure.
    """
    content = read_bytes(path, most)
    # Without a mark one byte of the first letter is zero.
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in content[:2]:
        raise ValueError("the file is in UTF-16 ('Unicode'): save it as UTF-8.")
    try:
        return content.decode("utf-8-sig")  # editors on Windows write such a mark
    except UnicodeDecodeError:
        raise ValueError("the file is not in UTF-8: save it as UTF-8.") from None


def parse_toml(text: str) -> dict[str, Any]:
    """The values in a text of TOML; a ValueError if it is none, or is nested too deeply."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("a value has too many brackets") from None


def read_table(path: Path, names: Iterable[str] = ()) -> list[tuple[int, list[str]]]:
    """The rows of a CSV file that are not empty, each with the number of its last line, from 1.

    Columns are separated by `,`, `;`, `|` or tabs, as spreadsheets of all countries write them: by
    the one that finds most of `names` in the first row, and of these by the most frequent one.

    Raises:
        ValueError: It is no CSV file in UTF-8; names the line, without its content.
    """
    text = read_by_hand(path)
    first = next(filter(str.strip, text.splitlines()), "")
    # Not csv.Sniffer, which may take a letter of the texts for the delimiter.
    named = re.fullmatch(r'"?sep=([,;\t|])"?', first.strip(" "))  # a line for Excel

    def finds(delimiter: str) -> tuple[int, int]:
        fields = {field.strip(' "').casefold() for field in first.split(delimiter)}
        return len(fields.intersection(names)), first.count(delimiter)

    delimiter = named[1] if named else max(",;\t|", key=finds)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows, last = [], 0
    try:
        for row in reader:
            last = reader.line_num
            if any(map(str.strip, row)):
                rows.append((last, row))
    except csv.Error as error:  # a quote that is not closed takes the file to its end
        raise ValueError(f"line {last + 1} is not that of a CSV file ({error}).") from error
    return rows[1:] if named else rows
