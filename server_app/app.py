"""The ServerApp: runs the strategy that the settings name, and has `Results` write the results."""

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from logging import INFO, WARNING
from pathlib import Path

from flwr.app import Context
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

from pages.verdicts.run import texts
from server_app import MISSING_CLUSTER
from server_app.live import mark_ended
from server_app.notices import notices
from server_app.results import Results
from server_app.summary import Summary
from server_app.workers import WorkersGrid
from strategies.engine.courier import Courier, SimulationBroken
from strategies.engine.engine import Engine
from strategies.engine.run import Run
from strategies.engine.strategy import RunError
from strategies.protocol.console import Console
from strategies.protocol.settings import Settings, SettingsError, require
from strategies.registry import strategy_of
from warm.workers import Workers

# Ray warns of a changed default that Flower relies on.
warnings.filterwarnings("ignore", "Tip: In future versions of Ray", FutureWarning)

# Settings that a baseline run switches off.
WITHOUT = {
    **dict.fromkeys(("baseline", "tracking", "resume", "enrolment", "async.replay"), ""),
    "asynchronous": False,
}
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one strategy. The last log line is the address of the report."""
    console = Console.install()
    settings = Settings.parse(context.run_config)
    strategy = strategy_of(settings)
    results, state = Results.open(settings)
    try:
        with _engine(grid, settings, context) as chosen:
            courier = Courier(chosen, results.waits_for)
            for notice in notices(settings, strategy, simulated=courier.simulates):
                log(WARNING, "%s", notice)
            Engine(Run(settings, strategy, state, courier, results), results.keep).go()
            baseline = partial(_run_baseline, settings, chosen, results.path)
            summary = results.finish(state, baseline)
    except (Exception, KeyboardInterrupt) as raised:
        error = results.explain(raised)
        results.fail(error, state)
        known = isinstance(error, RunError | SettingsError | OSError)
        console.reported = error if known else None
        console.last = f"The run failed: {error}\n{results.path}"
        raise error from raised
    for text in texts(summary.worth, "run", "noise", "class"):
        log(INFO, "%s", text)
    console.last = (results.path / "report.html").as_uri()
    log(INFO, "%s", console.last)


def _run_baseline(settings: Settings, grid: Grid, folder: Path) -> Summary | None:
    """Repeat the run with the method `baseline`, in `folder`; None without one, or if it fails."""
    courier = Courier(grid)
    if not (courier.simulates and settings.baseline and strategy_of(settings).has_baseline):
        return None
    log(INFO, "For comparison the same by %s:", settings.baseline)
    alone = {"strategy": settings.baseline, "output-dir": str(folder)} | WITHOUT
    try:
        # A server that was killed left them. A folder of the user has no such name.
        for part in folder.glob(f"????-??-??_??-??-??*-{settings.baseline}"):
            shutil.rmtree(part)
        same = Settings.parse({**settings.run_config, **alone})
        strategy = strategy_of(same)
        results, state = Results.open(same)
        try:
            Engine(Run(same, strategy, state, courier, results), results.keep).go()
            return results.finish(state)
        finally:
            mark_ended(results.path)  # the page of a baseline that failed
    except (RunError, SettingsError, SimulationBroken, OSError, KeyboardInterrupt) as error:
        reason = str(error) or "It was ended by Ctrl-C."
        log(WARNING, "There is no run by %s to compare with: %s", settings.baseline, reason)
        return None


@contextmanager
def _engine(grid: Grid, settings: Settings, context: Context) -> Iterator[Grid]:
    """The grid of the run: Flower's, or by the setting `workers` warm processes in its place."""
    if MISSING_CLUSTER:
        raise RunError(
            f"RAY_ADDRESS is '{MISSING_CLUSTER}', and no Ray cluster answers there: start it (ray "
            "start --head), or remove the variable from the SuperLink's environment."
        )
    hospitals, processes = len(list(grid.get_node_ids())), settings.workers
    if processes < 0:
        here = Courier(grid).simulates and os.environ.get("RAY_ADDRESS", "local") == "local"
        processes = min(os.cpu_count() or 1, hospitals) if here else 0
    if processes == 0 or isinstance(grid, WorkersGrid):
        yield grid
        return
    require(Courier(grid).simulates, "workers", settings.workers, "0 between SuperNodes, or -1")
    with Workers(processes) as workers:
        yield WorkersGrid(workers, hospitals, context.run_config)
