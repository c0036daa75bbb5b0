"""Hands a run's figures to trackers, none of which can end the run.

A tracker is told what metrics.jsonl and summary.json are made of, by `server_app.results`, and
after every round. What it could not be told it is told again after the next round. A run that is
resumed tells all its rounds anew: a tracker takes each round once.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from logging import INFO, WARNING
from math import isfinite
from pathlib import Path
from typing import Protocol

from flwr.common import log

from server_app.measures import METRICS, Round, mean
from server_app.summary import Summary
from server_app.tracking.mlflow import MLflow
from server_app.tracking.tensorboard import TensorBoard
from strategies.engine.events import Event
from strategies.protocol.redaction import redacted
from strategies.protocol.settings import Settings, SettingsError, require

# By their names in the setting, which are the extras that bring them and their packages' names.
TRACKERS = {"tensorboard": TensorBoard, "mlflow": MLflow}


class Tracker(Protocol):
    """Somewhere that a run's figures are shown. Every method may raise anything."""

    def check(self) -> str:
        """Where the figures go, for people; raises if nothing can be written there."""

    def begin(self, run: str, path: Path, settings: Settings) -> None:
        """Begin with a run, or go on with it if it has been begun before.

        Args:
            run: Identity of the run, for as long as it goes on.
            path: Its result directory.
            settings: Its settings.
        """

    def round(self, number: int, hospitals: Sequence[str], figures: Mapping[str, float]) -> None:
        """Take the figures of a round, unless it has been taken before."""

    def end(self, tags: Mapping[str, str], files: Sequence[Path]) -> None:
        """Take what is known of a run that ended, its `status` first, and files about it."""


@dataclass
class _Line:
    """What a tracker has not been told yet."""

    tracker: Tracker
    waiting: deque[Callable[[Tracker], None]]
    broken: bool = False


class Feed:
    """Tells all trackers of a run what they show."""

    def __init__(self, settings: Settings) -> None:
        self._lines = {
            name: _Line(tracker, deque()) for name, tracker in trackers_of(settings).items()
        }

    def begin(self, run: str, path: Path, settings: Settings) -> None:
        """A run begins, or goes on."""
        self._tell(lambda tracker: tracker.begin(run, path, settings))

    def round(self, measured: Round, events: Sequence[Event], hospitals: Sequence[str]) -> None:
        """A round is over.

        Args:
            measured: Its figures.
            events: What happened in it.
            hospitals: Those that have taken part so far.
        """
        figures = figures_of(measured, events)
        self._tell(lambda tracker: tracker.round(measured.number, hospitals, figures))

    def end(self, summary: Summary, path: Path) -> None:
        """The run is over, and its result directory written; no model leaves that."""
        names = ("config.toml", "metrics.jsonl", "summary.json", "accuracy_matrix.csv")
        files = [path / name for name in (*names, "report.html")]
        kinds = sorted({own["kind"] for own in summary.data.values() if own["kind"]})
        # What hospitals really used, in the place of the setting.
        tags = {"status": summary.status} | ({"data": ", ".join(kinds)} if kinds else {})
        tags |= {"noise": "in all figures of hospitals"} if isfinite(summary.noise) else {}
        self._tell(lambda tracker: tracker.end(tags, files))
        for name, line in self._lines.items():
            if line.waiting:
                log(WARNING, "%s has not been told all of this run", name)

    def _tell(self, what: Callable[[Tracker], None]) -> None:
        for name, line in self._lines.items():
            line.waiting.append(what)
            try:
                while line.waiting:
                    line.waiting[0](line.tracker)
                    line.waiting.popleft()
            except Exception as error:  # whatever a library or a server of others comes up with
                if not line.broken:
                    said = redacted(str(error))
                    log(WARNING, "Tracking by %s fails, the run goes on: %s", name, said)
                line.broken = True
            else:
                if line.broken:
                    log(INFO, "Tracking by %s works again, and has all rounds", name)
                line.broken = False


def trackers_of(settings: Settings) -> dict[str, Tracker]:
    """The trackers that a run names, by name.

    Raises:
        SettingsError: One is unknown.
    """
    found: dict[str, Tracker] = {}
    for text in filter(None, map(str.strip, settings.tracking.split(","))):
        name, colon, place = text.partition(":")
        known = name in TRACKERS and (not colon or bool(place and name == "mlflow"))
        allowed = "empty, tensorboard, mlflow or mlflow:<tracking URI>; both with a comma"
        require(known, "tracking", settings.tracking, allowed)
        found[name] = (
            MLflow(place, Path(settings.output_dir)) if name == "mlflow" else TensorBoard()
        )
    return found


def check(settings: Settings) -> None:
    """Refuse to begin with a tracker that is not there.

    Raises:
        SettingsError: A tracker is unknown, or not installed, or does not answer.
    """
    for name, tracker in trackers_of(settings).items():
        start = f"The setting 'tracking' is {settings.tracking!r}"
        if find_spec(name) is None:
            raise SettingsError(
                f"{start}, and {name} is not installed here: install it with "
                f"`uv sync --extra {name}`, or set tracking=''."
            )
        try:
            log(INFO, "Figures of each round go to %s", redacted(tracker.check()))
        except Exception as error:
            raise SettingsError(
                f"{start}, and {name} cannot be used: {error} Start it, or set tracking=''."
            ) from error


def figures_of(measured: Round, events: Sequence[Event]) -> dict[str, float]:
    """What trackers show of a round: all finite figures, by name.

    `run/<figure>` is that of the whole run, as in `Summary`; `<figure>/<hospital>` the same at a
    hospital.
    """
    found = {f"run/{name}": value for name, value in measured.figures.items()}
    found["run/seconds"] = measured.seconds
    of_hospital: dict[str, list[Event]] = {}
    for event in events:
        of_hospital.setdefault(event.hospital, []).append(event)
    for hospital, own in sorted(of_hospital.items()):
        found |= {f"{name}/{hospital}": value for name, value in _at_hospital(own)}
    return {name: value for name, value in found.items() if isfinite(value)}


def _at_hospital(events: Sequence[Event]) -> Iterator[tuple[str, float]]:
    tests = {event.lineage: event.metrics for event in events if event.verb == "evaluate"}
    held = [tests.get(event.lineage, {}) for event in events if event.verb == "hand-off"]
    for metric in METRICS:
        for figure, tested in (("federation", tests.values()), ("personalized", held)):
            name = f"{figure}_{metric.replace('-', '_')}"
            yield name, mean(each[metric] for each in tested if metric in each)
    visits = [event.metrics for event in events if event.verb.startswith("train")]
    yield "train_loss", mean(each["train-loss"] for each in visits if "train-loss" in each)
    yield "seconds", sum(event.seconds for event in events)
    yield "megabytes", sum(event.bytes_sent + event.bytes_received for event in events) / 1e6
    yield "failures", sum(event.outcome != "ok" for event in events)
