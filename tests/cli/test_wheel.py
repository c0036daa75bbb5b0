"""A wheel has what a clone has for runs and hospitals."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from strategies.protocol.code import hash_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment with the wheel, and with the other packages of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(["uv", "build", "--quiet", "--wheel", "--out-dir", folder, ROOT], check=True)
    python = folder / "environment" / "bin" / "python"
    subprocess.run(
        ["uv", "venv", "--quiet", "--python", sys.executable, python.parents[1]], check=True
    )
    (wheel,) = folder.glob("*.whl")
    install = ["uv", "pip", "install", "--quiet", "--no-deps", "--python", python, wheel]
    subprocess.run(install, check=True)
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return packages


def run(environment, *arguments):
    """The output of the installed command, in a folder without code."""
    command = [environment.parents[2] / "bin" / "fedhandoff", *arguments]
    return subprocess.check_output(command, cwd=environment.parents[2], text=True)


@pytest.mark.slow
def test_the_installed_command_checks_settings(environment):
    assert run(environment, "check").startswith("The settings can be used: strategy 'feder'")


@pytest.mark.slow
def test_an_installed_hospital_approves_the_code_of_the_clone(environment, tmp_path):
    assert hash_of(ROOT) in run(
        environment,
        *("hospital", "init", "graz", "--folder", tmp_path / "graz"),
        *("--data", tmp_path, "--server", "localhost:9092"),
    )


@pytest.mark.slow
def test_flower_builds_the_same_bundle_of_both(environment, tmp_path):
    """The name of a bundle ends with a hash of its content."""
    names = set()
    for app in (ROOT, environment / "fedhandoff"):
        place = tmp_path / app.name
        place.mkdir()
        subprocess.run(["flwr", "build", "--app", app], cwd=place, check=True, capture_output=True)
        names |= {file.name for file in place.glob("*.fab")}
    assert len(names) == 1


@pytest.mark.slow
def test_the_programs_that_start_approved_code_can_be_executed(environment):
    programs = environment / "fedhandoff" / "deploy" / "programs"
    there = {path.name for path in (ROOT / "deploy" / "programs").iterdir()}
    assert {path.name for path in programs.iterdir() if path.stat().st_mode & 0o111} == there
