"""What Flower's programs print, as a log for people: a line when something happens, with the time.

Flower's SuperNode prints seven lines for every message and its SuperLink one for every question
that is asked several times a second. Here lines that are known are translated or left out, and all
others are passed on. With FLWR_LOG_LEVEL=DEBUG everything is passed on as it is.
"""

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from deploy.transport import LISTENS
from strategies.protocol.text import COLOURS

# What Flower's lines begin with when they are no warnings.
_INFO = re.compile(r"^(INFO +:|\S+Z INFO \[uvicorn\.\w+\]|INFO:) +|^(INFO +:)$")
_LEVEL = re.compile(r"^(WARNING|ERROR) +: +")
# Known lines that say nothing to people.
_CHATTER = re.compile(
    r"Starting Flower|Starting the SuperLink|EXPERIMENTAL: SuperExec|Successfully installed "
    r"|(Started|Finished) server process|Waiting for application|Application (startup|shutdown)"
    r"|Uvicorn running|Shutting down|FastAPI lifespan|SuperLinkLifespan|Start `flwr-"
    r"|\[RUN |Received successfully|Sending: |ControlServicer|\[ControlServicer|\[Fleet\."
    r"|Started task |All logs for run|Connection (attempt failed|successful)"
    r'|\S+ - "\w+ \S+ HTTP/[\d.]+" [23]\d\d'
)
# What a SuperNode says around the reason for which it has not been let in.
_REFUSAL = re.compile(
    r"Exit Code: 305|Failed to initialize the connection|The SuperNode could not establish"
    r"|For more information, visit:"
)
MISSED = 6  # failed attempts to connect after which the other end counts as away
PARDON = 20  # further ones that a refused SuperNode has before that


class Voice:
    """Prints what a program says, one line after the other.

    Args:
        note: Is handed every line that is printed.
    """

    def __init__(self, note: Callable[[str], None] = lambda text: None) -> None:
        self.note = note
        self._raw = os.environ.get("FLWR_LOG_LEVEL", "").upper() == "DEBUG"

    def hear(self, line: bytes) -> None:
        """Take in one line of output, and print what is to be said about it."""
        if self._raw:
            # Read on even if nobody takes it: a full pipe stops the program.
            with suppress(OSError):
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
            return
        text = COLOURS.sub("", line.decode(errors="replace")).replace("\t", "    ").rstrip()
        # No other program moves the cursor of whoever reads this.
        plain = _INFO.sub("", "".join(filter(str.isprintable, text)))
        said = self.translate(_LEVEL.sub("", plain))
        if said is None:
            said = "" if _CHATTER.match(_LEVEL.sub("", plain)) else plain
        if said.strip():
            say(_LEVEL.sub(lambda found: f"{found[1].lower()}: ", said))
            self.note(said)

    def translate(self, text: str) -> str | None:
        """What to say instead of a line; empty = nothing, None = it is not known here."""
        return None


class SuperNodeVoice(Voice):
    """What a hospital's SuperNode says.

    Args:
        hospital: Its name.
        server: The address of the server.
        note: Is handed every line that is printed.
    """

    def __init__(
        self, hospital: str, server: str, note: Callable[[str], None] = lambda text: None
    ) -> None:
        super().__init__(note)
        self.hospital, self.server = hospital, server
        self._verb, self._since, self._missed = "", 0.0, 0

    def translate(self, text: str) -> str | None:
        """See `Voice`."""
        if text.startswith("SuperNode ID: "):
            self._missed = 0
            return f"{self.hospital} is connected to {self.server} and waits for a run."
        if "[code: 2004]" in text:
            # A SuperNode that is refused ends with failed attempts: for a while these say nothing.
            self._missed = -PARDON
            return (
                f"{self.server} answers and refuses {self.hospital}, whose key it does not know: "
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
    """What the server's SuperLink says.

    Args:
        names: Those of the hospitals, by their nodes.
    """

    def __init__(self, names: Callable[[], Mapping[str, str]]) -> None:
        super().__init__()
        self.names = names

    def translate(self, text: str) -> str | None:
        """See `Voice`."""
        if found := re.match(r"\[Fleet\.(A|Dea)ctivateNode\] \w+ node_id=(\d+)", text):
            hospital = self.names().get(found[2], f"node {found[2]}")
            return f"{hospital} {'is connected' if found[1] == 'A' else 'has disconnected'}"
        if found := re.match(r"(Created run|Finished task \d+ of run) (\d+)", text):
            return f"run {found[2]} {'begins' if found[1] == 'Created run' else 'has ended'}"
        if found := LISTENS.match(text):
            return f"Hospitals can connect on {found[1]}."
        return None


def say(text: str) -> None:
    """Print a line with the time."""
    with suppress(OSError):
        print(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {text.rstrip()}", flush=True)
