"""What docs/ says is done: the example of a method, the notebooks, the site."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from server_app.check import check
from strategies.protocol.code import PACKAGES
from strategies.protocol.run_config import changes_of
from strategies.protocol.settings import complete

ROOT = Path(__file__).parents[1]

RUN = """
from pathlib import Path
from flwr.supercore.task_identity import TaskIdentity
for name in ("_task_id", "_run_id", "_node_id"):
    setattr(TaskIdentity, name, 1)
from client_app.app import app
from client_app.authority.node_config import simulate
from strategies.protocol.parcel import check_parcel
from strategies.protocol.settings import Settings
from tests.fakes import FakeGrid, Ledger, context, go, parcels_of, run_config

simulate()

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

from server_app.check import check
from strategies.protocol.settings import complete
for key, value, words in (
    ("smothing", 0.1, "did you mean 'patient.smoothing'"),
    ("smoothing", "much", "must be a number"),
    ("smoothing", 1.0, "and below 1"),
    ("period", 1.5, "a whole number"),
    ("period", 0, "1 or more"),
):
    try:
        check(complete({"strategy": "patient", f"patient.{key}": value}))
    except ValueError as error:
        assert words in str(error), error
    else:
        raise AssertionError((key, value))
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
    for package in (*PACKAGES, "deploy", "server_app", "tests"):
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


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
# What is in their cells' outputs, once they have run.
SAID = {
    "compare-methods": [
        *("[6/6] strategy=fedavg, seed 1: completed, ", "3 seeds are needed"),
        *("kB per visit", "image/png"),
    ],
    "use-a-model": ["not a medical device", "900 images predicted", "image/png"],
}


@pytest.mark.slow
def test_the_notebooks_run(tmp_path, monkeypatch):
    """One after the other: the second uses the models of the first one's runs."""
    monkeypatch.setenv("STUDY", str(tmp_path))
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        place = {"metadata": {"path": str(path.parent)}}
        NotebookClient(notebook, timeout=900, resources=place).execute()
        outputs = nbformat.writes(notebook)
        for words in SAID[path.stem]:
            assert words in outputs
        assert "Traceback" not in outputs


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.slow
def test_the_site_can_be_made(tmp_path):
    """Zensical ends with an error at a link or an anchor that leads nowhere."""
    code = [sys.executable, "docs/site.py", str(tmp_path / "site")]
    done = subprocess.run(code, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Privacy" in (tmp_path / "site" / "index.html").read_text("utf-8")
    page = tmp_path / "site" / "source" / "strategies" / "protocol" / "may_leave.py" / "index.html"
    assert "may leave" in page.read_text("utf-8")


def module_of(name):
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_images_and_the_settings_of_the_tutorial_fit_together(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    images = tmp_path / "tutorial" / "images"
    module_of("digits").main(images)
    assert len([*(images / "graz").rglob("*.png")]) == 897
    assert len([*(images / "linz").rglob("*.png")]) == 900
    assert (images / "overview.png").is_file()
    page = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
    first, more = re.findall(r'^SETTINGS="(.*)"$', page, re.MULTILINE)
    text = more.replace("$SETTINGS", first)
    for method in ("", " strategy='standalone'"):
        assert check(complete(changes_of([text + method])), hospitals=2).num_server_rounds == 5


def test_a_link_that_leads_nowhere_is_named(tmp_path, monkeypatch):
    site = module_of("site")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("[x](../b.py)")
    monkeypatch.setattr(site, "ROOT", tmp_path)
    with pytest.raises(ValueError, match=r"docs/a\.md links to \.\./b\.py, which is not there"):
        site.page("docs/a.md")
    (tmp_path / "b.py").write_text("pass")
    assert site.page("docs/a.md") == ("[x](source/b.py.md)", {"b.py"})


def test_the_page_for_a_data_protection_officer_has_five_parts_and_takes_five_minutes():
    page = (ROOT / "docs" / "privacy.md").read_text("utf-8")
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == [
        "What leaves?",
        "Who can see it?",
        "What is checked before it leaves?",
        "What is not protected?",
        "What do you decide and sign?",
    ]
    words = [word for word in page.split() if re.search(r"\w", word)]
    assert len(words) < 1200  # at 240 words a minute


def test_the_readme_has_at_most_150_lines():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150
