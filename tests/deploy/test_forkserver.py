"""What begins Flower's ClientApp processes at once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.forkserver import ADDRESS
from deploy.hospital import CODE, PROGRAMS

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys, time
from deploy.forkserver import serve

def program():
    try:
        print(os.getpid(), *sys.argv[1:], flush=True)
        match sys.argv[1:]:
            case ["raise"]:
                raise ValueError("boom")
            case ["exit", text]:
                sys.exit(int(text))
            case ["wait"]:
                time.sleep(60)
    except KeyboardInterrupt:  # perhaps before it sleeps
        sys.exit(42)

serve(program)
"""


@pytest.fixture
def environment(tmp_path):
    return {**os.environ, ADDRESS: str(tmp_path / "socket"), CODE: "any"}


@pytest.fixture
def _server(tmp_path, environment):
    # Programs that a shell starts in the background inherit that SIGINT is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment)
    while not (tmp_path / "socket").exists():
        time.sleep(0.02)
    yield
    process.kill()
    process.wait()
    signal.signal(signal.SIGINT, before)


def start(environment, *arguments):
    return subprocess.Popen(
        [PROGRAMS / "flwr-clientapp", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.usefixtures("_server")
def test_it_is_what_it_stands_for(environment):
    """Arguments, output, errors, and how it ends."""
    for arguments, status in {("exit", "3"): 3, ("a b", ""): 0, ("raise",): 1}.items():
        output, errors = start(environment, *arguments).communicate(timeout=20)
        assert output.split(" ", 1)[1] == " ".join(arguments) + "\n"
        assert ("ValueError: boom" in errors) == (arguments == ("raise",))
        process = start(environment, *arguments)
        process.communicate(timeout=20)
        assert process.returncode == status


@pytest.mark.usefixtures("_server")
def test_signals_are_passed_on(environment):
    process = start(environment, "wait")
    assert process.stdout
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 42


@pytest.mark.usefixtures("_server")
def test_it_ends_with_what_has_asked_for_it(environment):
    process = start(environment, "wait")
    assert process.stdout
    copy = Path("/proc") / process.stdout.readline().split()[0]
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while copy.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("code", ["any", "approved"])
def test_flower_s_own_program_does_it_where_there_is_none(code, environment, tmp_path):
    """It is confined unless it may run any code."""
    own = tmp_path / "bin" / "flwr-clientapp"
    own.parent.mkdir()
    own.write_text("#!/usr/bin/env python3\nimport sys\nprint(sys.argv[1:], sys.meta_path)")
    own.chmod(0o755)
    (tmp_path / "approved").mkdir()
    environment[CODE] = "any" if code == "any" else str(tmp_path / "approved")
    environment["PATH"] = os.pathsep.join([str(PROGRAMS), str(own.parent), os.environ["PATH"]])
    output, _ = start(environment, "--token", "7").communicate(timeout=20)
    assert output.startswith("['--token', '7']")
    assert ("PathFinder" in output) == (code == "any")


def test_a_hospital_that_does_not_say_which_code_it_runs_runs_none(environment):
    del environment[CODE]
    process = start(environment)
    assert "KeyError" in process.communicate(timeout=20)[1]
    assert process.returncode == 1
