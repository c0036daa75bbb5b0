"""Follows a run, simulated or deployed, from the files that its server writes.

    uv run fedhandoff watch ~/fedhandoff/runs

In a terminal it shows the state of the run; otherwise it prints the lines of the run's log. It ends
with the run. The exit status is 0 if the run has completed.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pages.verdicts.run import texts
from server_app.live import STATE, LiveState, mark_ended
from server_app.results import LINES
from server_app.summary import NAME as SUMMARY
from server_app.summary import Summary
from strategies.engine.events import LOG
from strategies.protocol.console import WIDTH, duration
from strategies.protocol.files import is_locked, open_checked, read_json
from strategies.protocol.settings import SettingsError
from strategies.protocol.text import Screen, printable

LOOK = 1.0  # seconds between two looks
START_UP = 10.0  # seconds until a server has locked a new directory
# Characters for shares from 0 to 1. Every terminal can show PLAIN.
BLOCKS, PLAIN = " ▁▂▃▄▅▆▇█", " .:-=+*#@"


def watch(place: Path) -> int:
    """Follow a run on this process's output; returns the exit status.

    `place` is a result directory, or a folder of result directories; it need not exist yet.

    Raises:
        SettingsError: It cannot be read as a result directory.
    """
    if place.exists() and not place.is_dir():
        raise SettingsError(f"{place} is not a folder: name a result directory.")
    try:
        # `watch` sets colours and moves the cursor itself, so it needs the plain stream.
        terminal = sys.stdout.stream if isinstance(sys.stdout, Screen) else sys.stdout
        return follow(place.absolute(), Console(file=terminal, highlight=False))
    except (OSError, ValueError, LookupError) as error:
        raise SettingsError(
            f"{place} cannot be read as a result directory: {type(error).__name__}: {error}"
        ) from error


@dataclass
class Followed:
    """The known state of a run."""

    path: Path  # its result directory
    now: LiveState = field(default_factory=LiveState)
    summary: Summary | None = None  # None until it has ended
    _read: int = 0  # bytes of its log

    def look(self) -> list[str]:
        """Read what is new; returns the new lines of the log.

        Raises:
            OSError, FileError: The directory cannot be read.
        """
        # summary.json is read first, since it is written last: then all lines are there.
        with suppress(FileNotFoundError):
            self.summary = Summary.read(self.path, any_version=True)
        with suppress(FileNotFoundError):
            self.now = read_json(self.path / STATE, LiveState, any_version=True)
        with open_checked(self.path / LINES) as file:
            file.seek(self._read)
            *lines, _ = file.read().split(b"\n")  # the last line is empty or incomplete
        self._read += sum(len(line) + 1 for line in lines)
        return [line.decode(errors="replace") for line in lines]

    def state(self) -> str:
        """The status of the run in a few words."""
        if self.summary:
            return self.summary.status
        if is_locked(self.path) or time.time() - self.path.stat().st_mtime < START_UP:
            return "under way"
        return "interrupted"

    def farewell(self) -> Iterator[str]:
        """The last lines about a run that has ended; the very last is its directory."""
        if self.state() == "interrupted":
            yield "The run has stopped before its end, or continues on another machine."
            if resume := mark_ended(self.path):
                yield f"Resume it with --run-config '{resume}'"
        elif self.summary and self.summary.error:
            yield f"The run failed: {self.summary.error}"
        elif self.summary:
            yield from texts(self.summary.worth, "run", "noise", "class")
            took = self.summary.wall_seconds
            after = f", after {duration(took)}" if isfinite(took) else ""
            yield f"The run has {self.summary.status}{after}."
        yield str(self.path)


def follow(place: Path, console: Console) -> int:
    """Show the run of a place, as in `watch`, until its end; returns the exit status."""
    run = Followed(_find_run(place, console))
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            for _ in _look_until_end(run):
                live.update(picture(run, console), refresh=True)
    else:
        for lines in _look_until_end(run):
            for line in lines:
                _say(line, console)
    for line in run.farewell():
        _say(line, console)
    return int(run.summary is None or run.summary.status == "failed")


def _say(line: str, console: Console) -> None:
    console.print(printable(line), soft_wrap=True, markup=False)


def _look_until_end(run: Followed) -> Iterator[list[str]]:
    """The new lines of each look, until the run has ended."""
    while True:
        # Asked before the look: a run that has ended by then has written everything.
        ended = run.state() != "under way"
        yield run.look()
        if ended or run.summary:
            return
        time.sleep(LOOK)


def _find_run(place: Path, console: Console) -> Path:
    """Wait for the result directory to follow."""
    known = _runs(place)
    waiting = False
    while True:
        if (place / LOG).exists():
            return place
        # A new run may have ended by now. A known one may be resumed: its server locks the
        # directory, reads the checkpoint, and only then removes the summary of the failure.
        resumed = [path for path in known if is_locked(path) and not (path / SUMMARY).exists()]
        if found := [path for path in _runs(place) if path not in known] + resumed:
            return max(found, key=lambda path: path.stat().st_mtime)
        if not waiting:
            _say(f"No run is under way in {place}. Waiting for one.", console)
            waiting = True
        time.sleep(LOOK)


def _runs(place: Path) -> list[Path]:
    return [path.parent for path in place.glob(f"*/{LOG}")]


def picture(run: Followed, console: Console) -> Group:
    """The run as a picture of the terminal's width."""
    now = run.now
    parts: list[Any] = [
        Text(printable(run.path), no_wrap=True, overflow="ellipsis"),
        Text(printable(f"{run.state()}: {now.progress}"), style="bold"),
    ]
    figures = Table.grid(padding=(0, 2))
    room = max(10, min(console.width, WIDTH + 20) - 54)
    blocks = BLOCKS if (console.encoding or "").startswith("utf") else PLAIN
    for label, values in now.curves.items():
        known = [value for value in values if isfinite(value)]
        if known:
            figures.add_row(
                Text(printable(label)),
                Text(f"{known[-1]:.3f}", style="bold"),
                Text(curve(known, room, blocks), style="cyan"),
            )
    parts.append(figures)
    if now.noise:
        parts.append(Text(printable(now.noise), style="dim"))
    if now.waits:
        parts.append(Text(printable(now.waits)))
    parts += [Text(printable(text), style="yellow") for text in now.failures]
    return Group(*parts)


def curve(values: Sequence[float], width: int, blocks: str = BLOCKS) -> str:
    """Values from 0 to 1 as a line of text; many values become means over neighbours.

    >>> curve([0.0, 0.5, 1.0], 10)
    '| ▄█|'
    """
    columns = min(width, len(values))
    cuts = [round(k * len(values) / columns) for k in range(columns + 1)]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(cuts)]
    top = len(blocks) - 1
    return f"|{''.join(blocks[round(min(max(mean, 0.0), 1.0) * top)] for mean in means)}|"
