"""The result directory of a run as tables of pandas.

    from server_app.tables import events, rounds, tasks
    table = events("~/fedhandoff/runs/2026-11-22_14-37-39-cwt")

No run needs this file.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from server_app.summary import NAME, Summary
from strategies.engine.events import LOG, read_events
from strategies.protocol.files import FileError, expand


def events(directory: str | Path) -> pd.DataFrame:
    """The events in metrics.jsonl, one row each; the run may still be under way.

    Returns:
        The columns of `strategies.engine.events.Event`, and `metrics.<name>` for each metric that a
        hospital reported, NaN where it is missing.

    Raises:
        OSError: The file does not exist.
        FileError: The file is damaged.
    """
    path = expand(directory) / LOG
    return pd.json_normalize([asdict(event) for event in read_events(path)])


def rounds(directory: str | Path) -> pd.DataFrame:
    """The history of a run that has ended: one row for each evaluated round.

    Returns:
        The figures of `Summary` as columns; for each hospital `held.<name>`, its personalised
        accuracy, and `held_balanced.<name>`, its balanced one; for each task from 1 on
        `task.<number>`, the accuracy on it. The index is the round.

    Raises:
        OSError: There is no summary.json: the run has not ended.
        FileError: The file is damaged, or another version of this app wrote it.
    """
    summary = Summary.read(directory)
    history = summary.history
    at_hospitals = {
        f"{name}.{hospital}": values
        for name in ("held", "held_balanced")
        for hospital, values in history.pop(name).items()
    }
    accuracies = enumerate(summary.tasks.get("accuracy", ()), 1)
    on_tasks = {f"task.{number}": values for number, values in accuracies}
    with _check_lengths(directory):
        return pd.DataFrame({**history, **at_hospitals, **on_tasks}).set_index("round")


def tasks(directory: str | Path) -> pd.DataFrame:
    """The accuracy on each task (columns) after the last evaluated round of each task (index).

    Returns:
        R of server_app/tasks.py [T, T], NaN where it was not measured; empty without tasks.

    Raises:
        OSError: There is no summary.json: the run has not ended.
        FileError: The file is damaged, or another version of this app wrote it.
    """
    matrix = Summary.read(directory).tasks.get("matrix", [])
    numbers = pd.RangeIndex(1, len(matrix) + 1, name="task")
    with _check_lengths(directory):
        return pd.DataFrame(matrix, numbers, numbers.rename("on task"))


@contextmanager
def _check_lengths(directory: str | Path) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise FileError(f"{directory}/{NAME} is damaged: its figures have gaps.") from error
