"""One command that checks settings, starts Flower, and tells by its status how the run ended."""

import json
import sys
from typing import Any

import pytest

from cli import main
from server_app import launch as module
from server_app.launch import hospitals_of
from strategies.protocol.settings import SettingsError

FLWR = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path

folder = Path(__file__).parent
with (folder / "calls").open("a") as calls:
    told = [os.environ[name] for name in ("FLWR_LOG_LEVEL", "no_proxy")]
    print(json.dumps([*sys.argv[1:], *told]), file=calls)
run = json.loads((folder / "run.json").read_text())
if sys.argv[1] == "ls":
    print(run["listed"])
    sys.exit()
print(run["says"], flush=True)
sys.exit(run["code"])
"""
COMPLETED = {"status": "finished:completed", "status-details": ""}
FAILED = {"status": "finished:failed", "status-details": "boom"}
STOPPED = {"status": "finished:stopped", "status-details": ""}


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Runs the command with a `flwr` that does no run; what `flwr` was called with."""
    (tmp_path / "flwr").write_text(FLWR)
    (tmp_path / "flwr").chmod(0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    # The `flwr` beside the Python that runs is taken, whatever PATH has first.
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    def _launch(*options, listed="", says="Successfully started run 7", code=0):
        run = {"listed": listed, "says": says, "code": code}
        (tmp_path / "run.json").write_text(json.dumps(run))
        try:
            main(["run", *options])
        except SystemExit as ended:
            if ended.code:
                raise
        finally:
            calls = tmp_path / "calls"
            lines = calls.read_text().splitlines() if calls.exists() else []
            launched[:] = map(json.loads, lines)
        return list(launched)

    launched: list[Any] = []
    _launch.__dict__["calls"] = launched
    return _launch


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--run-config", "train.epoch=5"], "did you mean 'train.epochs'?"),
        (["--run-config", "min-hospitals=3"], "at most the number of hospitals, which is 2"),
        (
            ["--run-config", "min-hospitals=5", "--federation-config", "num-supernodes=4"],
            "at most the number of hospitals, which is 4",
        ),
        (["--federation-config", "num-supernode=4"], "It takes num-supernodes, client-"),
    ],
)
def test_nothing_starts_with_settings_that_cannot_be_used(launch, capsys, options, words):
    with pytest.raises(SystemExit) as ended:
        launch(*options)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
    assert not launch.calls


def test_a_run_that_completes_is_checked_started_and_shown(launch, capfd, monkeypatch):
    monkeypatch.delenv("FLWR_LOG_LEVEL", raising=False)
    settings = ["--run-config", "strategy='cwt'", "--run-config", "train.epochs=5"]
    federation = ["--federation-config", "num-supernodes=4 client-resources-num-cpus=1"]
    listed = json.dumps({"runs": [COMPLETED]})
    run, ls = launch(*settings, *federation, listed=listed, says="Successfully started run 12")
    assert run[0] == "run"
    assert run[2:-2] == ["local", "--stream", *settings, *federation]
    assert ls[:-2] == ["ls", "local", "--run-id", "12", "--format", "json"]
    assert run[-2] == "ERROR"  # Flower's own lines are hidden
    assert all("127.0.0.1" in call[-1] for call in (run, ls))  # past any proxy
    said = capfd.readouterr().out
    assert said.startswith("The settings can be used: strategy 'cwt'")
    assert said.endswith("\nSuccessfully started run 12\n")


def test_who_wants_all_that_flower_says_is_heard(launch, monkeypatch):
    monkeypatch.setenv("FLWR_LOG_LEVEL", "DEBUG")
    run, _ = launch(listed=json.dumps({"runs": [COMPLETED]}))
    assert run[-2] == "DEBUG"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"listed": json.dumps({"runs": [FAILED]})}, "has not completed.*finished:failed: boom"),
        ({"listed": json.dumps({"runs": [STOPPED]})}, "has not completed.*finished:stopped"),
        ({"listed": json.dumps({"runs": []})}, "nothing of run 7"),
        ({"listed": "no such run"}, "nothing of run 7.*no such run"),
        ({"says": "Hello."}, "did not report that it has started a run"),
    ],
)
def test_a_run_that_does_not_complete_exits_with_status_1(launch, run, words):
    with pytest.raises(SystemExit, match=words):  # a text, which Python prints, for status 1
        launch(**run)


def test_a_superlink_that_starts_too_slowly_is_started_once_more(launch, capfd):
    """Flower waits 15 seconds; a new machine compiles all packages in that time."""
    with pytest.raises(SystemExit, match="machine is too busy"):
        launch(says="Failed to start local SuperLink within 15s.", code=1)
    assert [call[0] for call in launch.calls] == ["run"] * 4
    assert "has not started in time" in capfd.readouterr().out


def test_the_status_of_flwr_is_passed_on(launch):
    with pytest.raises(SystemExit) as exit_:
        launch(code=4)
    assert exit_.value.code == 4


@pytest.mark.parametrize(
    ("says", "stop"),
    [("Successfully started run 7", "flwr stop 7 local"), ("", "flwr stop <run id> local")],
)
def test_ctrl_c_says_that_the_run_goes_on_and_what_ends_it(launch, monkeypatch, says, stop):
    said = []

    def interrupted(text, **how):
        if how:  # a line of `flwr`
            raise KeyboardInterrupt
        said.append(text)

    monkeypatch.setattr(module, "print", interrupted, raising=False)
    with pytest.raises(SystemExit) as exit_:
        launch(says=says)
    assert exit_.value.code == 130
    assert said[0].startswith(f"A run that has started goes on. `uv run {stop}` ends it")


def test_it_knows_how_many_hospitals_flower_simulates(tmp_path):
    assert hospitals_of([]) == 2
    assert hospitals_of(["verbose=true", "num-supernodes=10"]) == 10
    file = tmp_path / "federation.toml"
    file.write_text("num-supernodes = 3\n")
    assert hospitals_of([str(file)]) == 3
    with pytest.raises(SettingsError, match="--federation-config is \"num-supernodes='x'\""):
        hospitals_of(["num-supernodes='x'"])
    with pytest.raises(SettingsError, match=r"--federation-config names nowhere\.toml"):
        hospitals_of(["nowhere.toml"])
