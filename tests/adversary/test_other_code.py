"""A server that ships code of its own: a hospital imports none of it.

tests/deploy/test_relay.py does the same on real SuperNodes, at the beginning of the demo.
"""

import os
import subprocess
import sys

import pytest
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

from deploy import confined
from deploy.hospital import PROGRAMS

# What Flower does with a bundle, and then what the code does that it has imported.
FLOWER = """
import importlib, importlib.metadata, sys
_, bundle, component, work = sys.argv
sys.path.insert(0, bundle)
importlib.import_module(component)
exec(work)
"""
MARK = "print('the bundle runs', __name__)\n"
APP = "print('the approved app runs')\n"


@pytest.fixture
def attack(tmp_path):
    """What runs, without and with our defence, if a bundle has these files."""

    def attack(component, work, *names):
        for name in ("client_app/app.py", *names):
            file = tmp_path / "bundle" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(MARK if file.suffix == ".py" else "")
            if file.suffix == ".py" and file.parent != tmp_path / "bundle":
                (file.parent / "__init__.py").touch()  # else an installed package goes first
        (tmp_path / "approved" / "client_app").mkdir(parents=True)
        (tmp_path / "approved" / "client_app" / "app.py").write_text(APP)
        (tmp_path / "flower.py").write_text(FLOWER)
        command = [tmp_path / "flower.py", tmp_path / "bundle", component, work]
        defended = [confined.__file__, tmp_path / "approved", *command]
        for each in (command, defended):
            begun = [sys.executable, "-I", *each]
            yield subprocess.run(begun, capture_output=True, text=True, check=False)

    return attack


@pytest.mark.slow
@pytest.mark.parametrize(
    "work",
    [
        "import colorsys; colorsys.rgb_to_hsv",
        "import client_app.app; importlib.reload(client_app.app)",
        "sys.path.insert(0, bundle); import colorsys",
    ],
)
def test_the_approved_app_runs_in_place_of_the_bundle_s(work, attack):
    before, after = attack("client_app.app", work, "colorsys.py")
    assert "the bundle runs client_app.app" in before.stdout
    assert after.returncode == 0, after.stderr
    assert {*after.stdout.splitlines()} == {APP[7:-3]}


@pytest.mark.slow
@pytest.mark.parametrize("module", ["google.evil", "server_app", "evil"])
def test_a_bundle_adds_no_module(module, attack):
    """Nor to `google`, which has no folder of its own: all on `sys.path` are parts of it."""
    file = f"{module.replace('.', '/')}.py"
    before, after = attack("client_app.app", f"import {module}", file)
    assert f"the bundle runs {module}" in before.stdout
    assert "bundle" not in after.stdout
    if module != "server_app":  # the hospital's own installation may have it
        assert f"ModuleNotFoundError: No module named '{module}'" in after.stderr


@pytest.mark.slow
@pytest.mark.parametrize("component", ["evil", "colorsys", "this"])
def test_a_bundle_has_no_other_module_run(component, attack):
    """Nor one that is installed: some do something when they are imported."""
    before, after = attack(component, "", "evil.py", "colorsys.py")
    assert before.stdout
    assert f"ImportError: The run's bundle names a module '{component}'" in after.stderr
    assert not after.stdout


def test_a_bundle_registers_no_plugin(attack):
    """Torch, for one, calls what the metadata of anything on `sys.path` name."""
    work = "print([*importlib.metadata.distributions(name='evil')])"
    before, after = attack("client_app.app", work, "evil-1.dist-info/METADATA")
    assert "[<importlib" in before.stdout
    assert after.stdout.splitlines()[1:] == ["[]"]


@pytest.mark.parametrize("program", sorted({*TASK_TYPE_TO_COMMAND.values()} - {"flwr-clientapp"}))
def test_no_other_program_of_flower_s_runs_a_bundle(program):
    """Flower would start one for a run of an agent, of which the bundle has the code."""
    environment = {"PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"A hospital runs no {program}" in done.stderr
