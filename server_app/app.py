"""The post office: runs the strategy that the settings name, and has the results written."""

from logging import INFO

from flwr.app import Context
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

from server_app.results import Results
from strategies.engine.courier import Courier
from strategies.engine.engine import Engine
from strategies.engine.run import Run
from strategies.protocol.settings import Settings
from strategies.registry import strategy_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Do one run. The last line it logs is the path of its result folder."""
    settings = Settings.parse(context.run_config)
    strategy = strategy_of(settings)
    results, state = Results.open(settings)
    try:
        Engine(Run(settings, strategy, state, Courier(grid), results), results.keep).go()
    except Exception as error:
        results.fail(error, state)
        raise
    results.finish(state)
    log(INFO, "%s", results.path)
