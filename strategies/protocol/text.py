r"""Texts of others, made safe for a screen, a page or a cell of a table.

The name of a class, a file or a run may have any characters. Those that control a terminal, and
those that turn or hide the letters beside them, are shown as Python writes them: \x1b, \u202e.
"""

import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any, TextIO

from strategies.protocol.redaction import redact

COLOURS = re.compile(r"\x1b\[[\d;]*m")  # of Flower's lines
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def printable(value: object, kept: str = "") -> str:
    """A value as text, with control and hidden characters escaped, except those in `kept`."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in kept else each.encode("unicode_escape").decode()
        for each in text
    )


def amount(number: float, noun: str) -> str:
    """A whole number with its noun: "1 seed", "2 seeds", "2 classes"."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{number:.0f} {noun}{'' if number == 1 else plural}"


def setting_text(value: object) -> str:
    """A setting's value as in TOML; a text without its quotes, unless it is empty."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text or '""'


def setting_line(key: str, value: object) -> str:
    """A setting as a line of TOML, such as `sealed = false`, which can be given to a run."""
    # TOML's texts in double quotes are those of JSON.
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else setting_text(value)
    return f"{key} = {text}"


def inert(value: object) -> object:
    """A value for a CSV file that no spreadsheet reads as a formula; numbers stay numbers."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    # Spreadsheets skip blanks, and some read the wide = of Japanese keyboards.
    first = unicodedata.normalize("NFKC", text.lstrip())[:1]
    return f"'{text}" if first in {*"=+-@"} and not _NUMBER.fullmatch(text) else text


class Screen:
    """The output of a command, with `printable` characters only and without passwords."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    @classmethod
    def install(cls) -> None:
        """Send the output and the errors of this process through screens."""
        for name in ("stdout", "stderr"):
            # Python has no stream where a process began without one.
            stream = getattr(sys, name) or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
            if isinstance(stream, TextIOWrapper):  # and no notebook's
                stream.reconfigure(errors="backslashreplace")  # the locale may lack a character
            setattr(sys, name, cls(stream))

    def write(self, text: str) -> int:
        """Print a text. A carriage return alone stays: a command's line of progress needs it."""
        with self._while_read():
            self.stream.write(text if text == "\r" else printable(redact(text), "\n"))
        return len(text)

    def flush(self) -> None:
        """Print what was written so far."""
        with self._while_read():
            self.stream.flush()

    @contextmanager
    def _while_read(self) -> Iterator[None]:
        """Let the output go nowhere once nobody reads it, as after `| head`: work goes on."""
        try:
            yield
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
