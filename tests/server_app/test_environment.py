import sys

import pytest

from server_app.environment import prefer_compiled

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
