"""The commands of docs/containers.md, with compose.yaml, end in a sealed run."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from deploy.credentials import check_server_files, make_authority
from deploy.demo import write_images
from deploy.transport import free_port
from tests.deploy import namespaces

ROOT = Path(__file__).parents[2]
HOSPITALS = ["graz", "linz"]
# 127.0.0.0/8 and ::1, as /proc/net has them.
LOCAL = re.compile("(0{16}FFFF0000)?[0-9A-F]{6}7F$|0{24}01000000$")
# What each container says of itself: its user and rights, what it can write to, who can reach it.
SEEN = """
for name in server graz linz; do
    podman-compose exec -T $name sh -c '
        id -u
        grep -E "^(Cap(Prm|Eff|Bnd)|NoNewPrivs)" /proc/self/status
        for place in / /opt/fedhandoff /usr /data; do touch $place/x && echo "writes to $place"
        done
        touch /srv/x /tmp/x && echo "writes at home"
        cat /proc/net/tcp /proc/net/tcp6
    ' > $name.seen
done
podman-compose exec -T server sh -c 'cat fedhandoff/runs/*/summary.json' > summary.json
podman-compose exec -T server sh -c 'cat fedhandoff/runs/*/config.toml' > config.toml
"""


def lay_out(folder):
    """Put the compose file and images into a folder; returns the page's commands for it."""
    text = (ROOT / "compose.yaml").read_text("utf-8")
    for here, there in ((" .\n", f" {ROOT}\n"), ('"9092:', f'"{free_port()}:')):
        assert here in text
        text = text.replace(here, there)
    (folder / "compose.yaml").write_text(text)
    write_images(folder / "images")
    page = (ROOT / "docs" / "containers.md").read_text("utf-8")
    (commands,) = re.findall(r"^```sh\n(umask 077\n.*?)^```", page, re.DOTALL | re.MULTILINE)
    return commands + SEEN


def check(folder):
    """Check the run, and what the containers say of themselves."""
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert sorted(summary["hospitals"]) == HOSPITALS
    assert tomllib.loads((folder / "config.toml").read_text())["sealed"] is True
    for name in ("server", *HOSPITALS):
        user, *rights = (folder / f"{name}.seen").read_text().splitlines()
        assert user == "10001"
        assert [line.split()[1].strip("0") for line in rights[:4]] == ["", "", "", "1"]
        assert rights[4] == "writes at home"
        sockets = [line.split() for line in rights[5:]]
        listening = {tuple(words[1].split(":")) for words in sockets if words[3] == "0A"}
        ports = {int(port, 16) for address, port in listening if not LOCAL.match(address)}
        assert ports == ({9092} if name == "server" else set())


@pytest.mark.slow
def test_in_namespaces(tmp_path):
    """Without an engine, by processes with the mounts, users and networks of compose.yaml."""
    unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    tried = subprocess.run([*unshare, "true"], capture_output=True, text=True, check=False)
    if tried.returncode or not all(map(shutil.which, ("ip", "chroot"))):
        pytest.skip(f"It needs root, and the programs ip and chroot. {tried.stderr}")
    commands = lay_out(tmp_path)
    stand_in = tmp_path / "bin" / "podman-compose"
    stand_in.parent.mkdir()
    stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} {namespaces.__file__} "$@"\n')
    stand_in.chmod(0o755)
    path = f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}"
    go = [*unshare, "bash", "-exc", f"podman-compose networks\n{commands}"]
    subprocess.run(go, cwd=tmp_path, env={**os.environ, "PATH": path}, check=True)
    check(tmp_path)


@pytest.mark.slow
def test_in_containers(tmp_path):
    """With Podman, in an image of the Containerfile; BASE names the base image."""
    if not (shutil.which("podman") and shutil.which("podman-compose")):
        pytest.skip("There is no Podman here.")
    base = os.environ.get("BASE", "docker.io/library/python:3.11-slim-bookworm")
    pull = ["podman", "pull", "--quiet", base]
    if subprocess.run(["podman", "image", "exists", base], check=False).returncode:
        pulled = subprocess.run(pull, timeout=300, capture_output=True, text=True, check=False)
        if pulled.returncode:
            pytest.skip(f"There is no base image: {pulled.stderr}")
    subprocess.run(["podman-compose", "build", "server"], cwd=ROOT, check=True)
    try:
        subprocess.run(["bash", "-exc", lay_out(tmp_path)], cwd=tmp_path, check=True)
        check(tmp_path)
    finally:
        subprocess.run(["podman-compose", "down", "--volumes"], cwd=tmp_path, check=True)


def test_podman_and_docker_copy_code_alone_into_the_image():
    """Docker reads this file only; Podman too, if there is no .containerignore."""
    assert {path.name for path in ROOT.glob("*ignore")} == {".dockerignore", ".gitignore"}
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    first, *others = (line for line in lines if not line.startswith("#"))
    assert first == "*"
    copied = {line.removeprefix("!") for line in others if line.startswith("!")}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert copied == {*packages, "pyproject.toml", "LICENSE", "README.md"}


@pytest.mark.parametrize(
    ("whose", "there", "begins"),
    [
        ("hospital", "", True),
        ("hospital", "graz/hospital.toml", True),
        ("hospital", "graz/graz.answer", False),
        ("server", "", True),
        ("server", "server/server.crt", True),
        ("server", "server/server.toml", False),
    ],
)
def test_a_pod_begins_again_until_its_files_are_there(whose, there, begins, tmp_path):
    """A command that was killed has left a file that is in the way of the next one."""
    text = (ROOT / "docs" / f"kubernetes-{whose}.yaml").read_text("utf-8")
    ((script, _),) = re.findall(r"- \|\n(( {14}.*\n)+)", text)
    place, program = tmp_path / "fedhandoff" / there, tmp_path / "bin" / "fedhandoff"
    for file in (place, program):
        file.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\n! test -f {place} && echo $*\n")
    program.chmod(0o755)
    if there:
        place.touch()
    path = {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, env=path, capture_output=True)
    assert done.returncode == 0
    assert any(each in done.stdout for each in (b"hospital join", b"server authority")) == begins


@pytest.mark.slow
@pytest.mark.parametrize("files", range(5))
def test_a_pod_of_a_server_begins_again_after_a_kill_at_any_file(files, tmp_path):
    """With the real program; it writes the files in this order."""
    text = (ROOT / "docs" / "kubernetes-server.yaml").read_text("utf-8")
    ((script, _),) = re.findall(r"- \|\n(( {14}.*\n)+)", text)
    place, names = tmp_path / "fedhandoff" / "server", ["ca.key", "ca.crt", "server.key"]
    make_authority(place, ["fl.example.org"])
    for name in [*names, "server.crt"][files:]:
        (place / name).unlink()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = {**os.environ, "PATH": path, "HOME": str(tmp_path)}
    subprocess.run(["sh", "-c", script], cwd=tmp_path, env=given, check=True)
    assert (place / "server.toml").exists()
    check_server_files(place, "localhost")


def pod_of(whose):
    """What the Kubernetes file of a hospital or a server says of its pod."""
    text = (ROOT / "docs" / f"kubernetes-{whose}.yaml").read_text("utf-8")
    (deployment,) = (each for each in yaml.safe_load_all(text) if each["kind"] == "Deployment")
    return deployment["spec"]["template"]["spec"]


@pytest.mark.parametrize("whose", ["hospital", "server"])
def test_a_new_pod_finds_keys_with_the_rights_that_they_had(whose):
    """By default Kubernetes opens all files of a volume to its group, before each start."""
    assert pod_of(whose)["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


@pytest.mark.parametrize("whose", ["hospital", "server"])
def test_the_first_process_of_a_container_forgets_processes_that_have_ended(whose):
    """The supervisor does not wait for processes of others; in a pod the pause container does."""
    composed = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
    assert all(service["init"] for service in composed["services"].values())
    assert pod_of(whose)["shareProcessNamespace"] is True
