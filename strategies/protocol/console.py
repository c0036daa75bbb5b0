"""The lines about a run on a terminal: plain, and no wider than the terminal.

    14:20:31  round   1/100  balanced accuracy 0.242  held 0.038  2 min left

Flower's lines come through the same logger. Some are empty. All have colours, in files too.
"""

import logging
import os
import sys
import textwrap
from logging import INFO, WARNING, FileHandler, LogRecord, StreamHandler
from stat import S_ISREG
from time import localtime, monotonic, strftime
from typing import Self, TextIO

from strategies.protocol.redaction import redact
from strategies.protocol.text import printable

WIDTH = 80  # columns
CLOCK = "%H:%M:%S  "
INDENT = "  "  # of the further lines of a record, at least
PAUSE = 10.0  # seconds between two lines about one piece of work
_FAREWELL = "Manually terminating ClientAppActor"  # by Flower, at the end of a simulation


class Console(logging.Handler):
    """Prints log records as plain lines, and skips empty ones.

    A line begins with the time in the format `clock`, and has at most `width` columns. All further
    lines of a record begin with blanks, and line breaks of its text are escaped: texts of others,
    such as a server's, cannot look like a record of their own.

    Attributes:
        last: The text that must stand last; repeated if Flower logs more as its process ends.
        reported: An error that the console has already reported; Flower's record of it is skipped.
    """

    def __init__(self, clock: str = CLOCK, width: int = WIDTH) -> None:
        super().__init__(INFO)
        self.clock, self.width = clock, width
        self.last = self._newest = ""
        self.reported: BaseException | None = None

    @classmethod
    def install(cls, clock: str = CLOCK, width: int = WIDTH) -> Self:
        """Let a console replace Flower's own handler; the first console of this process."""
        logger, console = logging.getLogger("flwr"), cls(clock, width)
        if os.environ.get("FLWR_LOG_LEVEL", "").upper() == "DEBUG":  # all of Flower's lines
            return console
        for handler in logger.handlers:
            if isinstance(handler, cls):  # Flower loads the hospitals' app later, in this process
                return handler
        logger.addHandler(console)
        logger.addFilter(_remove_others)
        # With a handler there, `logging.basicConfig` of a library (opacus) does nothing. Its own
        # handler would print each line again, with passwords and control characters.
        logging.getLogger().addHandler(logging.NullHandler())
        return console

    def emit(self, record: LogRecord) -> None:
        """Print a record."""
        try:
            text = record.getMessage().strip()
            known = record.exc_info and self.reported and record.exc_info[1] is self.reported
            if text and text != _FAREWELL and not known:
                self._print(self.format(record))
                self._newest = text
            if record.funcName == "flwr_exit" and self.last not in ("", self._newest):
                self._print(self.lay_out(self.last))
        except Exception:  # as every handler: logging must not end a run
            self.handleError(record)

    @staticmethod
    def _print(lines: str) -> None:
        # In one piece: other processes and threads print to the same output.
        print(printable(redact(f"{lines}\n"), "\n"), end="", flush=True)

    def format(self, record: LogRecord) -> str:
        """The lines of a record."""
        level = f"{record.levelname.lower()}: " if record.levelno >= WARNING else ""
        # Flower's last text has several lines.
        kept = "\t\n" if record.funcName == "flwr_exit" else "\t"
        lines = [self.lay_out(level + printable(record.getMessage().strip(), kept))]
        if record.exc_info:
            trace = logging.Formatter().formatException(record.exc_info)
            lines += [f"{INDENT}{line}" for line in trace.splitlines()]
        return "\n".join(lines)

    def lay_out(self, text: str) -> str:
        """The lines of a text, behind the time of day; no word or path is broken.

        In a file each text is one line, so that programs can search it.
        """
        clock = strftime(self.clock, localtime())
        wrapper = textwrap.TextWrapper(
            sys.maxsize if _is_file(sys.stdout) else self.width,
            initial_indent=clock,
            subsequent_indent=" " * len(clock) or INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines: list[str] = []
        for paragraph in text.splitlines():
            lines += wrapper.wrap(paragraph)
            wrapper.initial_indent = wrapper.subsequent_indent if lines else clock
        return "\n".join(lines)


def _remove_others(_: LogRecord) -> bool:
    """Remove Flower's own handler. Flower may add it after the console, at its first import."""
    logger = logging.getLogger("flwr")
    for handler in [*logger.handlers]:
        if isinstance(handler, StreamHandler) and not isinstance(handler, FileHandler):
            logger.removeHandler(handler)
    return True


def _is_file(stream: TextIO) -> bool:
    try:
        return S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (AttributeError, OSError):  # no stream, or none of the operating system's
        return False


class Pace:
    """Logs now and then the progress of a long piece of work, its rate and the time left.

    `what` is the work, such as "graz trains"; `unit` the noun of the counted things, such as
    "images"; and `bound` stands before the time left, such as "at most".
    """

    def __init__(self, what: str, unit: str = "", bound: str = "") -> None:
        self.what = what
        self.unit, self.bound = unit and f" {unit}", bound and f"{bound} "
        self.began = self.printed = monotonic()
        self.first = self.done = -1  # -1 = unknown; an earlier process may have begun

    def __call__(self, done: int, total: int, more: str = "") -> None:
        """Log a line that ends with `more`, unless the last line was a moment ago.

        `total` is the number of all things, at most.
        """
        now = monotonic()
        if self.first < 0 or done < self.done:
            self.first, self.began = done, now
        elif done > self.first and now - self.printed >= PAUSE:
            self.printed = now
            rate = (done - self.first) / (now - self.began)
            speed = f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"
            left = duration((total - done) / rate)
            logging.getLogger("flwr").info(
                f"{self.what}: {done} of {total}{self.unit}, {speed}/s, {self.bound}{left} left"
                + (f", {more}" if more else "")
            )
        self.done = done


def duration(seconds: float) -> str:
    """A length of time in words: 40 s, 12 min, 3.5 h, 2.1 days."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"
