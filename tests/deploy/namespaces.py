"""In the place of `podman-compose`, where there is no container engine: processes in namespaces.

It knows the commands and keys that docs/containers.md and compose.yaml use. A process has the user,
the mounts and the network of its service. Of this machine it sees the programs, Python's packages
and the checkout, all read-only.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
IMAGE = (ROOT / "Containerfile").read_text("utf-8")
OF_MACHINE = ("/usr", "/bin", "/lib", "/lib64", "/etc", "/dev", sys.base_prefix, sys.prefix, ROOT)


def of_image(pattern):
    """The words of an instruction of the Containerfile."""
    return re.findall(rf"^{pattern}$", IMAGE, re.MULTILINE)[0]


USER, (HOME, PATH) = of_image(r"USER (\d+)"), of_image(r"ENV HOME=(\S+) PATH=(\S+):\$PATH")
PLACE, ENTRYPOINT = of_image(r"WORKDIR (/opt\S+)"), of_image(r'ENTRYPOINT \["(\w+)"\]')


def services():
    """The services of the compose file in this folder, by name."""
    return yaml.safe_load(Path("compose.yaml").read_text("utf-8"))["services"]


def make_networks():
    """Give each service a network of its own, which a bridge connects with the others."""
    steps = ["mount -t tmpfs tmpfs /run", "ip link add all0 type bridge", "ip link set all0 up"]
    hosts = "127.0.0.1 localhost\n"
    for number, name in enumerate(services(), 1):
        hosts += f"10.77.0.{number} {name}\n"
        steps += [
            f"ip netns add {name}",
            f"ip link add {name} type veth peer name eth0 netns {name}",
            f"ip link set {name} master all0 up",
            f"ip -n {name} address add 10.77.0.{number}/24 dev eth0",
            f"ip -n {name} link set eth0 up",
            f"ip -n {name} link set lo up",
        ]
    for step in steps:
        subprocess.run(step.split(), check=True)
    Path("hosts").write_text(hosts)
    Path("passwd").write_text(f"fedhandoff:x:{USER}:{USER}::{HOME}:/bin/sh\n")


def in_namespaces(name, words):
    """The command line that runs a command as in a container of a service."""
    service, root = services()[name], tempfile.mkdtemp()
    mounts = [(path, path, "ro") for path in OF_MACHINE]
    mounts += [("hosts", "/etc/hosts", "ro"), ("passwd", "/etc/passwd", "ro"), (ROOT, PLACE, "ro")]
    for volume in service["volumes"]:
        source, place, mode = [*volume.split(":"), "rw"][:3]
        if not source.startswith("."):
            source = Path("volumes", source)
            source.mkdir(0o700, parents=True, exist_ok=True)
            os.chown(source, int(USER), int(USER))
        mounts.append((source, place, mode))
    steps = ["umask 022", f"mount -t tmpfs tmpfs {root}"]
    for place in service["tmpfs"]:
        steps += [f"mkdir {root}{place}", f"mount -t tmpfs tmpfs {root}{place}"]
    for source, place, mode in mounts:
        path = shlex.quote(str(Path(source).resolve()))
        steps += [
            f"[ -e {root}{place} ] || mkdir -p {root}{place}",
            f"mount --bind {path} {root}{place}",
            f"mount -o remount,bind,{mode} {root}{place}",
        ]
    steps += [f"mount -t tmpfs tmpfs {root}/dev/shm"]
    steps += [f"mkdir {root}/proc", f"mount -t proc proc {root}/proc"]
    if service["read_only"]:
        steps.append(f"mount -o remount,ro {root}")
    rights = [f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    if "ALL" in service["cap_drop"]:
        rights += ["--bounding-set=-all", "--inh-caps=-all"]
    if "no-new-privileges:true" in service["security_opt"]:
        rights.append("--no-new-privs")
    home = (f"--chdir={HOME}", f"HOME={HOME}", f"PATH={PATH}:/usr/bin:/bin")
    command = ["chroot", root, "setpriv", *rights, "env", "-i", *home, *words]
    script = " && ".join([*steps, f"exec {shlex.join(command)}"])
    unshare = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
    return ["ip", "netns", "exec", name, *unshare, "sh", "-c", script]


def main():
    """Run a command of `podman-compose`."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "exec"):
        command = commands.add_parser(name)
        for flag in ("--rm", "-T"):
            command.add_argument(flag, action="store_true")
        command.add_argument("--entrypoint", default=ENTRYPOINT)
        command.add_argument("service")
        command.add_argument("words", nargs=argparse.REMAINDER)
    commands.add_parser("networks")
    up = commands.add_parser("up")
    up.add_argument("-d", action="store_true")
    up.add_argument("services", nargs="+")
    given = parser.parse_args()
    if given.command == "networks":
        make_networks()
    elif given.command == "up":
        for name in given.services:
            words = [ENTRYPOINT, *services()[name]["command"].split()]
            with Path(f"{name}.log").open("wb") as log:
                subprocess.Popen(in_namespaces(name, words), stdout=log, stderr=subprocess.STDOUT)
    else:
        words = given.words if given.command == "exec" else [given.entrypoint, *given.words]
        command = in_namespaces(given.service, words)
        os.execvp(command[0], command)


if __name__ == "__main__":
    main()
