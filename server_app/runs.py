"""Finds result directories on disk: runs that can be compared, and reasons against the others.

runs, left_out = find([Path("~/fedhandoff/runs")])
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

from pages.figures import Assessment
from pages.verdicts.model import mean_chance
from server_app.live import mark_ended
from server_app.measures import mean
from server_app.summary import NAME as SUMMARY
from server_app.summary import Summary
from strategies.engine.events import LOG
from strategies.protocol.files import FileError, expand, is_locked, read_text, reason_of
from strategies.protocol.may_leave import FIGURE
from strategies.protocol.run_config import read_config
from strategies.protocol.tested import TESTED

# Limits for reading, since other people's folders may contain anything. LONGEST is the number of
# letters of a name or a reason.
MOST_RUNS, MOST_HOSPITALS, LONGEST = 2000, 2000, 300
CONFIG = "config.toml"
METRICS = {name.replace("-", "_"): figure for name, figure in TESTED.items()}


@dataclass(frozen=True)
class CompletedRun:
    """A run that has completed."""

    path: Path  # its result directory
    # Its config.toml, by key; `visits` says which were lost on purpose, `own-settings` what its
    # hospitals replaced.
    settings: dict[str, Any]
    status: str
    hospitals: list[str]  # those that answered
    figures: dict[str, float]  # those that are a single number
    curves: dict[str, dict[int, float]]  # the same figures by evaluated round
    kinds: set[str]  # kinds of its hospitals' images
    # Means of `METRICS` by metric, hospital, and whether only models count that it held.
    tests: dict[tuple[str, str, bool], float]
    # The hospitals behind figures that have no means by hospital, by figure; of figures over tasks,
    # those behind each time that it compares.
    behind: dict[str, list[list[str]]]
    # For each hospital its reported image counts and hashes; equal names are comparable.
    images: dict[str, dict[str, object]]
    # By metric, the figure of a constant answer, mean over hospitals; for the accuracy, the answer
    # is the most frequent class.
    constant: dict[str, float]
    code: str  # its commit, as noted by benchmarks.reproduce, or its hash; empty = unknown


def find(places: Iterable[Path]) -> tuple[list[CompletedRun], dict[Path, str]]:
    """All runs in some places: result directories, or folders that contain some at any depth.

    Returns:
        The runs; and the places without a comparable run, with the reasons.
    """
    runs: dict[Path, CompletedRun] = {}
    left_out: dict[Path, str] = {}
    for place in dict.fromkeys(Path(os.path.realpath(expand(path))) for path in places):
        found = list(islice(_directories(place), MOST_RUNS + 1))
        if not found:
            reason = "holds no run" if place.is_dir() else "is not a folder"
            left_out[place] = f"{reason}: give a result directory, or a folder that contains some"
        elif len(found) > MOST_RUNS:
            left_out[place] = f"holds more than {MOST_RUNS} runs, of which the others are not read"
        for path in found[:MOST_RUNS]:
            try:
                runs[path] = _read(path)
            except (OSError, ValueError, LookupError) as error:
                left_out[path] = _reason(path, error)
    return [*runs.values()], left_out


def _directories(place: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(place):
        if {LOG, SUMMARY} & set(files):
            folders.clear()
            yield Path(folder)
        folders.sort()


class _NotCompletedError(ValueError):
    """A run has no figures to compare."""


def _read(path: Path) -> CompletedRun:
    settings = {"fold": 0, **read_config(path / CONFIG)}
    for key, wanted in (("strategy", str), ("seed", int), ("fold", int)):
        if key not in settings:
            raise FileError(f"its {CONFIG} has no {key}: it was cut, or is of no run")
        if type(settings[key]) is not wanted:
            raise FileError(f"its {CONFIG} says {key} = {settings[key]!r:.80}.")
    settings["visits"] = _note(path / "visits") or "all"
    summary = Summary.read(path, any_version=True)
    own = {h: data.get("own_settings") or {} for h, data in summary.data.items()}
    changed = [f"{h}: {key} = {value}" for h in own for key, value in own[h].items()]
    settings["own-settings"] = "; ".join(changed) or "none"
    if summary.status == "failed":
        raise _NotCompletedError(f"failed: {summary.error}")
    if not (rounds := summary.history.get("round")):
        raise _NotCompletedError("has tested no model")
    if len(summary.hospitals) > MOST_HOSPITALS or max(map(len, summary.hospitals)) > LONGEST:
        raise FileError(f"at most {MOST_HOSPITALS} hospitals of {LONGEST} letters are compared.")
    figures = {name: value for name, value in vars(summary).items() if type(value) in (int, float)}
    models = [row for row in summary.assessments if row.get("kind") == "model"]
    shares = [found["share"] for row in models if (found := row.get("largest_class"))]
    tested = [row[metric]["value"] for row in models for metric in METRICS if row.get(metric)]
    curves = {name: _curve(rounds, summary.history.get(name)) for name in figures}
    plotted = [value for curve in curves.values() for value in curve.values()]
    for value in (*figures.values(), *tested, *shares, *plotted):
        if value not in FIGURE:  # a sum of two could be too large for a float
            raise FileError(f"its {SUMMARY} has the figure {value!r:.80}.")
    chance = mean_chance(models)
    return CompletedRun(
        path,
        settings,
        summary.status,
        summary.hospitals,
        figures | {"megabytes": (summary.bytes_sent + summary.bytes_received) / 1e6},
        curves,
        {kind for own in summary.data.values() if (kind := own.get("kind"))},
        _means(models),
        _behind(summary),
        {hospital: _images(own) for hospital, own in summary.data.items()},
        {name: figure.constant_figure for name, figure in METRICS.items()}
        | {"balanced_accuracy": chance, "accuracy": mean(shares)},
        _note(path / "commit") or summary.code[:12],
    )


def _note(path: Path) -> str:
    """The text of a file that benchmarks.reproduce adds to a result; empty = there is none."""
    return read_text(path, LONGEST).strip() if path.exists() else ""


def _curve(rounds: Any, values: Any) -> dict[int, float]:
    if not isinstance(rounds, list) or not isinstance(values, list):
        return {}
    return {
        number: value
        for number, value in zip(rounds, values, strict=False)
        if isinstance(number, int) and isfinite(value)
    }


def _means(models: Iterable[Assessment]) -> dict[tuple[str, str, bool], float]:
    found: dict[tuple[str, str, bool], list[float]] = {}
    for row in models:
        for metric in METRICS:
            for held in {False, bool(row.get("held"))} if row.get(metric) else ():
                found.setdefault((metric, row["hospital"], held), []).append(row[metric]["value"])
    return {key: mean(values) for key, values in found.items()}


def _behind(summary: Summary) -> dict[str, list[list[str]]]:
    ensembles = [row for row in summary.assessments if row.get("kind") == "ensemble"]
    after_tasks = summary.tasks.get("hospitals", [])
    return {
        **{
            f"ensemble_{metric}": [[e["hospital"] for e in ensembles if e.get(metric)]]
            for metric in METRICS
        },
        **dict.fromkeys(("accuracy_over_tasks", "accuracy_within_tasks"), after_tasks[-1:]),
        **dict.fromkeys(("forgetting", "backward_transfer"), after_tasks),
    }


def _images(own: Mapping[str, Any]) -> dict[str, object]:
    facts: dict[str, object] = {}
    for part in ("train", "test"):
        kind, _, digits = (own[part]["fingerprint"] or "").rpartition("-")
        facts |= {f"images to {part}": own[part]["images"], f"{kind} {part}": digits or None}
    return {key: value for key, value in facts.items() if value == value and value is not None}


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, _NotCompletedError):
        return f"{error!s:.{LONGEST}}"
    if isinstance(error, FileNotFoundError) and Path(error.filename).name == SUMMARY:
        if is_locked(path):  # by `Results`
            return "is under way"
        resume = mark_ended(path)
        return "has not completed" + (f"; resume it with --run-config '{resume}'" if resume else "")
    if isinstance(error, FileNotFoundError) and Path(error.filename).name == CONFIG:
        return f"has no {CONFIG}: it is not a result directory"
    return f"cannot be read ({reason_of(error):.{LONGEST}})"
