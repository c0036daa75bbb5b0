"""The result directory of a run, `<output-dir>/<time>-<strategy>/`; nothing else writes there.

    config.toml            the settings, for `flwr run . --run-config config.toml`; written first
    metrics.jsonl          one line per event, as soon as it happens
    summary.json           what it all came to: `server_app.measures.Summary`
    accuracy_matrix.csv    models x hospitals, after the last evaluated round
    parcels/               the last good parcel of each model
    report.html            the summary, to look at

The first two are there from the beginning, so that a run that is killed leaves what it measured;
the others are written at its end, most precious first.
"""

import csv
import json
from collections.abc import Mapping
from dataclasses import asdict
from logging import ERROR, INFO, WARNING
from math import isfinite
from pathlib import Path
from time import monotonic, strftime
from typing import Any
from urllib.parse import quote

import tomli_w
from flwr.app import RecordDict
from flwr.common import log

from server_app.measures import Round, Summary, finished, measure_round, summarise, took_part
from strategies.events import Event
from strategies.parcel import save
from strategies.settings import Settings, SettingsError

LONG_ANSWER = 10.0  # seconds after which an answer gets a line of its own in the log
# What the line about a round says, as far as the round was evaluated.
PROGRESS = {
    "federation": "federation_accuracy",
    "ensemble": "ensemble_accuracy",
    "disagreement": "disagreement",
    "personalised": "personalized_accuracy",
    "after visit": "accuracy_after_visit",
    "loss": "train_loss",
}


class Results:
    """The `Journal` of a run, kept on disk.

    Attributes:
        path: The result directory.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path = path
        self._settings = settings
        self._config = tomli_w.dumps(_with_dashes(asdict(settings)))
        self._events: list[Event] = []
        self._rounds: list[Round] = []
        self._began = monotonic()
        self._round_began = self._began
        (path / "config.toml").write_text(self._config, encoding="utf-8")

    @classmethod
    def create(cls, settings: Settings) -> "Results":
        """Make the directory of a new run.

        Raises:
            SettingsError: Nothing can be written to `output-dir`.
        """
        try:
            base = Path(settings.output_dir).expanduser()
            base.mkdir(parents=True, exist_ok=True)
            path = _new_directory(base, f"{strftime('%Y-%m-%d_%H-%M-%S')}-{settings.strategy}")
            return cls(path, settings)
        except (OSError, RuntimeError) as error:  # RuntimeError: no such home directory
            raise SettingsError(
                f"The setting 'output-dir' is {settings.output_dir!r}; it must be a folder that "
                f"the server can write to ({error})."
            ) from error

    def record(self, event: Event) -> None:
        """Write down one event, at once, and log it if a person waits for it."""
        now = monotonic()
        if not self._events or event.round != self._events[-1].round:
            self._round_began = now - event.seconds
        self._events.append(event)
        line = _to_json({"time": round(now - self._began, 3), **vars(event)})
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        _log_event(event)

    def round_finished(self, server_round: int) -> None:
        """Measure a round and log one line about it."""
        events = [event for event in self._events if event.round == server_round]
        seconds = monotonic() - self._round_began
        measured = measure_round(server_round, events, self._settings.evaluate.cross, seconds)
        self._rounds.append(measured)
        figures = [
            f"{label} {measured.figures[name]:.3f}"
            for label, name in PROGRESS.items()
            if isfinite(measured.figures[name])
        ]
        visits = finished(measured.visits)
        accuracies = [row["global_accuracy"] for row in visits if isfinite(row["global_accuracy"])]
        if len(accuracies) > len({row["lineage"] for row in visits}):
            figures.append(f"visits {min(accuracies):.3f} to {max(accuracies):.3f}")
        log(
            INFO,
            "round %d/%d | %s | %d of %d hospitals | %.1f s",
            server_round,
            self._settings.num_server_rounds,
            " | ".join(figures),
            len(measured.trained),
            len(took_part(self._events)),
            seconds,
        )

    def finish(self, parcels: Mapping[str, RecordDict]) -> None:
        """Write what is written at the end of a run.

        Args:
            parcels: The last good parcel of each lineage.
        """
        self._close(parcels, "")

    def fail(self, error: Exception, parcels: Mapping[str, RecordDict]) -> None:
        """Write what there is of a run that an error ended."""
        self._close(parcels, f"{type(error).__name__}: {error}")
        log(ERROR, "The run failed: %s What it came to is in %s", error, self.path)

    def _close(self, parcels: Mapping[str, RecordDict], error: str) -> None:
        wall_seconds = monotonic() - self._began
        summary = summarise(
            self._settings.strategy, self._events, self._rounds, wall_seconds, error
        )
        # Renamed, so that whoever finds summary.json finds all of it.
        draft = self.path / "summary.json.part"
        draft.write_text(_to_json(asdict(summary), indent=2) + "\n", encoding="utf-8")
        draft.replace(self.path / "summary.json")
        self._write_matrix(summary)
        (self.path / "parcels").mkdir()
        for lineage, parcel in parcels.items():
            # A hospital chose this name; quoted, it cannot lead out of the folder.
            save(parcel, self.path / "parcels" / f"{quote(lineage, safe=' ')}.npz")
        # Here, because matplotlib takes a good part of a second.
        from server_app.report import render

        page = render(self.path.name, summary, self._config)
        (self.path / "report.html").write_text(page, encoding="utf-8")

    def _write_matrix(self, summary: Summary) -> None:
        with (self.path / "accuracy_matrix.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["model", *summary.hospitals])
            for model, accuracies in zip(summary.models, summary.accuracy_matrix, strict=True):
                writer.writerow([model, *(a if isfinite(a) else "" for a in accuracies)])


def _log_event(event: Event) -> None:
    where = f"round {event.round}, hop {event.hop}: {event.hospital}"
    if event.outcome != "ok":
        log(WARNING, "%s failed at %s (%s): %s", where, event.verb, event.outcome, event.reason)
    elif event.seconds >= LONG_ANSWER:
        log(INFO, "%s answered %s after %.0f s", where, event.verb, event.seconds)


def _new_directory(base: Path, name: str) -> Path:
    """Make a directory that was not there before: two runs may start within a second."""
    path, number = base / name, 1
    while True:
        try:
            path.mkdir()
            return path
        except FileExistsError:
            number += 1
            path = base / f"{name}-{number}"


def _with_dashes(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under their keys in pyproject.toml."""
    return {
        name.replace("_", "-"): _with_dashes(value) if isinstance(value, dict) else value
        for name, value in fields.items()
    }


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(_without_nan(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _without_nan(value: Any) -> Any:
    """The same with null for NaN and the infinities, which JSON does not have."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return value
