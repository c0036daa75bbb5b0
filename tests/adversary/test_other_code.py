"""A server that ships code of its own: a hospital imports none of it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient

from deploy import confined, demo, server
from deploy.errors import DeployError
from deploy.hospital import PROGRAMS
from strategies.protocol.code import PACKAGES

ROOT = Path(__file__).parents[2]
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
        (tmp_path / "approved" / "client_app").mkdir(parents=True)
        (tmp_path / "approved" / "client_app" / "app.py").write_text(APP)
        (tmp_path / "flower.py").write_text(FLOWER)
        command = [tmp_path / "flower.py", tmp_path / "bundle", component, work]
        defended = [confined.__file__, tmp_path / "approved", *command]
        for each in (command, defended):
            begun = [sys.executable, "-I", *each]
            yield subprocess.run(begun, capture_output=True, text=True, check=False)

    return attack


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


@pytest.mark.parametrize("module", ["google.evil", "server_app", "evil"])
def test_a_bundle_adds_no_module(module, attack):
    """Nor to `google`, which has no folder of its own: all on `sys.path` are parts of it."""
    file = f"{module.replace('.', '/')}.py"
    before, after = attack("client_app.app", f"import {module}", file)
    assert f"the bundle runs {module}" in before.stdout
    assert f"ModuleNotFoundError: No module named '{module}'" in after.stderr
    assert "bundle" not in after.stdout


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


def changed_app(folder):
    """A checkout whose app and whose `torch` leave a mark where they are imported."""
    for package in (*PACKAGES, "server_app"):
        shutil.copytree(ROOT / package, folder / package)
    project = (ROOT / "pyproject.toml").read_text()
    (folder / "pyproject.toml").write_text(
        project.replace("fab-include = [", 'fab-include = ["torch.py", ')
    )
    app, torch = folder / "client_app" / "app.py", folder / "torch.py"
    mark = "import os, pathlib; pathlib.Path(os.environ['FLWR_HOME'], {!r}).touch()\n"
    app.write_text(mark.format("app-was-here") + app.read_text())
    torch.write_text(mark.format("torch-was-here"))
    return folder


def take_a_message(hospital):
    """Ask a hospital's SuperNode for work, as any user of the machine can who has run `ps`."""
    listed = subprocess.run(["ps", "-A", "-ww", "-o", "args="], check=True, capture_output=True)
    (line,) = (
        line.split()
        for line in listed.stdout.decode().splitlines()
        if "flower-supernode" in line and f"{hospital}/" in line
    )
    with RuntimeHttpClient.from_server_address(
        server_address=f"127.0.0.1:{line[line.index('--port') + 1]}",
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
    ) as client:
        client.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-clientapp"]))


@pytest.mark.slow
def test_a_hospital_imports_only_what_it_has_approved(tmp_path, monkeypatch):
    """The same bundle does at linz what it wants, which was told to run any code."""
    settings = "strategy='cwt' model='mlp' num-server-rounds=1 train.epochs=1 hop-timeout=300"
    first_use = ("--members", "first-use")
    monkeypatch.setattr(demo, "HOSPITALS", ("graz", "linz"))
    demo.write_images(tmp_path / "images")
    with demo.server(tmp_path) as address:
        monkeypatch.setattr(demo, "HOSPITALS", ("graz",))
        with demo.hospitals(tmp_path, address, more=(*first_use, "--warm")):
            monkeypatch.setattr(demo, "HOSPITALS", ("linz",))
            with demo.hospitals(tmp_path, address, more=(*first_use, "--any-code")):
                with monkeypatch.context() as patch:
                    patch.setattr(server, "APP", changed_app(tmp_path / "changed"))
                    with pytest.raises(DeployError, match="is finished:failed"):
                        server.run(tmp_path / "server", f"{settings} output-dir='{tmp_path}/no'")
                with pytest.raises(httpx.HTTPStatusError, match="401"):
                    take_a_message(tmp_path / "graz")
                demo.run(tmp_path, settings)
    marks = {path.name for path in (tmp_path / "linz").rglob("*-was-here")}
    assert marks == {"app-was-here", "torch-was-here"}
    assert not [*(tmp_path / "graz").rglob("*-was-here")]
    (summary,) = (tmp_path / "no").glob("*/summary.json")
    failed = {each["hospital"]: each for each in json.loads(summary.read_text())["failures"]}
    assert failed["graz"]["reason"].startswith("The hospital runs other code than the server")
