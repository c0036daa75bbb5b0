"""The post office: runs the strategy that the settings name, and has the results written."""

from logging import INFO

from flwr.app import Context
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

from server_app.results import Results
from strategies.protocol.settings import Settings
from strategies.registry import strategy_named

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Do one run. The last line it logs is the path of its result folder."""
    settings = Settings.parse(context.run_config)
    strategy = strategy_named(settings.strategy)
    if settings.resume:
        results, checkpoint = Results.resume(settings)
        run = strategy(settings, grid, results)
        run.go_on_from(checkpoint)
    else:
        results = Results.create(settings)
        run = strategy(settings, grid, results)
    try:
        run.run()
    except Exception as error:
        results.fail(error, run.parcels)
        raise
    results.finish(run.parcels)
    log(INFO, "%s", results.path)
