"""Result directories as they are found on disk: which runs can be compared, and why others cannot.

runs, left_out = find([Path("~/fedhandoff/runs").expanduser()])
"""

import fcntl
import json
import os
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any

from flwr.common.config import flatten_dict

from pages.verdicts import mean_chance

Tests = dict[tuple[str, str], dict[str, float]]  # what was measured, by (model, hospital)


@dataclass(frozen=True)
class LeftOut:
    """A place without a run that can be compared, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Run:
    """A run that has completed.

    Attributes:
        path: Its result directory.
        settings: Its config.toml, by key.
        summary: Its summary.json.
        tests: What was measured after its last evaluated round, of the latest version of a model.
        held: Which (model, hospital) are a hospital and the model that it held then.
        images: Which images each hospital trains and tests on, as far as it said so: how many, and
            hashes, which are comparable with those of the same name.
        constant: By metric, what a model reaches that always gives the same answer, mean over
            hospitals; of the accuracy that of the most frequent class.
    """

    path: Path
    settings: dict[str, Any]
    summary: dict[str, Any]
    tests: Tests
    held: set[tuple[str, str]]
    images: dict[str, dict[str, object]]
    constant: dict[str, float]


def find(places: Iterable[Path]) -> tuple[list[Run], list[LeftOut]]:
    """All runs in some places: result directories, or folders with such anywhere below."""
    runs, left_out = [], []
    for place in dict.fromkeys(path.expanduser().resolve() for path in places):
        found = list(_directories(place))
        if not found:
            reason = "holds no run" if place.is_dir() else "is no folder"
            left_out.append(LeftOut(place, reason))
        for path in found:
            try:
                runs.append(_read(path))
            except (OSError, ValueError, LookupError, TypeError) as error:
                left_out.append(LeftOut(path, _reason(path, error)))
    return list({run.path: run for run in runs}.values()), left_out


def _directories(place: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(place):
        if {"metrics.jsonl", "summary.json"} & set(files):
            folders.clear()
            yield Path(folder)
        folders.sort()


class _NotCompletedError(ValueError):
    """A run has no figures to compare."""


def _read(path: Path) -> Run:
    settings = flatten_dict(tomllib.loads((path / "config.toml").read_text("utf-8")))
    summary = json.loads((path / "summary.json").read_text("utf-8"))
    if summary["status"] == "failed":
        raise _NotCompletedError(f"failed: {summary['error']}")
    lines = (path / "metrics.jsonl").read_text("utf-8").splitlines()
    events = [event for event in map(json.loads, lines) if event["outcome"] == "ok"]
    if not summary["history"]["round"]:
        raise _NotCompletedError("has tested no model")
    tests, held = _last_tests(events)
    images = {
        event["hospital"]: _images(event) for event in events if event["verb"] == "query.prepare"
    }
    settings = {"strategy": "", "seed": 0, **settings}
    return Run(path, settings, summary, tests, held, images, _constant(summary))


def _constant(summary: dict[str, Any]) -> dict[str, float]:
    rows = [row for row in summary.get("assessments") or [] if row["kind"] == "model"]
    shares = [row["largest_class"]["share"] for row in rows if row["largest_class"]]
    return {
        "balanced-accuracy": mean_chance(rows),
        "accuracy": fmean(shares) if shares else nan,
        "auroc": 0.5,
    }


def _images(event: dict[str, Any]) -> dict[str, object]:
    told = {key: event["metrics"].get(key) for key in ("num-train", "num-test")}
    for key in ("train-images", "test-images"):
        kind, _, digits = event.get("facts", {}).get(key, "").rpartition("-")
        told[f"{kind} {key}"] = digits or None
    return {key: value for key, value in told.items() if value is not None}


def _last_tests(events: list[dict[str, Any]]) -> tuple[Tests, set[tuple[str, str]]]:
    last = max((event["round"] for event in events if event["verb"] == "evaluate"), default=0)
    events = [event for event in events if event["round"] == last]
    latest: dict[str, tuple[int, int]] = {}
    tested = [event for event in events if event["verb"] == "evaluate"]
    for event in tested:
        version = event["hop"], event["epochs"]
        latest[event["lineage"]] = max(version, latest.get(event["lineage"], version))
    tests = {
        (event["lineage"], event["hospital"]): event["metrics"]
        for event in tested
        if latest[event["lineage"]] == (event["hop"], event["epochs"])
    }
    held = {(e["lineage"], e["hospital"]) for e in events if e["verb"] == "hand-off"}
    return tests, held


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, _NotCompletedError):
        return str(error)
    if isinstance(error, FileNotFoundError) and Path(error.filename).name == "summary.json":
        if is_under_way(path):
            return "is under way"
        resume = path / "checkpoint" / "resume.toml"
        hint = f"; resume it with --run-config '{resume}'" if resume.exists() else ""
        return f"has not completed{hint}"
    return f"cannot be read ({type(error).__name__}: {error})"


def is_under_way(path: Path) -> bool:
    """Whether a server works in it (`Results` holds such a directory)."""
    directory = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(directory)
    return False
