"""The result directory of a run, `<output-dir>/<time>-<strategy>/`; nothing else writes there.

    config.toml            the settings, for `flwr run . --run-config config.toml`; written first.
                           At the end of the run, comments name the images that hospitals used
                           instead of `dataset`
    metrics.jsonl          one line per event, as soon as it happens
    summary.json           the figures of the run: `server_app.summary.Summary`
    accuracy_matrix.csv    models x hospitals, after the last evaluated round
    log.txt                the lines of the log about the run
    under-way.json         the state of the run, for `fedhandoff watch`: `server_app.live.LiveState`
    parcels/               the last good parcel of each model
    report.html            the summary as a page; during the run a page that loads itself again
    tensorboard/           with the setting `tracking` (server_app/tracking)
    checkpoint/            the state for a resumed run (strategies/engine/checkpoint.py), until the
                           run has completed or its settings were refused; and resume.toml, the
                           settings to resume with

The first two files exist from the beginning, so a killed run keeps its measurements. The files of
the end are written in the order of their value. A resumed run drops the lines of metrics.jsonl that
are younger than the checkpoint, and repeats these events.
"""

import csv
import errno
import os
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from logging import ERROR, INFO
from math import ceil, isfinite, isnan, nan
from pathlib import Path
from time import monotonic, strftime
from typing import Any, Self
from urllib.parse import quote

import tomli_w
from flwr.common import log
from flwr.common.config import unflatten_dict
from pydantic_core import to_json

from pages.verdicts.run import texts
from server_app import live, wording
from server_app.data import describe
from server_app.enrolment import expected_count, plan_of
from server_app.measures import Round, participants
from server_app.report import render
from server_app.report.pictures import pictures
from server_app.summary import NAME as SUMMARY
from server_app.summary import Record, Summary, judge_with_baseline, measure_round, summarise
from server_app.tracking import feed
from server_app.tracking.feed import Feed
from strategies.engine import checkpoint
from strategies.engine.checkpoint import CheckpointError
from strategies.engine.courier import Awaited
from strategies.engine.events import LOG, UNDO, Event, read_events
from strategies.engine.shelf import Shelf
from strategies.engine.state import State
from strategies.engine.strategy import RunError
from strategies.protocol.archive import ArchiveError
from strategies.protocol.code import app_version, code_hash
from strategies.protocol.declared import excerpt
from strategies.protocol.files import (
    FileError,
    expand,
    lock_once,
    reason_of,
    replacing,
    write_whole,
)
from strategies.protocol.parcel import save
from strategies.protocol.run_config import read_config
from strategies.protocol.settings import MAY_CHANGE, Settings, SettingsError
from strategies.protocol.text import amount, inert, printable
from strategies.registry import strategy_of

# Seconds of silence before the log names the awaited hospitals: at first, and at most. The time
# doubles after each such line.
SILENCE, LONGEST_SILENCE = 30.0, 900.0
LINES = "log.txt"
TIME = "%Y-%m-%d_%H-%M-%S"  # of the start, in the name of a result directory
CURES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space on that disk"),  # or of the quota
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "make that folder writable"),
}


@dataclass(frozen=True)
class _Notes:
    """The server's part of a checkpoint."""

    bytes: int  # of metrics.jsonl
    seconds: float
    rounds: int  # the number of finished ones
    resumed: int


class Results:
    """The `Journal` of a run, on disk.

    Attributes:
        path: The result directory.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path = path
        self._settings = settings
        self._cross = strategy_of(settings).cross
        self._config = ""
        self._events: list[Event] = []  # without successful tests of finished rounds
        self._rounds: list[Round] = []
        self._feed = Feed(settings)
        self._resumed = 0
        self._began = monotonic()  # as if the run had not been interrupted
        self._awaited: Sequence[Awaited] = ()
        self._page = live.LivePage(path)
        self._classes: list[str] = []
        self._spoke, self._silence = self._began, SILENCE
        self._said: tuple[int, str] | None = None  # the last line about an event

    @classmethod
    def open(cls, settings: Settings) -> tuple[Self, State]:
        """The directory of a new or resumed run, and its first state.

        Raises:
            SettingsError: `output-dir` is not writable; or `resume` names no run that can be
                resumed, or one with other settings; or a tracker (`tracking`) is missing.
        """
        feed.check(settings)
        try:
            if settings.resume:
                key, allowed = "resume", "the result directory of a run that has not completed"
                results = cls(expand(settings.resume), settings)
                state = results._go_on()
            else:
                key, allowed = "output-dir", "a folder that the server can write to"
                base = expand(settings.output_dir)
                base.mkdir(parents=True, exist_ok=True)
                path = _new_directory(base, f"{strftime(TIME)}-{settings.strategy}")
                results = cls(path, settings)
                state = results._begin()
        except (OSError, CheckpointError, FileError) as error:
            raise SettingsError(
                f"The setting '{key}' is {settings.run_config[key]!r}; it must be {allowed} "
                f"({reason_of(error)})."
            ) from error
        results._feed.begin(state.run, results.path, settings)
        for measured in results._rounds:
            results._put_away(measured)
        results._write_live_page()
        return results, state

    def _begin(self) -> State:
        keys = unflatten_dict(self._settings.run_config)
        self._config = tomli_w.dumps(keys)
        write_whole(self.path / "config.toml", self._config)
        (self.path / LINES).touch()
        (self.path / LOG).touch()
        state = State(Shelf(self._checkpoint), uuid.uuid4().hex)
        resume = tomli_w.dumps({**keys, "resume": str(self.path)})
        write_whole(self._checkpoint / "resume.toml", resume)
        self._claim()
        rounds = self._settings.num_server_rounds
        self._say(INFO, f"{self._settings.strategy}, {amount(rounds, 'round')}: {self.path}")
        return state

    def _claim(self) -> None:
        """Lock the directory while this process lives: two servers would mix their lines.

        A stopped run may live for a while, since its server learns of the stop late.
        """
        directory = os.open(self.path, os.O_RDONLY)
        try:
            if not lock_once(directory):
                os.close(directory)
                raise CheckpointError("its server still runs: wait until it has ended")
        except OSError:
            os.close(directory)  # a file system without locks

    def _go_on(self) -> State:
        self._claim()  # first: a server that still runs may yet end, and remove its checkpoint
        state, notes = checkpoint.load(self._checkpoint, _Notes)
        config = read_config(self.path / "config.toml")
        self._config = tomli_w.dumps(unflatten_dict(config))
        check_same(self._settings, config, self._checkpoint / "resume.toml")
        metrics = self.path / LOG
        if not 0 <= notes.bytes <= metrics.stat().st_size:
            raise CheckpointError(f"{metrics} is shorter than it was at its checkpoint")
        os.truncate(metrics, notes.bytes)
        (self.path / SUMMARY).unlink(missing_ok=True)  # it describes the failure
        self._events = [*read_events(self.path / LOG)]
        for number in range(1, notes.rounds + 1):
            self._measure(number)
        self._classes = state.outputs
        self._resumed = notes.resumed + 1
        self._began = monotonic() - notes.seconds
        self._say(INFO, f"The run of {self.path} goes on")
        return state

    @property
    def _checkpoint(self) -> Path:
        return self.path / "checkpoint"

    def keep(self, state: State) -> None:
        """Write a checkpoint from which the run can be resumed."""
        state.shelf.sync(self.path / LOG)
        size = (self.path / LOG).stat().st_size
        notes = _Notes(size, monotonic() - self._began, len(self._rounds), self._resumed)
        checkpoint.save(state, asdict(notes))
        self._classes = state.outputs

    def record(self, event: Event) -> None:
        """Write one event at once; log a failure or a slow answer."""
        if isnan(event.time):
            event = replace(event, time=round(monotonic() - self._began, 3))
        if isnan(event.began):
            event = replace(event, began=round(event.time - event.seconds, 3))
        self._events.append(event)
        fields = {key: value for key, value in vars(event).items() if key != "facts" or value}
        record = to_json({"time": event.time, **fields}, inf_nan_mode="null")
        with (self.path / LOG).open("ab") as file:
            file.write(record + b"\n")
        line = wording.event_line(event)
        if line and line != self._said:  # a hospital tests several models in one answer
            self._said = line
            self._say(*line)

    def round_finished(self, server_round: int) -> None:
        """Measure a round, and log one line about it."""
        measured = self._measure(server_round)
        rounds, left = self._settings.num_server_rounds, self._seconds_left
        count = expected_count(self._settings, self._events, server_round)
        self._say(INFO, wording.round_line(measured, rounds, count, left))
        self._put_away(measured)
        if self._page.is_due:
            self._write_live_page()

    def _put_away(self, measured: Round) -> None:
        """Send a round to the trackers, then forget its successful tests: up to a million."""
        self._feed.round(measured, self._round_events(measured.number), participants(self._events))
        tests = (measured.number, "evaluate", "ok")
        self._events = [e for e in self._events if (e.round, e.verb, e.outcome) != tests]

    def _round_events(self, server_round: int) -> list[Event]:
        """The `RoundEvents.events` of a round."""
        return [e for e in self._events if e.round == server_round or e.verb == UNDO]

    def waits_for(self, awaited: Sequence[Awaited]) -> None:
        """Note the missing answers; log them after a long silence."""
        now = monotonic()
        self._awaited = awaited
        if self._page.is_due:
            self._write_live_page()
        quiet = now - max(self._spoke, min((each.since for each in awaited), default=now))
        if quiet >= self._silence:
            longer = min(2 * self._silence, LONGEST_SILENCE)
            self._say(INFO, wording.wait_line(awaited, now))
            self._silence = longer

    def _state(self, left: float = nan) -> live.LiveState:
        """The state of the run; `left` is the estimated number of seconds until its end."""
        failures, hospitals = wording.failures(self._events), participants(self._events)
        done, rounds = len(self._rounds), self._settings.num_server_rounds
        return live.LiveState(
            progress=wording.progress_line(done, rounds, len(hospitals), left),
            curves=wording.curves(self._rounds),
            noise=wording.noise_text(self._rounds[-1].figures) if done else "",
            waits=wording.wait_line(self._awaited, monotonic()) if self._awaited else "",
            failed=len(failures),
            failures=failures[-wording.FAILURES :],
        )

    def _write_live_page(self) -> None:
        """Write the page of the run so far."""

        def report() -> str:
            summary = self._summarise(self._events, self._classes, monotonic() - self._began)
            seconds = ceil(live.PAUSE)
            return render(self.path.name, summary, self._events, self._config, live=seconds)

        contents = len(self._events), len(self._rounds)
        self._page.write(lambda: self._state(self._seconds_left), report, contents)

    def _say(self, level: int, text: str) -> None:
        log(level, "%s", text)
        with (self.path / LINES).open("a", encoding="utf-8") as file:
            print(printable(text), file=file)
        self._spoke, self._silence = monotonic(), SILENCE

    @property
    def _seconds_left(self) -> float:
        """Estimated seconds until the end of the run; NaN = unknown, as in virtual time."""
        if self._settings.asynchrony.seconds:
            return nan
        return wording.time_left(self._rounds, self._settings.num_server_rounds)

    def _measure(self, server_round: int) -> Round:
        measured = measure_round(server_round, self._round_events(server_round), self._cross)
        if measured.is_evaluated:
            self._rounds = [each.drop_tests() for each in self._rounds]
        self._rounds.append(measured)
        return measured

    def finish(self, state: State, baseline: Callable[[], Summary | None] | None = None) -> Summary:
        """Write the files of a completed run; returns its summary, compared with a `baseline`."""
        summary = self._close(state, "", baseline)
        checkpoint.remove(self._checkpoint)
        return summary

    def explain(self, error: Exception | KeyboardInterrupt) -> Exception:
        """The error itself; for a folder that takes no files, and for Ctrl-C, one with the cure."""
        if isinstance(error, KeyboardInterrupt):
            return RunError("It was ended by Ctrl-C.")
        if not isinstance(error, OSError):
            return error
        if not self.path.is_dir():
            return RunError(f"{self.path} was removed under way: start the run again.")
        if error.errno not in CURES:
            return error
        return RunError(
            f"The server cannot write to {self.path} ({error.strerror}): {CURES[error.errno]}, "
            "then resume the run."
        )

    def fail(self, error: Exception, state: State) -> None:
        """Write the results of a failed run so far, and log how to resume it.

        Settings that were refused before the first hop leave no checkpoint: a resumed run would
        have the same settings.
        """
        if not self.path.is_dir():
            log(ERROR, "The run failed: %s", error)
            return
        # The disk may be full, the log unreadable, or a parcel damaged.
        with suppress(OSError, FileError, ArchiveError):
            summary = self._close(state, f"{type(error).__name__}: {error}")
            for text in texts(summary.worth, "run", "noise", "class"):
                log(INFO, "%s", text)
        log(ERROR, "The run failed: %s Its results so far are in %s", error, self.path)
        if isinstance(error, SettingsError) and (state.round, state.hop) == (1, 0):
            checkpoint.remove(self._checkpoint)
        else:
            log(INFO, "Resume it with --run-config '%s'", self._checkpoint / "resume.toml")

    def _close(
        self, state: State, error: str, baseline: Callable[[], Summary | None] | None = None
    ) -> Summary:
        wall_seconds = monotonic() - self._began
        events = [*read_events(self.path / LOG)]
        summary = self._summarise(events, state.outputs, wall_seconds, error)
        if baseline and (compared := baseline()):
            summary = judge_with_baseline(summary, compared)
        config = describe(summary.data, self._settings.dataset) + self._config
        write_whole(self.path / "config.toml", config)
        content = to_json(summary, inf_nan_mode="null") + b"\n"
        self._awaited = ()
        live.write_state(self.path, self._state())
        write_whole(self.path / SUMMARY, content)
        self._write_matrix(summary)
        (self.path / "parcels").mkdir(exist_ok=True)
        for name, model in state.models.items():
            if name == model.lineage:  # not a copy that FedAvg averages
                # A hospital chose this name; quoted, it cannot lead out of the folder.
                path = self.path / "parcels" / f"{quote(name, safe=' ')}.npz"
                with replacing(path) as draft:
                    save(state.shelf.get(model.parcel), draft)
        page = render(self.path.name, summary, events, config, pictures(state))
        write_whole(self.path / live.NAME, page)
        without_pictures = partial(render, self.path.name, summary, events, config)
        self._feed.end(summary, self.path, without_pictures)
        return summary

    def _summarise(
        self, events: list[Event], classes: list[str], wall_seconds: float, error: str = ""
    ) -> Summary:
        settings = self._settings
        task_at = strategy_of(settings).task_at
        record = Record(
            strategy=settings.strategy,
            events=events,
            rounds=self._rounds,
            wall_seconds=wall_seconds,
            error=error,
            resumed=self._resumed,
            classes=classes,
            timed=settings.asynchronous or bool(settings.asynchrony.seconds),
            tasks=[*map(task_at, range(1, settings.num_server_rounds + 1))],
            own_streams=settings.own_streams,
            enrolment=plan_of(settings, events),
            began=_start_of(self.path.name),
            ended=datetime.now().astimezone().isoformat(timespec="seconds"),
            version=app_version(),
            code=code_hash(),
        )
        return summarise(record)

    def _write_matrix(self, summary: Summary) -> None:
        path = self.path / "accuracy_matrix.csv"
        with replacing(path) as draft, draft.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            corner = "model (accuracies with noise)" if isfinite(summary.noise) else "model"
            writer.writerow([corner, *map(inert, summary.hospitals)])
            for model, accuracies in zip(summary.models, summary.accuracy_matrix, strict=True):
                writer.writerow([inert(model), *(a if isfinite(a) else "" for a in accuracies)])


def _start_of(name: str) -> str:
    """The start of a run by its directory's name, in ISO 8601; empty if the name has no time."""
    try:
        return datetime.strptime(name[:19], TIME).astimezone().isoformat()
    except ValueError:
        return ""


def _new_directory(base: Path, name: str) -> Path:
    """Make a new directory; two runs may start within a second."""
    path, number = base / name, 1
    while True:
        try:
            path.mkdir()
            return path
        except FileExistsError:
            number += 1
            path = base / f"{name}-{number}"


def check_same(settings: Settings, config: dict[str, Any], resume: Path) -> None:
    """Refuse to resume a run with other settings.

    Raises:
        SettingsError: A setting differs that may not change.
    """
    now = settings.run_config
    for key in sorted((config.keys() | now.keys()) - MAY_CHANGE):
        if config.get(key) != now.get(key):
            raise SettingsError(
                f"The setting '{key}' is {excerpt(now.get(key))}, but the run to resume has "
                f"{excerpt(config.get(key))}: resume it with --run-config '{resume}'."
            )
