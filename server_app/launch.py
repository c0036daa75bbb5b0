"""Does a simulated run in this process and in warm ones, without Flower's engine.

    uv run fedhandoff run --run-config "strategy='cwt' train.epochs=5"

`flwr run` starts a SuperLink, Ray and two more programs first. The apps are the same here and
there, so the models and figures are the same, too.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Context, RecordDict

from server_app.app import app
from server_app.check import check_texts
from server_app.workers import WorkersGrid
from strategies.engine.flower import TaskIdentity
from strategies.protocol.console import Console
from strategies.protocol.run_config import changes_of
from strategies.protocol.settings import Settings, complete, require
from warm.workers import Workers


def simulate(run_config: Sequence[str], hospitals: int) -> str:
    """Check the settings, do a run, and show its log.

    `run_config` has the texts of `--run-config`, as for `flwr run`.

    Returns:
        The address of the report.

    Raises:
        SettingsError: The settings cannot be used.
        SystemExit: The run has failed; its log says why. The status is 130 after Ctrl-C.
    """
    config = complete(changes_of(run_config))
    processes = Settings.parse(config).workers
    require(processes != 0, "workers", 0, "-1 or at least 1; only `flwr run` has Flower's engine")
    processes = min(hospitals, processes if processes > 0 else os.cpu_count() or 1)
    console = Console.install()
    with Workers(processes) as workers:  # they load torch while the settings are checked
        check_texts(run_config, hospitals)
        try:
            run_on(WorkersGrid(workers, hospitals, config), config)
        except Exception as error:
            if error is not console.reported:
                raise
            sys.exit(130 if isinstance(error.__cause__, KeyboardInterrupt) else 1)
    return console.last


def run_on(grid: WorkersGrid, config: Mapping[str, Any]) -> None:
    """Do a run with all its settings on a grid.

    Raises:
        RunError: The run has failed.
        SettingsError: The run has refused its settings.
    """
    for identity in ("task_id", "run_id", "node_id"):  # Flower makes messages only inside a run
        setattr(TaskIdentity, identity, 0)
    app(grid, Context(0, 0, {}, RecordDict(), {**config}))
