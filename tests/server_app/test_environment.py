import os
import socket
import sys

import pytest

from server_app.environment import GIVEN_ADDRESS, missing_cluster, prefer_compiled, prepare_ray

OWN = "numpy==1.2", "ray==3.0rc1"


def install(folder, *packages):
    """A folder of packages that have nothing but a name and a version."""
    for package in packages:
        name, version = package.split("==")
        metadata = folder / f"{name}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return str(folder)


@pytest.mark.parametrize(
    ("dependencies", "own", "left_out"),
    [
        (["numpy==1.2"], OWN, True),
        (["NumPy>=1,<2"], OWN, True),
        (["numpy==1.3"], OWN, False),
        (["numpy==1.2", "torch"], OWN, False),
        (["numpy==1.2"], OWN[:1], False),
        ([], OWN, True),
    ],
)
def test_the_environment_of_a_run_is_left_out_if_pythons_own_has_the_same(
    dependencies, own, left_out, tmp_path, monkeypatch
):
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text(f"[project]\ndependencies = {dependencies}\n")
    run, venv = tmp_path / "run", tmp_path / "venv"
    installed = install(run / "lib", "numpy==1.2", "ray==3.0rc1", "torch==9")
    kept = install(venv / "lib", *own)
    monkeypatch.setattr(sys, "prefix", str(venv))
    monkeypatch.setattr(sys, "path", [installed, kept])
    monkeypatch.setenv("VIRTUAL_ENV", str(venv))
    prefer_compiled(pyproject)
    assert sys.path == [installed, kept]
    monkeypatch.setenv("VIRTUAL_ENV", str(run))
    prefer_compiled(pyproject)
    assert sys.path == ([kept] if left_out else [installed, kept])


@pytest.fixture
def variables(monkeypatch):
    """The environment without what Ray reads; restored afterwards."""
    for name in ("RAY_ADDRESS", "RAY_TMPDIR", "TMPDIR", GIVEN_ADDRESS):
        monkeypatch.setenv(name, "")  # so that what is set below is undone
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize(
    ("length", "elsewhere"), [(30, None), (37, None), (38, "/tmp"), (200, "/tmp")]
)
def test_ray_s_sockets_have_short_paths_and_no_cluster_is_remembered(variables, length, elsewhere):
    variables.setenv("TMPDIR", "/" + "x" * (length - 1))
    prepare_ray()
    assert os.environ.get("RAY_TMPDIR") == elsewhere
    assert os.environ["RAY_ADDRESS"] == "local"
    variables.setenv("RAY_ADDRESS", "auto")
    prepare_ray()
    assert os.environ["RAY_ADDRESS"] == "auto"


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "[::1]:{}", "x:y:{}"])
def test_a_cluster_that_does_not_answer_is_named_and_not_waited_for(variables, address):
    with socket.socket() as taken:  # bound, and it does not listen
        taken.bind(("127.0.0.1", 0))
        given = address.format(taken.getsockname()[1])
        variables.setenv("RAY_ADDRESS", given)
        assert missing_cluster() == given
        assert os.environ["RAY_ADDRESS"] == "local"
        assert missing_cluster() == given  # Flower imports an app twice


def test_a_cluster_that_answers_is_joined(variables):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        given = f"127.0.0.1:{listener.getsockname()[1]}"
        variables.setenv("RAY_ADDRESS", given)
        assert missing_cluster() == ""
        assert os.environ["RAY_ADDRESS"] == given
