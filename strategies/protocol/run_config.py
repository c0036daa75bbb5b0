"""The settings that a command line changes, read as Flower reads them."""

import codecs
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strategies.protocol.files import (
    FileError,
    expand,
    parse_toml,
    read_by_hand,
    read_bytes,
    read_text,
    reason_of,
)
from strategies.protocol.settings import SettingsError
from strategies.protocol.shapes import from_value

MOST = 2**20  # bytes of a file of settings
Value = bool | int | float | str  # of a setting, as in Flower
# Finds the settings in a text, as Flower does.
_PAIR = re.compile(r"(\S+?)=(\'[^\']*\'|\"[^\"]*\"|\S+)")


def changes_of(texts: Sequence[str]) -> dict[str, Any]:
    """The settings that `--run-config` changes, read as Flower reads them.

    Texts are settings such as "strategy='cwt' train.epochs=5"; or one TOML file alone.

    Raises:
        SettingsError: The texts cannot be read. Flower itself skips texts that are not key=value.
    """
    files = [text for text in texts if text.endswith(".toml")]
    if files and len(texts) > 1:
        raise SettingsError(f"--run-config takes either {files[0]} alone, or settings.")
    where = f"--run-config names {files[0]}, which" if files else "--run-config"
    try:
        return _flat(_read(expand(files[0]))) if files else parse_pairs(" ".join(texts))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{where} cannot be read: {reason_of(error)}") from error


def parse_pairs(text: str) -> dict[str, Any]:
    """The values in a text of `key=value` that spaces separate; a ValueError if it is none."""
    return _flat(_toml(text))


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a file that a run wrote, such as its config.toml; a FileError without any."""
    text = read_text(path, MOST)
    try:
        return dict(from_value(_flat(text), dict[str, Value]))
    except ValueError as error:
        raise FileError(f"{path} has no settings of a run: {error}.") from error


def _flat(text: str) -> dict[str, Any]:
    """The values in a text of TOML, by their keys with dots."""
    from flwr.common.config import flatten_dict  # imports an HTTP client

    try:
        return dict(flatten_dict(parse_toml(text)))
    except RecursionError:
        raise ValueError("a key has too many dots") from None


def _read(file: Path) -> str:
    text = read_by_hand(file)
    if read_bytes(file).startswith(codecs.BOM_UTF8):
        raise ValueError(
            f"{file} begins with a byte order mark (BOM), which Flower does not read: save it as "
            "UTF-8 without one."
        )
    return text


def _toml(text: str) -> str:
    """Settings that spaces separate, as lines of TOML."""
    first: dict[str, str] = {}
    for key, value in _PAIR.findall(text):
        if key in first:
            raise ValueError(f"{key} is there twice, as {first[key]} and as {value}: keep one.")
        first[key] = value
        try:
            parse_toml(f"{key} = {value}")
        except ValueError:
            near = f": {key}='{value}'" if re.fullmatch(r"[A-Za-z][\w:/~.-]*", value) else ""
            raise ValueError(
                f"{key}={value} is not a number, true or false, and a text needs quotes{near}."
            ) from None
    if rest := _PAIR.sub("", text).strip():
        raise ValueError(f"{rest!r} is not a setting: write key=value, without spaces at the =.")
    return "\n".join(f"{key} = {value}" for key, value in first.items())
