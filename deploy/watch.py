"""Detects a wedged SuperNode, which waits for an answer that no process works on.

flower-supernode starts a process for each message, flwr-clientapp, and waits for the answer without
limit. If the process ends without an answer (by SIGTERM, or while it hands the answer over), the
SuperNode stays up and connected, but never accepts a message again. Its output shows whether it
owes an answer. The output of the app is another pipe (programs/flower-supernode), and is not
searched. The processes of its group show whether a process works on the answer.

A SuperNode ignores a message of an ended run, but a process may still answer that message. Then the
SuperNode sends this answer in place of the next one, and every later answer one message late.

A SuperNode gives up a message if it fails to fetch the content, and does not report this to the
server. The server would wait for the answer until its time limit. The restart informs the server.
"""

import subprocess
import time
from math import inf
from threading import Thread
from typing import IO

from deploy.voice import Voice

# Seconds that a SuperNode may be without a flwr-clientapp after it has written a line.
PATIENCE = {
    b"Received successfully": 90.0,  # it notices a killed process by itself after 60 s
    b"Sending: ": 900.0,  # its process has ended; a large answer takes long on a slow line
    b"Ignoring message": 0.0,  # restart it before it receives another message
    b"Failed to receive message": 0.0,
    b"Sent successfully": inf,
    b"Failed to send": inf,
    b"Ignoring reply": inf,
}
LOOK = 5.0  # seconds between two lists of processes


class Watch:
    """Passes on the output of a SuperNode, and remembers whether the SuperNode owes an answer."""

    def __init__(self, process: subprocess.Popen[bytes], voice: Voice) -> None:
        """Start to read the output: stdout of the SuperNode, stderr of the rest of its group."""
        self.process, self._voice = process, voice
        self._patience = inf
        self._since = self._next_look = 0.0
        # Daemon threads: a process that has left the group may hold a pipe open for ever.
        self._readers = [
            Thread(target=self._read, args=(output, output is process.stdout), daemon=True)
            for output in (process.stdout, process.stderr)
            if output
        ]
        for reader in self._readers:
            reader.start()

    def wedged(self) -> bool:
        """Whether the SuperNode has to be restarted."""
        now = time.monotonic()
        if self._patience == inf or now < self._next_look:
            return False
        self._next_look = now + LOOK
        if _clientapp_in(self.process.pid):
            self._since = now
        return now - self._since >= self._patience

    def close(self) -> None:
        """Pass on the rest of the output of a SuperNode that has ended."""
        for reader in self._readers:
            reader.join(timeout=3)  # a process that outlives it may hold its output open

    def _read(self, output: IO[bytes], is_own: bool) -> None:
        with output:
            for line in output:
                self._voice.hear(line, is_own)
                for text, patience in PATIENCE.items():
                    if is_own and text in line:
                        self._since, self._patience = time.monotonic(), patience


def _clientapp_in(group: int) -> bool:
    """Whether a flwr-clientapp runs in the process group.

    `ps` lists an ended process that nobody has waited for without its path.
    """
    command = ["ps", "-A", "-ww", "-o", "pgid=", "-o", "args="]
    listed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    lines = (line.strip().partition(b" ") for line in listed.splitlines())
    return any(int(number) == group and b"/flwr-clientapp" in args for number, _, args in lines)
