"""The program that stands before Flower's ClientApp."""

import os
import subprocess

import pytest

from deploy.hospital import CODE, PROGRAMS


@pytest.fixture
def environment(tmp_path):
    """One in which Flower's program says what it was called with, and how modules are found."""
    own = tmp_path / "bin" / "flwr-clientapp"
    own.parent.mkdir()
    own.write_text("#!/usr/bin/env python3\nimport sys\nprint(sys.argv[1:], sys.meta_path)")
    own.chmod(0o755)
    path = os.pathsep.join([str(PROGRAMS), str(own.parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path}


def start(environment, *arguments):
    command = [PROGRAMS / "flwr-clientapp", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20)


@pytest.mark.parametrize("code", ["any", "approved"])
def test_it_becomes_flowers_own_confined_unless_it_may_run_any_code(code, environment, tmp_path):
    (tmp_path / "approved").mkdir()
    environment[CODE] = "any" if code == "any" else str(tmp_path / "approved")
    output = start(environment, "--token", "7").stdout
    assert output.startswith("['--token', '7']")
    assert ("PathFinder" in output) == (code == "any")


def test_a_hospital_that_does_not_say_which_code_it_runs_runs_none(environment):
    environment.pop(CODE, None)
    done = start(environment)
    assert "KeyError" in done.stderr
    assert done.returncode == 1
