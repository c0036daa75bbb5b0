"""The operator's commands: start the SuperLink, register hospitals, start runs."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import tomli_w

from deploy.credentials import check_server_files
from deploy.errors import DeployError
from deploy.running import is_running, lock
from deploy.supervisor import Program, flower_environment, forget_apps, keep_running, write_secret
from deploy.transport import (
    check_free,
    command_address,
    listen_addresses,
    listen_options,
    split_address,
)
from deploy.voice import SuperLinkVoice, Voice
from strategies.protocol.files import (
    FileError,
    alone,
    parse_toml,
    read_bytes,
    read_json,
    write_whole,
)
from strategies.protocol.names import check_name, join_names

ListT = TypeVar("ListT")
APP = Path(__file__).parents[1]
PROGRAMS = Path(__file__).parent / "server_programs"  # replace Flower's own programs
NAME = "fedhandoff"  # the SuperLink's name in Flower's config.toml
QUIET = "WARNING"  # Flower's log level beside the run's own lines
COMMANDS = "FEDHANDOFF_COMMANDS"  # environment variable: the SuperLink's address for commands
HOSPITALS = "hospitals.json"  # in the server's folder: names of registered hospitals, by node
STARTING = 30.0  # seconds for which a SuperLink that has just been started is asked again
PATIENCE = 120.0  # seconds for a SuperLink that has ended to be restarted


class NoSuperLinkError(DeployError):
    """No SuperLink answers."""


def start_superlink(folder: Path, fleet_address: str, control_port: int) -> None:
    """Run a SuperLink until SIGTERM, SIGINT or SIGHUP.

    The ServerApp has its own process, so that a run survives a restart of the SuperLink. The
    SuperLink accepts commands (`register`, `run`) only from this machine, from users who can read
    the folder (deploy.control).

    The folder is that of `make_authority`. `control_port` counts if commands have their own port
    (deploy.transport).

    Raises:
        DeployError: An address, a certificate or the folder cannot be used, or the program fails.
    """
    split_address(fleet_address, "--fleet-address")
    folder = folder.absolute()
    names_of(folder)  # a damaged file is refused at the start
    address = command_address(fleet_address, control_port)
    check_server_files(folder, split_address(address, "--fleet-address")[0])
    with lock(folder, "The server's SuperLink", fleet=fleet_address, control=address):
        check_free(listen_addresses(fleet_address, control_port))
        own = {"address": address, "root-certificates": str(folder / "ca.crt")}
        write_whole(folder / "config.toml", tomli_w.dumps({"superlink": {NAME: own}}))
        forget_apps(folder)
        secret = write_secret(folder)
        superlink, superexec = commands(folder, fleet_address, control_port, secret)
        hint = (
            f"If the lines above name the database: restore {folder / 'state.db'} from a backup, "
            "or, if no hospital is registered yet, remove all files state.db*."
        )
        work, environment = folder / "work", flower_environment(folder)
        environment |= {"PATH": f"{PROGRAMS}{os.pathsep}{environment['PATH']}", COMMANDS: address}
        keep_running(
            Program(superlink, work, environment, SuperLinkVoice(lambda: names_of(folder)), hint),
            Program(superexec, work, flower_environment(folder, QUIET), Voice()),
        )


def commands(
    folder: Path, fleet_address: str, control_port: int, secret: Path
) -> tuple[list[str], list[str]]:
    """The command lines of the SuperLink and of its SuperExec, which starts ServerApps."""
    shared = ("--superexec-auth-secret-file", str(secret))
    superlink = [
        *("flower-superlink", "--enable-supernode-auth", "--isolation", "process"),
        "--disable-runtime-dependency-installation",
        *("--ssl-ca-certfile", str(folder / "ca.crt")),
        *("--ssl-certfile", str(folder / "server.crt")),
        *("--ssl-keyfile", str(folder / "server.key")),
        *("--database", str(folder / "state.db")),
        *listen_options(fleet_address, control_port),
        *shared,
    ]
    superexec = [
        *("flower-superexec", "--root-certificates", str(folder / "ca.crt")),
        *("--runtime-api-address", command_address(fleet_address, control_port)),
        *shared,
    ]
    return superlink, superexec


def register(folder: Path, public_key: Path, hospital: str) -> None:
    """Register the hospital with a public key, so that it can take part.

    Raises:
        DeployError: The file holds no such key, the key or the name is already registered, or no
            SuperLink answers.
        ValueError: The hospital's name is not valid.
    """
    check_name(hospital)
    if not (public_key.is_file() and read_bytes(public_key).startswith(b"ecdsa-sha2-nistp")):
        raise DeployError(
            f"{public_key} is not a file with a hospital's public key, which starts with "
            "ecdsa-sha2-nistp384: give the .pub file that the hospital made with `fedhandoff "
            "hospital key`."
        )
    names = names_of(folder)  # a damaged file is refused before the key is registered
    if hospital in names.values():
        for node in _nodes_of(folder):
            if names.get(node["node-id"]) == hospital:
                raise DeployError(
                    f"A node is already registered as {hospital}. If {hospital} has a new key, "
                    "unregister the old one, and repeat: "
                    f"`{_flower_command(folder)} supernode unregister {node['node-id']} {NAME}`."
                )
    try:
        answer = _flwr(folder, "supernode", "register", str(public_key), NAME, "--name", hospital)
    except DeployError as error:
        if "already in use" not in str(error):
            raise
        raise DeployError(
            f"The key in {public_key} is already registered: each hospital needs a key of its own "
            "(`fedhandoff hospital key`). If an earlier command was interrupted, unregister the "
            "node that `fedhandoff server status` shows without a name, and repeat."
        ) from None
    with alone(folder):
        names = {**names_of(folder), str(answer["node-id"]): hospital}
        write_whole(folder / HOSPITALS, json.dumps(names))
    print(f"{hospital} is registered and can start its SuperNode.")


def names_of(folder: Path) -> dict[str, str]:
    """The names of a server's hospitals, by node. Flower does not report these names."""
    return read_list(folder / HOSPITALS, dict[str, str])


def read_list(path: Path, shape: type[ListT]) -> ListT:
    """A list of the server's, in the shape of a `dict`; empty if there is no file.

    Raises:
        FileError: The file is damaged.
    """
    try:
        return read_json(path, shape)
    except FileNotFoundError:
        return shape()
    except FileError as error:
        raise FileError(f"{error} Restore it from a backup.") from error


def hospitals_of(folder: Path) -> list[tuple[str, str, str]]:
    """A server's hospitals, each with name, state and the state's start, both as Flower has them.

    A hospital that has never connected has no start.
    """
    names = names_of(folder)
    return [
        (
            names.get(node["node-id"], f"node {node['node-id']}"),
            node["status"],
            node["online-at" if node["status"] == "online" else "offline-at"].replace("N/A", ""),
        )
        for node in _nodes_of(folder)
    ]


def _nodes_of(folder: Path) -> list[dict[str, str]]:
    """The registered nodes, as Flower lists them."""
    nodes: list[dict[str, str]] = _flwr(folder, "supernode", "list", NAME)["nodes"]
    return [node for node in nodes if node["status"] != "unregistered"]


def _flower_command(folder: Path) -> str:
    """The beginning of a command line by which a person gives Flower a command."""
    return f"FLWR_HOME={shlex.quote(str(folder.absolute()))} uv run flwr"


def last_run_of(folder: Path) -> dict[str, str] | None:
    """The entry of `flwr ls` for a server's newest run; None if there was no run."""
    runs: list[dict[str, str]] = _flwr(folder, "ls", NAME)["runs"]
    return runs[0] if runs else None


def run(folder: Path, run_config: str | None) -> bool:
    """Start a run of the app, show its log, and wait for its end; returns whether it completed.

    Raises:
        DeployError: No SuperLink answers, or too few hospitals are registered.
        SettingsError: A setting is wrong.
    """
    _check(folder, run_config)
    overrides = ["--run-config", run_config] if run_config else []
    with bare_app() as app:
        number = str(_flwr(folder, "run", str(app), NAME, *overrides)["run-id"])
    print(
        f"Run {number}. It goes on after Ctrl-C; to stop it:\n"
        f"{_flower_command(folder)} stop {number} {NAME}",
        flush=True,
    )
    state = _follow(folder, number)
    completed = state["status"] == "finished:completed"
    if not completed:
        text = f"Run {number} is {state['status']}: {state['status-details']}"
        print(text, file=sys.stderr, flush=True)
    return completed


@contextmanager
def bare_app() -> Iterator[Path]:
    """A folder with the files of this checkout that belong to the app, until the end of the block.

    `flwr run` looks at all files of its folder: with the environment of a checkout, that takes four
    seconds. The bundle that it makes is the same.
    """
    project = parse_toml((APP / "pyproject.toml").read_text("utf-8"))
    patterns = ["pyproject.toml", *project["tool"]["flwr"]["app"]["fab-include"]]
    with TemporaryDirectory(prefix="fedhandoff-app-") as place:
        for file in (file for pattern in patterns for file in APP.glob(pattern)):
            copy = Path(place) / file.relative_to(APP)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
        yield Path(place)


def _check(folder: Path, run_config: str | None) -> None:
    """Refuse a run with wrong settings, or of too few hospitals, before Flower gets it."""
    from server_app.check import check  # takes a second
    from strategies.protocol.run_config import changes_of
    from strategies.protocol.settings import complete

    settings = check(complete(changes_of([run_config] if run_config else [])), simulated=False)
    names, wanted = sorted(name for name, *_ in hospitals_of(folder)), settings.min_hospitals
    if len(names) < wanted:
        raise DeployError(
            f"Registered hospitals: {len(names)} of {wanted} (min-hospitals), "
            f"{join_names(names) or 'none'}. Invite more with `fedhandoff server invite`, or lower "
            "min-hospitals."
        )


def _follow(folder: Path, number: str) -> dict[str, str]:
    """Show the log of a run until its end; returns the run's state as `flwr ls` lists it."""
    gone: float | None = None  # since then no SuperLink has answered
    while True:
        # The command ends with the run, or with the SuperLink.
        environment = flower_environment(folder.absolute(), QUIET)
        subprocess.run(["flwr", "log", number, NAME], env=environment, check=False)
        try:
            state: dict[str, str] = _flwr(folder, "ls", NAME, "--run-id", number)["runs"][0]
        except NoSuperLinkError:
            gone = gone or time.monotonic()
            if time.monotonic() - gone >= PATIENCE:
                raise
        else:
            if state["status"].startswith("finished"):
                return state
            gone = None
        time.sleep(2)


def _flwr(folder: Path, *arguments: str) -> dict[str, Any]:
    """The JSON that one of Flower's commands prints.

    Raises:
        NoSuperLinkError: No SuperLink answers.
        DeployError: The command fails.
    """
    if not (folder / "config.toml").exists():
        raise NoSuperLinkError(
            f"{folder / 'config.toml'} does not exist: start this folder's SuperLink first, with "
            "`fedhandoff server start`."
        )
    until = time.monotonic() + STARTING
    environment = flower_environment(folder.absolute())
    while not (answer := ask_flower(environment, arguments))["success"]:
        message = answer["error-message"].strip()
        if "SuperLink is unavailable" not in message:
            raise DeployError(message)
        if not is_running(folder) or time.monotonic() > until:
            raise NoSuperLinkError(
                f"No SuperLink answers at the address in {folder / 'config.toml'}: start it on "
                "this machine with `fedhandoff server start`."
            )
        time.sleep(1)
    return answer


def ask_flower(environment: Mapping[str, str], arguments: Sequence[str]) -> dict[str, Any]:
    """The JSON of one of Flower's commands; other output is its `error-message`."""
    done = subprocess.run(
        ["flwr", *arguments, "--format", "json"],
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        answer = {"success": False, "error-message": done.stdout + done.stderr}
    return answer
