"""One command that checks settings, does a run, and tells by its status how the run ended."""

import errno
import json
from contextlib import nullcontext

import pytest

from cli import main
from server_app import launch as module
from server_app.app import _run_baseline, app
from strategies.engine.courier import SimulationBroken
from strategies.engine.strategy import RunError
from tests.fakes import FakeGrid, run_config, settings


@pytest.fixture
def launch(monkeypatch, tmp_path):
    """Runs the command without processes; `app` is what a run does. Returns its exit status."""
    started = []

    def workers(count):
        started.append(count)
        return nullcontext()

    def _launch(*options, run=lambda grid, context: None):
        monkeypatch.setattr(module, "app", run)
        home = f"output-dir='{tmp_path}'"
        with pytest.raises(SystemExit) as ended:
            main(["run", "--run-config", home, *options])
        return ended.value.code

    monkeypatch.setattr(module, "Workers", workers)
    monkeypatch.setattr(module, "WorkersGrid", lambda workers, hospitals, config: hospitals)
    _launch.__dict__["started"] = started
    return _launch


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--run-config", "train.epoch=5"], "did you mean 'train.epochs'?"),
        (["--run-config", "min-hospitals=3"], "at most the number of hospitals, which is 2"),
        (
            ["--run-config", "min-hospitals=5", "--hospitals", "4"],
            "at most the number of hospitals, which is 4",
        ),
        (["--run-config", "workers=0"], "only `flwr run` has Flower's engine"),
        (["--hospitals", "0"], "--hospitals"),
    ],
)
def test_no_run_starts_with_settings_that_cannot_be_used(launch, capsys, options, words):
    def run(grid, context):
        raise AssertionError("a run has started")

    assert launch(*options, run=run) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_the_settings_are_checked_and_the_run_has_them(launch, capsys):
    runs = []

    def run(grid, context):
        runs.append((grid, context.run_config))

    settings = ["--run-config", "strategy='cwt'", "--run-config", "train.epochs=5"]
    assert launch(*settings, "--hospitals", "4", run=run) == 0
    ((hospitals, config),) = runs
    assert (hospitals, config["strategy"], config["train.epochs"]) == (4, "cwt", 5)
    assert config["seed"] == run_config()["seed"]  # not named: as in pyproject.toml
    assert capsys.readouterr().out.startswith("The settings can be used: strategy 'cwt'")


@pytest.mark.parametrize(
    ("workers", "hospitals", "processes"), [(-1, 2, 2), (-1, 9, 8), (3, 9, 3), (3, 2, 2)]
)
def test_each_core_has_a_process_and_no_process_is_idle(
    launch, monkeypatch, workers, hospitals, processes
):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert launch("--run-config", f"workers={workers}", "--hospitals", str(hospitals)) == 0
    assert launch.started == [processes]


@pytest.mark.parametrize(
    ("error", "words", "status"),
    [
        (RunError("No hospital answers."), "The run failed: No hospital answers.", 1),
        (KeyboardInterrupt(), "The run failed: It was ended by Ctrl-C.", 130),
        (OSError(errno.ENOSPC, "No space left on device"), "device): free space on that disk", 1),
        (ConnectionError("The process has ended."), "The run failed: The process has ended.", 1),
    ],
)
@pytest.mark.parametrize("part", ["server_app.app.Engine.go", "server_app.app.Results.finish"])
def test_a_run_that_fails_says_how_to_resume_it(
    launch, capsys, monkeypatch, tmp_path, error, words, status, part
):
    """Also one that fails as it writes its results."""

    def fail(*_):
        raise error

    monkeypatch.setattr("server_app.app.Engine.go", lambda _: None)
    monkeypatch.setattr("server_app.app._run_baseline", lambda *_: None)
    monkeypatch.setattr(part, fail)
    monkeypatch.setattr("server_app.app._engine", lambda grid, *_: nullcontext(grid))
    simulated = type("Courier", (), {"simulates": True})
    monkeypatch.setattr("server_app.app.Courier", lambda *_: simulated())
    assert launch(run=app) == status
    (folder,) = tmp_path.iterdir()
    said = " ".join(capsys.readouterr().out.split())
    assert words in said
    assert f"Resume it with --run-config '{folder}/checkpoint/resume.toml'" in said
    assert json.loads((folder / "summary.json").read_text())["status"] == "failed"


@pytest.mark.parametrize(
    "error", [SimulationBroken("Memory ran out."), OSError(28, "No space"), KeyboardInterrupt()]
)
def test_a_baseline_that_fails_leaves_its_run_as_it_is(error, monkeypatch, tmp_path):
    def fail(_):
        raise error

    monkeypatch.setattr("server_app.app.Engine.go", fail)
    monkeypatch.setattr("server_app.app.Courier.simulates", True)
    chosen = settings(baseline="standalone")
    for _ in range(2):  # a resumed run makes the baseline anew
        assert _run_baseline(chosen, FakeGrid({}), tmp_path) is None
    (folder,) = tmp_path.iterdir()
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "The server has ended before the end of the run" in page
    assert 'http-equiv="refresh"' not in page


def test_a_fault_of_the_program_is_shown_whole(launch):
    def run(grid, context):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        launch(run=run)
