"""What trackers are told of a run, and that none of them can end it."""

import pytest
import torch

from learning.packing import pack_buffer
from learning.samples import Samples
from server_app import results as results_module
from server_app.results import Results
from server_app.tracking import feed
from server_app.tracking.mlflow import MOST_METRICS, MLflow
from strategies.engine.events import Event
from strategies.protocol.parcel import Manifest, pack
from strategies.protocol.settings import SettingsError
from tests.fakes import settings
from tests.server_app.conftest import evaluated


class Memory:
    """A tracker that remembers, and fails at what it is told to."""

    def __init__(self):
        self.begun, self.rounds, self.ended = [], {}, None
        self.fails = set()

    def _may_fail(self, what):
        if what in self.fails:
            raise OSError(f"no {what}")

    def check(self):
        self._may_fail("check")
        return "memory"

    def begin(self, run, path, settings):
        self._may_fail("begin")
        self.begun.append((run, path.name, settings.seed))

    def round(self, number, hospitals, figures):
        self._may_fail("round")
        self.rounds[number] = (list(hospitals), dict(figures))

    def end(self, tags, files, page):
        self._may_fail("end")
        self.ended = (tags["status"], [file.name for file in files if file.exists()])
        self.sent = [*(file.read_text() for file in files if file.exists()), page]


@pytest.fixture
def memory(monkeypatch):
    tracker = Memory()
    monkeypatch.setattr(feed, "TRACKERS", {"json": None})  # a package that is installed
    monkeypatch.setattr(feed, "trackers_of", lambda chosen: {"json": tracker})
    return tracker


@pytest.fixture
def lines(monkeypatch):
    said = []
    for module in (feed, results_module):
        monkeypatch.setattr(module, "log", lambda _, text, *values: said.append(text % values))
    return said


@pytest.fixture(autouse=True)
def _killed(monkeypatch):
    """A directory is not held: here the server that is to go on is the one that was killed."""
    monkeypatch.setattr(Results, "_claim", lambda results: None)


def opened(tmp_path, **changes):
    return Results.open(settings(output_dir=str(tmp_path), **changes))


def first_round(results, events):
    for event in events[:10]:
        results.record(event)
    results.round_finished(1)


def second_round(results, events):
    for event in events[10:]:
        results.record(event)
    results.round_finished(2)


def test_figures_of_the_run_and_of_each_hospital_are_those_of_the_summary(memory, events, tmp_path):
    """The table is that of the fixture `events`: A tests 0.9 and 0.6 in round 1, and holds 0.6."""
    results, state = opened(tmp_path, seed=7)
    assert memory.begun == [(state.run, results.path.name, 7)]
    first_round(results, events)
    hospitals, figures = memory.rounds[1]
    assert hospitals == ["A", "B"]
    assert figures["run/federation_accuracy"] == pytest.approx((0.9 + 0.5 + 0.6 + 0.8) / 4)
    assert figures["federation_accuracy/A"] == pytest.approx(0.75)
    assert figures["personalized_accuracy/A"] == pytest.approx(0.6)
    assert figures["personalized_accuracy/B"] == pytest.approx(0.5)
    assert figures["train_loss/B"] == pytest.approx(0.4)
    assert figures["seconds/A"] == pytest.approx(10 + 2 * 0.5)
    assert figures["megabytes/A"] == pytest.approx(220e-6)
    assert not [name for name in figures if "auroc" in name]  # not measured
    second_round(results, events)
    assert memory.rounds[2][1]["failures/B"] == 1
    assert memory.rounds[2][1]["failures/A"] == 0
    results.finish(state)
    names = ["config.toml", "metrics.jsonl", "summary.json", "accuracy_matrix.csv"]
    assert memory.ended == ("completed with failures", names)


def test_of_an_undone_model_a_tracker_has_the_figures_of_the_summary(memory, tmp_path):
    """B was not there to test the older copy, so nothing counts at B."""
    results, state = opened(tmp_path)
    for event in [
        evaluated(1, "A", "A", 0.1, hop=2),
        evaluated(1, "A", "B", 0.1, hop=2),
        Event("undo", 0, 2, "B", "A", "useless"),
        evaluated(1, "A", "A", 0.7, hop=1),
    ]:
        results.record(event)
    results.round_finished(1)
    _, figures = memory.rounds[1]
    assert figures["run/origin_accuracy"] == figures["federation_accuracy/A"] == 0.7
    assert "federation_accuracy/B" not in figures
    assert figures["failures/B"] == 0  # in round 1
    assert results.finish(state).origin_accuracy == 0.7


def test_a_tracker_that_fails_does_not_end_the_run_and_is_told_later(
    memory, lines, events, tmp_path
):
    memory.fails = {"begin"}
    results, state = opened(tmp_path)
    first_round(results, events)
    assert [line for line in lines if "json" in line] == [
        "Tracking by json fails, the run continues: no begin"
    ]
    memory.fails = set()
    second_round(results, events)
    assert lines[-1] == "Tracking by json works again, and has all rounds"
    assert list(memory.rounds) == [1, 2]
    memory.fails = {"end"}
    results.finish(state)
    assert lines[-2:] == [
        "Tracking by json fails, the run continues: no end",
        "json has not received all figures of this run",
    ]
    assert (results.path / "report.html").exists()


def test_a_run_that_failed_is_tracked_as_failed(memory, tmp_path):
    results, state = opened(tmp_path)
    results.fail(RuntimeError("the power went"), state)
    assert memory.ended[0] == "failed"


def test_a_tracker_gets_no_synthetic_image(memory, tmp_path):
    """The report of an open run shows the buffers that came."""
    results, state = opened(tmp_path, strategy="feder")
    results.record(Event("query.prepare", 0, 0, "A", "A", metrics={"release-passed": 1.0}))
    images = Samples(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.arange(4) % 2)
    label = Manifest("A", "net", ["a", "b"])
    buffer = pack({"buffer": pack_buffer(images, "00" * 32)}, label)
    state.buffers["A"], state.classes = state.shelf.put(buffer), ["a", "b"]
    results.finish(state)
    page = (results.path / "report.html").read_text()
    assert page.count("data:image/png") == 2
    assert "Released synthetic images" in memory.sent[-1]
    assert not [text for text in memory.sent if "data:image" in text]


def test_a_resumed_run_tells_its_rounds_once_more_under_its_identity(memory, events, tmp_path):
    results, state = opened(tmp_path)
    first_round(results, events)
    results.keep(state)
    name = results.path.name
    del results
    again, found = Results.open(settings(output_dir=str(tmp_path), resume=str(tmp_path / name)))
    assert memory.begun == [(state.run, name, 0), (state.run, name, 0)]
    assert found.run == state.run
    assert list(memory.rounds) == [1]
    second_round(again, events)
    assert list(memory.rounds) == [1, 2]


@pytest.mark.parametrize("tracking", ["tensorbord", "tensorboard:/tmp", "mlflow:", "mlflow,wandb"])
def test_an_unknown_tracker_is_named_before_there_is_a_directory(tracking, tmp_path):
    with pytest.raises(SettingsError, match=r"'tracking' is .* empty, tensorboard, mlflow or"):
        opened(tmp_path, tracking=tracking)
    assert not [*tmp_path.iterdir()]


def test_a_tracker_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(feed, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="uv sync --inexact --extra tensorboard"):
        opened(tmp_path, tracking="tensorboard")
    assert not [*tmp_path.iterdir()]


def test_a_tracker_that_is_not_there_is_named_before_there_is_a_directory(memory, tmp_path):
    memory.fails = {"check"}
    with pytest.raises(SettingsError, match="and json cannot be used: no check"):
        opened(tmp_path)
    assert not [*tmp_path.iterdir()]


def test_no_password_of_the_environment_is_told(memory, lines, events, tmp_path):
    place = "http://me:hunter2@localhost:5000/?token=hunter2"
    memory.check = lambda: f"memory at {place}"
    results, _ = opened(tmp_path)
    memory.round = lambda *_: (_ for _ in ()).throw(OSError(f"{place} is away"))
    first_round(results, events)
    shown = "http://***@localhost:5000/?token=***"
    assert f"Figures of each round go to memory at {shown}" in lines
    assert f"Tracking by json fails, the run continues: {shown} is away" in lines
    memory.check = lambda: (_ for _ in ()).throw(OSError(f"{place} is away"))
    with pytest.raises(SettingsError) as caught:
        opened(tmp_path)
    assert f"cannot be used: {shown} is away" in str(caught.value)


def test_tensorboard_shows_a_resumed_run_as_one(events, tmp_path):
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    chosen = {"output_dir": str(tmp_path), "tracking": "tensorboard", "strategy": "rwt", "seed": 3}
    results, state = Results.open(settings(**chosen))
    first_round(results, events)
    results.keep(state)
    second_round(results, events)  # is lost: the checkpoint is older
    path = results.path
    del results
    again, state = Results.open(settings(**chosen, resume=str(path)))
    second_round(again, events)
    again.finish(state)
    shown = EventAccumulator(str(path / "tensorboard"))
    shown.Reload()
    points = [(each.step, each.value) for each in shown.Scalars("run/federation_accuracy")]
    assert points == [(1, pytest.approx(0.7)), (2, pytest.approx(0.6))]
    assert [each.step for each in shown.Scalars("personalized_accuracy/A")] == [1, 2]
    content = shown.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    described = HParamsPluginData.FromString(content).session_start_info.hparams
    assert described["strategy"].string_value == "rwt"
    assert described["seed"].number_value == 3
    assert described["hospitals"].string_value == "A, B"


@pytest.mark.slow
# MLflow loads SQLAlchemy's mappers in a way that is about to go.
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
def test_mlflow_has_a_resumed_run_once(events, tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    chosen = {"output_dir": str(tmp_path), "tracking": "mlflow", "strategy": "rwt", "seed": 3}
    results, state = Results.open(settings(**chosen))
    first_round(results, events)
    results.keep(state)
    second_round(results, events)
    path = results.path
    del results
    again, state = Results.open(settings(**chosen, resume=str(path)))
    second_round(again, events)
    again.finish(state)

    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("fedhandoff")
    assert experiment
    [run] = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == (path.name, "FINISHED")
    tags = {"method": "rwt", "data": "digits", "seed": "3", "hospitals": "A, B"}
    assert tags.items() <= run.data.tags.items()
    assert run.data.params["train.learning-rate"] == "0.001"
    points = client.get_metric_history(run.info.run_id, "run/federation_accuracy")
    assert sorted((each.step, round(each.value, 6)) for each in points) == [(1, 0.7), (2, 0.6)]
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert {"report.html", "summary.json", "config.toml"} <= files


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    """MLflow with a database of its own."""
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    tracker = MLflow("", tmp_path)
    tracker.check()
    tracker.begin("run", tmp_path, settings(output_dir=str(tmp_path), tracking="mlflow"))
    return tracker


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
@pytest.mark.parametrize("count", [0, 3, 999, 1000])
def test_mlflow_knows_a_round_with_its_last_figures(count, mlflow, monkeypatch):
    """If a request fails, the round is sent again; a round that is known is not."""
    figures, log = {f"run/{k}": 0.5 for k in range(count)}, mlflow._client.log_batch
    last: list[object] = []

    def noted(run, **content):
        last[:] = [len(content.get("metrics", ())), [tag.key for tag in content.get("tags", ())]]
        return log(run, **content)

    monkeypatch.setattr(mlflow._client, "log_batch", noted)
    mlflow.round(1, ["A"], figures)
    assert last == [count % MOST_METRICS, ["rounds", "hospitals"]]
    found = mlflow._client.get_run(mlflow._id).data
    assert (len(found.metrics), found.tags["rounds"]) == (count, "1")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
def test_a_deleted_experiment_is_named_before_there_is_a_directory(mlflow, tmp_path):
    client, before = mlflow._client, {*tmp_path.iterdir()}
    client.delete_experiment(client.get_experiment_by_name("fedhandoff").experiment_id)
    with pytest.raises(SettingsError, match="The experiment 'fedhandoff' was deleted"):
        opened(tmp_path, tracking="mlflow")
    assert {*tmp_path.iterdir()} == before


@pytest.mark.slow
def test_an_mlflow_server_that_is_down_is_named(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2@127.0.0.1:9")
    with pytest.raises(SettingsError, match=r"mlflow cannot be used: .*127\.0\.0\.1") as caught:
        opened(tmp_path, tracking="mlflow")
    assert "hunter2" not in str(caught.value)
    assert not [*tmp_path.iterdir()]
