"""Whether a SuperNode is wedged: it waits for an answer that nobody works on.

flower-supernode has each message answered by a process, flwr-clientapp, and waits for the answer
without limit. If the process has gone without one (it was ended with SIGTERM, or died while it
handed the answer over), the SuperNode stays up and connected, and never takes a message again.
What it has written says what it owes, and the processes of its group whether anyone works on it.

A message of a run that has ended meanwhile it ignores, and may have it answered all the same: that
answer goes out in the place of the next one, that one in the place of the one after, and so on.
"""

import subprocess
import sys
import time
from contextlib import suppress
from math import inf
from threading import Thread
from typing import IO

# How many seconds a SuperNode may go without such a process after it has written this.
PATIENCE = {
    b"Received successfully": 90.0,  # if the process was killed, it notices by itself after 60
    b"Sending: ": 900.0,  # the process has done its part; a large answer takes long on a slow line
    b"Ignoring message": 0.0,  # it is idle; before it receives another one
    b"Sent successfully": inf,
    b"Failed to send": inf,
    b"Ignoring reply": inf,
}
LOOK = 5.0  # seconds between two looks at the processes


class Watch:
    """Passes the output of a SuperNode on, and remembers what the SuperNode owes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """Begin to read.

        Args:
            process: Leads a process group, and writes to a pipe, as do those it starts.
        """
        self._group = process.pid
        self._patience = inf
        self._since = self._next_look = 0.0
        # A daemon: what has left the group may hold the pipe open for ever.
        self._reader = Thread(target=self._read, args=(process.stdout,), daemon=True)
        self._reader.start()

    def wedged(self) -> bool:
        """Whether the SuperNode will not answer, or not in time, until it is started again."""
        now = time.monotonic()
        if self._patience == inf or now < self._next_look:
            return False
        self._next_look = now + LOOK
        if _clientapp_in(self._group):
            self._since = now
        return now - self._since >= self._patience

    def close(self) -> None:
        """Pass on what a SuperNode that has ended still had to say."""
        self._reader.join(timeout=1)

    def _read(self, output: IO[bytes]) -> None:
        with output:
            for line in output:
                # Read on if nobody reads what is passed on: a full pipe would stop the SuperNode.
                with suppress(OSError):
                    sys.stdout.buffer.write(line)
                    sys.stdout.buffer.flush()
                for text, patience in PATIENCE.items():
                    if text in line:
                        self._since, self._patience = time.monotonic(), patience


def _clientapp_in(group: int) -> bool:
    """Whether a flwr-clientapp runs in the process group.

    One that has ended, but has not been collected, is listed without its path.
    """
    command = ["ps", "-A", "-ww", "-o", "pgid=", "-o", "args="]
    listed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    lines = (line.strip().partition(b" ") for line in listed.splitlines())
    return any(int(number) == group and b"/flwr-clientapp" in args for number, _, args in lines)
