"""The output of Flower's programs as a log for people: one line for an event, with the time.

Flower's SuperNode prints seven lines for every message. Its SuperLink prints a line for every
request, several times a second. This module translates known lines or leaves them out, and passes
all other lines on. With FLWR_LOG_LEVEL=DEBUG it passes everything on unchanged.
"""

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from deploy.transport import LISTENS
from strategies.protocol.text import COLOURS

# The beginning of Flower's lines that are no warnings.
_INFO = re.compile(r"^(INFO +:|\S+Z INFO \[uvicorn\.\w+\]|INFO:) +|^(INFO +:)$")
_LEVEL = re.compile(r"^(WARNING|ERROR) +: +")
# Known lines that are of no use to people.
_CHATTER = re.compile(
    r"Starting Flower|Starting the SuperLink|EXPERIMENTAL: SuperExec|Successfully installed "
    r"|(Started|Finished) server process|Waiting for application|Application (startup|shutdown)"
    r"|Uvicorn running|Shutting down|FastAPI lifespan|SuperLinkLifespan|Start `flwr-"
    r"|\[RUN |Received successfully|Sending: |ControlServicer|\[ControlServicer|\[Fleet\."
    r"|Started task |All logs for run|Connection (attempt failed|successful)"
    r'|\S+ - "\w+ \S+ HTTP/[\d.]+" [23]\d\d'
)
# Lines of a refused SuperNode around the reason of the refusal.
_REFUSAL = re.compile(
    r"Exit Code: 305|Failed to initialize the connection|The SuperNode could not establish"
    r"|For more information, visit:"
)
MISSED = 6  # failed attempts to connect after which the other end counts as away
PARDON = 20  # further failed attempts that are ignored after a refusal


class Voice:
    """Prints the output of a program, line by line."""

    ready = True  # whether the program has come so far that a restart can help if it ends

    def __init__(self) -> None:
        self._raw = os.environ.get("FLWR_LOG_LEVEL", "").upper() == "DEBUG"

    def hear(self, line: bytes, is_own: bool = True) -> None:
        """Take one line of output, and print it, or its translation if there is one.

        Only lines of the program itself are translated (`is_own`), not those of its apps.
        """
        if self._raw:
            # Errors of stdout are ignored, so that reading goes on: a full pipe stops the program.
            with suppress(OSError):
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
            return
        text = COLOURS.sub("", line.decode(errors="replace")).replace("\t", "    ").rstrip()
        # Control characters could move the reader's cursor.
        plain = _INFO.sub("", "".join(filter(str.isprintable, text)))
        without_level = _LEVEL.sub("", plain)
        translated = self.translate(without_level) if is_own else None
        if translated is None:
            translated = "" if _CHATTER.match(without_level) else plain
        if translated.strip():
            say(_LEVEL.sub(lambda found: f"{found[1].lower()}: ", translated))

    def translate(self, text: str) -> str | None:
        """The text instead of a line; empty = no text, None = the line is unknown."""
        return None


class SuperNodeVoice(Voice):
    """Prints the output of a hospital's SuperNode."""

    def __init__(self, hospital: str, server: str) -> None:
        super().__init__()
        self.hospital, self.server = hospital, server
        self._verb, self._since, self._missed = "", 0.0, 0

    def translate(self, text: str) -> str | None:
        """See `Voice`."""
        if text.startswith("SuperNode ID: "):
            self._missed = 0
            return f"{self.hospital} is connected to {self.server} and waits for a run."
        if "[code: 2004]" in text:
            # A refused SuperNode ends with failed attempts, which are ignored for a while.
            self._missed = -PARDON
            return (
                f"{self.server} refuses {self.hospital} because it does not know its key: "
                f"ask its operator to register {self.hospital}.pub. It also refuses for a minute "
                "after a crash, and while a SuperNode with this key is connected from elsewhere."
            )
        if _REFUSAL.match(text):
            return ""
        if text.startswith("Connection attempt failed"):
            self._missed += 1
            away = f"{self.server} cannot be reached; {self.hospital} tries again and again."
            return away if self._missed == MISSED else ""
        if text.startswith("Connection successful"):
            back = self._missed >= MISSED
            self._missed = 0
            return f"{self.server} can be reached again." if back else ""
        if found := re.match(r"Receiving: (\S+) message", text):
            self._verb, self._since = found[1], time.monotonic()
            return "" if self._verb == "query.live" else f"{self._verb}: at work"
        if text.startswith("Sent successfully"):
            took = time.monotonic() - self._since
            answered = f"{self._verb}: answered after {took:.0f} s; waits for the next message"
            return "" if self._verb == "query.live" else answered
        return None


class SuperLinkVoice(Voice):
    """Prints the output of the server's SuperLink.

    `names` returns the names of the hospitals, by node.
    """

    def __init__(self, names: Callable[[], Mapping[str, str]]) -> None:
        super().__init__()
        self.names = names
        self.ready = self._raw

    def translate(self, text: str) -> str | None:
        """See `Voice`."""
        if found := re.match(r"\[Fleet\.(A|Dea)ctivateNode\] \w+ node_id=(\d+)", text):
            names: Mapping[str, str] = {}
            with suppress(OSError, ValueError):  # a damaged file must not end the reading
                names = self.names()
            hospital = names.get(found[2], f"node {found[2]}")
            return f"{hospital} {'is connected' if found[1] == 'A' else 'has disconnected'}"
        if found := re.match(r"(Created run|Finished task \d+ of run) (\d+)", text):
            return f"run {found[2]} {'begins' if found[1] == 'Created run' else 'has ended'}"
        if found := LISTENS.match(text):
            self.ready = True
            return f"Hospitals can connect on {found[1]}."
        return None


def say(text: str) -> None:
    """Print a line with the time."""
    with suppress(OSError):
        print(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {text.rstrip()}", flush=True)
