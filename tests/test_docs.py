"""The example of docs/adding-a-method.md, added to a copy of the app and run there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("client_app", "deploy", "gan", "learning", "server_app", "strategies", "tests")

RUN = """
from pathlib import Path
from flwr.supercore.task_identity import TaskIdentity
for name in ("_task_id", "_run_id", "_node_id"):
    setattr(TaskIdentity, name, 1)
from client_app.app import app
from strategies.protocol.parcel import check_parcel
from strategies.protocol.settings import Settings
from tests.fakes import FakeGrid, Ledger, context, go, parcels_of, run_config

def federate(**overrides):
    config = run_config(strategy="patient", num_server_rounds=5, model="mlp", mlp__hidden="16",
                        partition="iid", train__epochs=1, **overrides)
    places = [context(k, 3, config, **{"store-dir": str(Path("store").absolute())})
              for k in range(3)]
    grid = FakeGrid({k: (lambda message, place=place: app(message, place))
                     for k, place in enumerate(places, 100)})
    ledger = Ledger()
    return go(Settings.parse(config), grid, ledger), ledger

state, ledger = federate()
assert {event.outcome for event in ledger.events} == {"ok"}, ledger.events
visited = check_parcel(parcels_of(state)["hospital-0"]).visited
assert visited == [f"hospital-{k}" for k in (0, 0, 1, 1, 2)], visited
smoothed = ledger.of("train")[0].metrics["train-loss"]
plain = federate(patient__smoothing=0.0)[1].of("train")[0].metrics["train-loss"]
assert smoothed != plain
for wrong in ({"patient__period": 0}, {"patient__smoothing": 1.0}):
    try:
        federate(**wrong)
    except Exception as error:
        assert list(wrong)[0].replace("__", ".") in str(error), error
    else:
        raise AssertionError(wrong)
"""


def blocks(language):
    page = (ROOT / "docs" / "adding-a-method.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def insert(path, line, before):
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, line + before, 1), encoding="utf-8")


@pytest.mark.slow
def test_the_example_of_a_method_is_two_files_a_table_and_two_lines(tmp_path):
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    method, learner, strategy_line, learner_line = blocks("python")
    (table,) = blocks("toml")
    (tmp_path / "strategies" / "patient.py").write_text(method, encoding="utf-8")
    (tmp_path / "learning" / "learners" / "smoothed.py").write_text(learner, encoding="utf-8")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    insert(tmp_path / "pyproject.toml", table + "\n", "[tool.ruff]\n")
    for path, module, name, line in (
        ("strategies/registry.py", "strategies.patient", "Patient", strategy_line),
        ("learning/learners/__init__.py", "learning.learners.smoothed", "Smoothed", learner_line),
    ):
        insert(tmp_path / path, f"from {module} import {name}\n", "from ")
        insert(tmp_path / path, line, "}\n")
    code = [sys.executable, "-W", "ignore", "-c", RUN]
    done = subprocess.run(code, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
