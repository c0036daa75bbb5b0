"""The program that stands before Flower's ClientApp."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.hospital import CODE, PROGRAMS


@pytest.fixture
def environment(tmp_path):
    """One in which Flower's program says what it was called with, and how modules are found."""
    own = tmp_path / "bin" / "flwr-clientapp"
    own.parent.mkdir()
    own.write_text("#!/usr/bin/env python3\nimport sys\nprint(sys.argv[1:], sys.meta_path)")
    own.chmod(0o755)
    folders = (PROGRAMS, own.parent, Path(sys.executable).parent, os.environ["PATH"])
    return {**os.environ, "PATH": os.pathsep.join(map(str, folders))}


def start(environment, *arguments):
    command = [PROGRAMS / "flwr-clientapp", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_it_becomes_flowers_own_confined(environment, tmp_path):
    (tmp_path / "approved").mkdir()
    environment[CODE] = str(tmp_path / "approved")
    output = start(environment, "--token", "7").stdout
    assert output.startswith("['--token', '7']")
    assert "<__main__.Finder" in output
    assert "PathFinder" not in output


def test_the_process_of_a_message_imports_no_database(environment, tmp_path):
    """Flower's package of this program imports one, for another program."""
    (tmp_path / "bin" / "flwr-clientapp").write_text(
        "import sys\nfrom flwr.supernode.cli import flwr_clientapp as program\n"
        "print(program.__name__, 'sqlalchemy' in sys.modules)"
    )
    (tmp_path / "approved").mkdir()
    environment[CODE] = str(tmp_path / "approved")
    assert start(environment).stdout == "flwr_clientapp False\n"


def test_a_hospital_that_does_not_say_which_code_it_runs_runs_none(environment):
    environment.pop(CODE, None)
    done = start(environment)
    assert "KeyError" in done.stderr
    assert (done.returncode, done.stdout) == (1, "")


def test_a_hospital_whose_folder_of_code_does_not_exist_runs_none(
    environment, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    environment[CODE] = "any"
    done = start(environment)
    assert "FileNotFoundError" in done.stderr
    assert (done.returncode, done.stdout) == (1, "")
