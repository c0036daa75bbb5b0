"""What a test changes is gone after it, whatever the order of tests."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# The first test replaces a name, and is the first to import a module that binds it.
REPLACING = """
from client_app.release import disclosure

def test_that_replaces_a_name(monkeypatch):
    monkeypatch.setattr(disclosure, "secret_of", None)
    import client_app.afterwards.past_hospital
"""
LATER = """
def test_that_comes_later():
    from client_app.release import disclosure
    from client_app.afterwards.past_hospital import secret_of

    assert secret_of is disclosure.secret_of is not None
"""


@pytest.mark.slow
def test_a_module_does_not_keep_what_a_test_has_put_in_the_place_of_a_name(tmp_path):
    given = {
        "conftest": "from tests.conftest import _imported\n",
        "test_1": REPLACING,
        "test_2": LATER,
    }
    for name, text in given.items():
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += ["--import-mode=importlib", "-c", str(ROOT / "pyproject.toml")]
    command += ["--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
