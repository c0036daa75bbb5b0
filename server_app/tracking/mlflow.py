"""MLflow: one MLflow run for each run, on the user's tracking server.

The setting has the server's URI; without it, the environment variable `MLFLOW_TRACKING_URI` of the
server's process. Without both, the figures go to an SQLite file beside the results.
`MLFLOW_EXPERIMENT_NAME` names the experiment.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from strategies.protocol.files import expand
from strategies.protocol.settings import Settings

# Unless the user sets these variables, a missing server delays a round by seconds, not minutes, and
# MLflow sends no telemetry.
CAUTION = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
MOST_PARAMETERS, MOST_METRICS = 100, 998  # of one request, which takes 1000 metrics and tags


class MLflow:
    """A client of an MLflow tracking server."""

    def __init__(self, uri: str, output_dir: Path) -> None:
        self._uri = uri or os.environ.get("MLFLOW_TRACKING_URI", "")
        self._output_dir = expand(output_dir)
        self._client: Any = None
        self._id = ""
        self._rounds = 0  # rounds that the server has

    def check(self) -> str:
        """Check that the server answers a small request.

        Raises:
            ValueError: The experiment was deleted.
        """
        if self._uri or (self._output_dir / "mlflow.db").exists():
            known = self._connect().get_experiment_by_name(self._name)
            if known and known.lifecycle_stage == "deleted":
                raise ValueError(
                    f"The experiment '{self._name}' was deleted: restore it, or name another with "
                    "MLFLOW_EXPERIMENT_NAME."
                )
        return f"MLflow at {self._uri or self._own_database}"

    def begin(self, run: str, path: Path, settings: Settings) -> None:
        """Find the run by its identity, or create it; send its settings as parameters."""
        from mlflow.entities import Param

        client = self._client = self._connect()
        experiment = self._experiment()
        [*found] = client.search_runs([experiment], f"tags.run = '{run}'", max_results=1)
        tags = {"method": settings.strategy, "data": settings.dataset, "seed": str(settings.seed)}
        tracked = (
            found[0]
            if found
            else client.create_run(experiment, tags={"run": run, **tags}, run_name=path.name)
        )
        self._id = tracked.info.run_id
        self._rounds = int(tracked.data.tags.get("rounds", 0))
        client.update_run(self._id, status="RUNNING")
        known = tracked.data.params
        params = [
            Param(key, str(value)) for key, value in settings.run_config.items() if key not in known
        ]
        for some in _batches(params, MOST_PARAMETERS):
            client.log_batch(self._id, params=some)

    def round(self, number: int, hospitals: Sequence[str], figures: Mapping[str, float]) -> None:
        """Send a round's figures, unless the server has them."""
        from mlflow.entities import Metric, RunTag

        if number <= self._rounds:
            return
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, number) for name, value in figures.items()]
        whole = len(metrics) // MOST_METRICS * MOST_METRICS
        for some in _batches(metrics[:whole], MOST_METRICS):
            self._client.log_batch(self._id, metrics=some)
        tags = [RunTag("rounds", str(number)), RunTag("hospitals", ", ".join(hospitals))]
        # In one request: after a failure between two, the round would be there twice.
        self._client.log_batch(self._id, metrics=metrics[whole:], tags=tags)
        self._rounds = number

    def end(self, tags: Mapping[str, str], files: Sequence[Path], page: str) -> None:
        """Send the files, the report and the tags, and end the run."""
        from mlflow.entities import RunTag

        self._client.log_batch(self._id, tags=[RunTag(*each) for each in tags.items()])
        for file in files:
            self._client.log_artifact(self._id, str(file))
        self._client.log_text(self._id, page, "report.html")
        self._client.set_terminated(
            self._id, "FAILED" if tags["status"] == "failed" else "FINISHED"
        )

    @property
    def _own_database(self) -> str:
        return f"sqlite:///{self._output_dir}/mlflow.db"

    @property
    def _name(self) -> str:
        return os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedhandoff")

    def _connect(self) -> Any:
        for name, value in CAUTION.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient  # takes seconds

        return MlflowClient(self._uri or self._own_database)

    def _experiment(self) -> str:
        """The identity of the experiment that runs belong to."""
        if known := self._client.get_experiment_by_name(self._name):
            return str(known.experiment_id)
        # With its own database, the client would put files into its working directory.
        place = None if self._uri else (self._output_dir / "mlflow").as_uri()
        return str(self._client.create_experiment(self._name, artifact_location=place))


def _batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
