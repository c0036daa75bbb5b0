"""Sends a run's figures to trackers; a failing tracker does not end the run.

`server_app.results` sends the figures after every round, from the data of metrics.jsonl and
summary.json. Figures that a tracker did not accept are sent again after the next round. A resumed
run sends all its rounds again; a tracker takes each round once.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from logging import INFO, WARNING
from math import isfinite
from pathlib import Path
from typing import Protocol

from flwr.common import log

from server_app.measures import Metrics, Round, RoundEvents, average
from server_app.summary import Summary
from server_app.tracking.mlflow import MLflow
from server_app.tracking.tensorboard import TensorBoard
from strategies.engine.events import Event, visits
from strategies.protocol.extras import install_command
from strategies.protocol.redaction import redact
from strategies.protocol.settings import Settings, SettingsError, require
from strategies.protocol.tested import TESTED

# Names in the setting, which are also those of the extra and of the package.
TRACKERS = ("tensorboard", "mlflow")


class Tracker(Protocol):
    """A program that shows a run's figures. Every method may raise any exception."""

    def check(self) -> str:
        """The destination of the figures, in words; raises if it is not writable."""

    def begin(self, run: str, path: Path, settings: Settings) -> None:
        """Begin a run with a result directory, or continue it: a resumed run keeps its identity."""

    def round(self, number: int, hospitals: Sequence[str], figures: Mapping[str, float]) -> None:
        """Take the figures of a round, unless the tracker has them."""

    def end(self, tags: Mapping[str, str], files: Sequence[Path], page: str) -> None:
        """Take the tags of a run that ended, its `status` first, its files, and its report."""


_Call = Callable[[Tracker], None]


class Feed:
    """Sends a run's figures to all its trackers."""

    def __init__(self, settings: Settings) -> None:
        self._trackers = trackers_of(settings)
        # By tracker, the calls that it has not taken yet
        self._waiting: dict[str, deque[_Call]] = {name: deque() for name in self._trackers}

    def begin(self, run: str, path: Path, settings: Settings) -> None:
        """Begin a run, or continue it."""
        self._tell(lambda tracker: tracker.begin(run, path, settings))

    def round(self, measured: Round, events: Sequence[Event], hospitals: Sequence[str]) -> None:
        """Send a round, its `RoundEvents.events`, and the hospitals that took part so far."""
        if not self._trackers:
            return
        figures = figures_of(measured, events)
        self._tell(lambda tracker: tracker.round(measured.number, hospitals, figures))

    def end(self, summary: Summary, path: Path, render: Callable[[], str]) -> None:
        """Send the end of the run, with files of its result directory; models are not sent.

        `render` makes the report without synthetic images, which are not sent either.
        """
        if not self._trackers:
            return
        page = render()
        names = ("config.toml", "metrics.jsonl", "summary.json", "accuracy_matrix.csv")
        files = [path / name for name in names]
        kinds = sorted({own["kind"] for own in summary.data.values() if own["kind"]})
        # The kinds that hospitals really used replace the setting `dataset`.
        tags = {"status": summary.status} | ({"data": ", ".join(kinds)} if kinds else {})
        tags |= {"noise": "in all figures of hospitals"} if isfinite(summary.noise) else {}
        self._tell(lambda tracker: tracker.end(tags, files, page))
        for name, waiting in self._waiting.items():
            if waiting:
                log(WARNING, "%s has not received all figures of this run", name)

    def _tell(self, call: _Call) -> None:
        for name, waiting in self._waiting.items():
            waiting.append(call)
            failed_before = len(waiting) > 1
            try:
                while waiting:
                    waiting[0](self._trackers[name])
                    waiting.popleft()
            except Exception as error:  # a tracker's library may raise anything
                if not failed_before:
                    reason = redact(str(error))
                    log(WARNING, "Tracking by %s fails, the run continues: %s", name, reason)
            else:
                if failed_before:
                    log(INFO, "Tracking by %s works again, and has all rounds", name)


def trackers_of(settings: Settings) -> dict[str, Tracker]:
    """The trackers of the setting `tracking`, by name.

    Raises:
        SettingsError: A tracker is unknown.
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
    """Check that all trackers can be used.

    Raises:
        SettingsError: A tracker is unknown, not installed, or does not answer.
    """
    for name, tracker in trackers_of(settings).items():
        start = f"The setting 'tracking' is {settings.tracking!r}"
        if find_spec(name) is None:
            raise SettingsError(
                f"{start}, and {name} is not installed here: install it with "
                f"{install_command(name)}, or set tracking=''."
            )
        try:
            log(INFO, "Figures of each round go to %s", redact(tracker.check()))
        except Exception as error:
            raise SettingsError(
                f"{start}, and {name} cannot be used: {error} Start it, or set tracking=''."
            ) from error


def figures_of(measured: Round, events: Sequence[Event]) -> dict[str, float]:
    """All finite figures of a round, by name.

    `run/<figure>` is a figure of the whole run, as in `Summary`; `<figure>/<hospital>` is the same
    figure at a hospital.
    """
    found = {f"run/{name}": value for name, value in measured.figures.items()}
    found["run/seconds"] = measured.seconds
    of_hospital: dict[str, list[Event]] = {}
    for event in events:
        if event.round == measured.number:
            of_hospital.setdefault(event.hospital, []).append(event)
    models = RoundEvents(measured.number, events, cross=False).models
    for hospital, own in sorted(of_hospital.items()):
        tests = {model: at[hospital] for model, at in models.items() if hospital in at}
        found |= {f"{name}/{hospital}": value for name, value in _hospital_figures(own, tests)}
    return {name: value for name, value in found.items() if isfinite(value)}


def _hospital_figures(
    events: Sequence[Event], tests: Mapping[str, Metrics]
) -> Iterator[tuple[str, float]]:
    held = [tests.get(event.lineage, {}) for event in events if event.verb == "hand-off"]
    for metric in TESTED:
        for figure, tested in (("federation", tests.values()), ("personalized", held)):
            name = f"{figure}_{metric.replace('-', '_')}"
            yield name, average(tested, metric)
    yield "train_loss", average((event.metrics for event in visits(events)), "train-loss")
    yield "seconds", sum(event.seconds for event in events)
    yield "megabytes", sum(event.bytes_sent + event.bytes_received for event in events) / 1e6
    yield "failures", sum(event.outcome != "ok" for event in events)
