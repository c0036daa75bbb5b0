"""Follows a run, simulated or deployed, from the files that its server writes.

    uv run fedhandoff watch ~/fedhandoff/runs

In a terminal it shows the state of the run; otherwise it prints a line per event. It ends with the
run. The exit status is 0 if the run has completed.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import isfinite, nan
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pages.verdicts.run import texts
from server_app import wording
from server_app.enrolment import expected_count
from server_app.live import mark_ended
from server_app.measures import Round, participants
from server_app.results import UNDER_WAY, UnderWay
from server_app.summary import LABELS, Summary, measure_round
from server_app.summary import NAME as SUMMARY
from strategies.engine.courier import Awaited
from strategies.engine.events import LOG, UNDO, Event, read_events
from strategies.protocol.console import WIDTH, duration
from strategies.protocol.files import FileError, is_locked, read_json
from strategies.protocol.run_config import read_config
from strategies.protocol.settings import Settings, SettingsError
from strategies.protocol.text import Screen, printable
from strategies.registry import strategy_of

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
    settings: dict[str, Any]  # its config.toml, by key
    rounds: int  # number of rounds
    finished: int = 0  # number of finished rounds
    done: list[Round] = field(default_factory=list)  # finished rounds that have events
    events: list[Event] = field(default_factory=list)  # without the tests of finished rounds
    waits: Sequence[Awaited] = ()  # answers that the server waits for
    summary: Summary | None = None  # None until it has ended
    _read: int = 0  # bytes of metrics.jsonl
    # The events of unfinished rounds (`RoundEvents.events`)
    _open: dict[int, list[Event]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> "Followed":
        """Begin to follow the run of a result directory.

        Raises:
            OSError, FileError: The directory cannot be read.
        """
        settings = read_config(path / "config.toml")
        rounds = settings.get("num-server-rounds")
        if type(rounds) is not int or type(settings.get("strategy")) is not str:
            raise FileError(f"{path}/config.toml has no num-server-rounds, or no strategy.")
        return cls(path, settings, rounds)

    @property
    def seconds_left(self) -> float:
        """Estimated seconds until the end of the run; NaN = unknown, as in virtual time."""
        virtual = self.settings.get("async.seconds")
        return nan if virtual else wording.time_left(self.done, self.rounds)

    def look(self) -> list[Event]:
        """Read the new lines; returns the new events."""
        if (self.path / LOG).stat().st_size < self._read:  # a resumed run has dropped events
            self.done, self.events, self._open = [], [], {}
            self._read = self.finished = 0
        # summary.json is read first, since it is written last: then all events are there.
        under_way = UnderWay()
        with suppress(FileNotFoundError):
            self.summary = Summary.read(self.path, any_version=True)
        with suppress(FileNotFoundError):
            under_way = read_json(self.path / UNDER_WAY, UnderWay)
        new = []
        for event, end in read_events(self.path / LOG, self._read):
            self._read = end
            new.append(event)
            for number in {event.round} | (self._open.keys() if event.verb == UNDO else set()):
                if number > self.finished:  # as of the look before
                    self._open.setdefault(number, []).append(event)
        self.waits = under_way.waits
        self.finished = self.summary.rounds if self.summary else under_way.rounds
        for number in sorted(each for each in self._open if each <= self.finished):
            self.done.append(measure_round(number, self._open.pop(number), self._cross))
        self.events += [each for each in new if each.verb != "evaluate"]
        return new

    @cached_property
    def _cross(self) -> bool | str:
        with suppress(SettingsError):  # settings of other versions may not parse
            return strategy_of(Settings.parse(self.settings)).cross
        chosen: bool | str = self.settings.get("evaluate.cross", False)
        return chosen

    def expected_hospitals(self, number: int) -> int:
        """The number of hospitals that are expected to train in a round.

        Only those count that joined before its end. A hospital joins in round 0, at any time.
        """
        # A visit may be undone after its round.
        own = (k for k, e in enumerate(self.events, 1) if e.round == number and e.verb != UNDO)
        events = self.events[: max(own, default=0)]
        with suppress(SettingsError):
            return expected_count(Settings.parse(self.settings), events, number)
        return len(participants(events))

    def state(self) -> str:
        """The status of the run in a few words."""
        if self.summary:
            return self.summary.status
        if is_locked(self.path) or time.time() - self.path.stat().st_mtime < START_UP:
            return "under way"
        return "interrupted"

    def headline(self) -> Iterator[str]:
        """Two lines: the run, and its state."""
        yield f"{self.settings['strategy']}, {self.path}"
        state, hospitals = self.state(), len(participants(self.events))
        left = self.seconds_left if state == "under way" else nan
        where = wording.progress_line(self.finished, self.rounds, hospitals, left)
        yield f"{state}: {where}"

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
    run = Followed.open(_find_run(place, console))
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            for _ in _look_until_end(run):
                live.update(picture(run, console), refresh=True)
    else:
        for line in lines(run):
            _say(line, console)
    for line in run.farewell():
        _say(line, console)
    return int(run.summary is None or run.summary.status == "failed")


def _say(line: str, console: Console) -> None:
    console.print(printable(line), soft_wrap=True, markup=False)


def _look_until_end(run: Followed) -> Iterator[list[Event]]:
    """The new events of each look, until the run has ended."""
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


def lines(run: Followed) -> Iterator[str]:
    """The run as lines, for a file or another program."""
    measured_before, printed, silence = 0, time.time(), 60.0
    yield next(run.headline())
    for events in _look_until_end(run):
        new = [line[1] for event in events if (line := wording.event_line(event))]
        for measured in run.done[measured_before:]:
            hospitals = run.expected_hospitals(measured.number)
            newest = measured is run.done[-1] and not run.summary
            left = run.seconds_left if newest else nan
            new.append(wording.round_line(measured, run.rounds, hospitals, left))
        measured_before, now = len(run.done), time.time()
        if not new and run.waits and now - printed >= silence:
            new, silence = [wording.wait_line(run.waits, now)], 2 * silence
        elif new:
            silence = 60.0
        printed = now if new else printed
        yield from new


def picture(run: Followed, console: Console) -> Group:
    """The run as a picture of the terminal's width."""
    title, where = run.headline()
    parts: list[Any] = [
        Text(printable(title), no_wrap=True, overflow="ellipsis"),
        Text(printable(where), style="bold"),
    ]
    figures = Table.grid(padding=(0, 2))
    for label, values in _curves(run.done).items():
        room = max(10, min(console.width, WIDTH + 20) - 54)
        blocks = BLOCKS if (console.encoding or "").startswith("utf") else PLAIN
        best = max(values, key=lambda pair: pair[1])
        figures.add_row(
            Text(label),
            Text(f"{values[-1][1]:.3f}", style="bold"),
            Text(curve([value for _, value in values], room, blocks), style="cyan"),
            Text(f"best {best[1]:.3f}, round {best[0]}", style="dim"),
        )
    parts.append(figures)
    if run.done and (noise := wording.noise_text(run.done[-1].figures)):
        parts.append(Text(noise, style="dim"))
    waits = wording.waits_since(run.waits if not run.summary else (), time.time())
    parts += [Text(printable(text)) for text in waits]
    failures = wording.failures(run.events)[-wording.FAILURES :]
    parts += [Text(printable(text), style="yellow") for text in failures]
    return Group(*parts)


def _curves(done: Sequence[Round]) -> dict[str, list[tuple[int, float]]]:
    """By label, the main figures as pairs of round and value."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for measured in done:
        for name in wording.main_figures(measured.figures):
            value = measured.figures[name]
            curves.setdefault(LABELS[name], []).append((measured.number, value))
    return curves


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
