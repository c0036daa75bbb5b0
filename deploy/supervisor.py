"""Keeps programs running: restarts a program that ends, and ends all programs together.

A service of systemd restarts this supervisor. It could not restart the SuperLink alone, whose runs
go on meanwhile, nor a SuperNode that runs without working (`deploy.watch`).
"""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deploy.errors import DeployError
from deploy.voice import Voice, say
from deploy.watch import Watch
from strategies.protocol.files import write_whole

PAUSE = 5.0  # seconds before a restart
GRACE = 20.0  # seconds for a program to end after SIGTERM
HERE = "127.0.0.1,localhost,::1"
# Flower's name for the folder of an app: publisher.name.version.hash
APP = re.compile(r"[^.]+\.[^.]+\..+\.[0-9a-f]{8}")


def forget_apps(home: Path) -> None:
    """Delete Flower's unpacked apps: Flower never completes an interrupted unpacking.

    The server's folder may have a folder `apps` of its operator: only Flower's names are deleted.
    """
    for each in (home / "apps").glob("*"):
        if APP.fullmatch(each.name):
            shutil.rmtree(each, ignore_errors=True)


def write_secret(folder: Path) -> Path:
    """Write a file with a new secret; a SuperExec needs the secret to get a message or a run.

    Not in /tmp, where systemd removes old files: a program that is restarted reads it again.
    """
    path = folder / "secret"
    write_whole(path, secrets.token_bytes(32), private=True)
    return path


def flower_environment(home: Path, level: str = "INFO") -> dict[str, str]:
    """The environment of a Flower program of this installation, with its files in `home`.

    A user's FLWR_LOG_LEVEL can change the log `level` only to DEBUG: `deploy.watch` needs the lines
    of a SuperNode.
    """
    debugs = os.environ.get("FLWR_LOG_LEVEL", "").upper() == "DEBUG"
    # Requests to this machine use no proxy; others use the proxies that the environment names.
    exempt = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    direct = f"{exempt},{HERE}" if exempt else HERE
    # With a SOCKS proxy httpx, and so Flower's programs, would end with an error.
    usable = {
        key: value
        for key, value in os.environ.items()
        if not (key.lower().endswith("_proxy") and value.startswith("socks"))
    }
    return {
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        **usable,
        "no_proxy": direct,
        "NO_PROXY": direct,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "FLWR_HOME": str(home),
        "FLWR_LOG_LEVEL": "DEBUG" if debugs else level,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        # A notebook or a CI sets FORCE_COLOR; Flower's JSON would then have colours.
        "TTY_COMPATIBLE": "0",
        "PYTHONUTF8": "1",
    }


@dataclass
class Program:
    """A program that is restarted when its process ends."""

    command: Sequence[str]  # the command line; its first word is the program's name
    folder: Path  # the working directory; made if it does not exist
    environment: Mapping[str, str]
    voice: Voice  # passes the program's output on
    hint: str = ""  # for people, if the program ends
    watched: bool = False  # whether it is a SuperNode, which is also restarted when it is wedged
    _watch: Watch | None = None  # of the process that runs
    _next_start: float = 0.0

    def look_after(self) -> None:
        """Start the program if it is not running and its pause is over; end it if it is wedged.

        Raises:
            DeployError: The program has ended and was never ready.
        """
        name = self.command[0]
        if self._watch is None:
            if time.monotonic() >= self._next_start:
                self._start()
        elif (status := self._watch.process.poll()) is not None:
            self._end_group()
            if not self.voice.ready:
                raise DeployError(f"{name} ended (status {status}) at its start. {self.hint}")
            say(f"{name} ended (status {status}); it is restarted in {PAUSE:.0f} s. {self.hint}")
            self._next_start = time.monotonic() + PAUSE
        elif self.watched and self._watch.wedged():
            say(
                f"{name} waits for an answer that no process works on, would send the answer to an "
                "ignored message, or has received an incomplete message; it is restarted."
            )
            self.end()
            self.wait()

    def end(self) -> None:
        """Send the program SIGTERM."""
        if self._watch:
            self._watch.process.terminate()

    def wait(self) -> None:
        """Wait for the program to end, then kill the rest of its process group."""
        if self._watch:
            with suppress(subprocess.TimeoutExpired):
                self._watch.process.wait(GRACE)
            self._end_group()

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            self.command,
            cwd=self.folder,
            env=self.environment,
            start_new_session=True,  # a process group of its own, which Ctrl-C does not reach
            umask=0o077,  # other users of the machine must not read images and models
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if self.watched else subprocess.STDOUT,
        )
        self._watch = Watch(process, self.voice)

    def _end_group(self) -> None:
        """Kill all processes of the program: they would live on and hold a GPU."""
        assert self._watch
        with suppress(ProcessLookupError):
            os.killpg(self._watch.process.pid, signal.SIGKILL)
        self._watch.process.wait()
        self._watch.close()
        self._watch = None


def keep_running(*programs: Program) -> None:
    """Keep programs running until SIGTERM, SIGINT or SIGHUP, then end them, the last one first.

    SIGHUP is the end of the terminal. It is ignored where it was ignored before, as by nohup.
    """
    stopping = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        while not stopping:
            for program in programs:
                program.look_after()
            time.sleep(0.2)
        say("Ending.")
    finally:
        for program in reversed(programs):
            program.end()
        for program in reversed(programs):
            program.wait()
