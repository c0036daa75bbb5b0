"""The environment of a run, before Flower imports Ray: its packages, and Ray's variables."""

import os
import socket
import sys
import tomllib
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
RAY_SOCKETS = 70  # characters that Ray adds to the temporary folder for the path of a socket
SOCKET_PATH = 107  # characters that such a path may have
GIVEN_ADDRESS = "FEDHANDOFF_RAY_ADDRESS"  # environment variable: RAY_ADDRESS of the user
CONNECT = 1.0  # seconds that a Ray cluster has to accept a connection


def prefer_compiled(pyproject: Path = PYPROJECT) -> None:
    """Remove the run's environment from the import path if Python's own has all dependencies.

    Flower installs the app's dependencies for each run, in a temporary folder. Every process would
    compile its imports there: half a minute of a core for torch.
    """
    environment = Path(os.environ.get("VIRTUAL_ENV", sys.prefix))
    others = [path for path in sys.path if not Path(path).is_relative_to(environment)]
    if environment == Path(sys.prefix) or len(others) == len(sys.path):
        return
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    # Ray comes with flwr[simulation]; the other packages of that extra come with Flower.
    wanted = map(Requirement, [*project["dependencies"], "ray"])
    if all(_is_met(each, others) for each in wanted):
        sys.path[:] = others


def prepare_ray() -> None:
    """Set the variables of Ray's processes that the user has not set."""
    for name, value in {
        # Ray forwards the log of simulated hospitals: without colours, and every line. By default
        # it drops lines that differ only in numbers.
        "RAY_COLOR_PREFIX": "0",
        "RAY_DEDUP_LOGS": "0",
        # Ray remembers the last cluster of a machine, and waits for it even if it has ended.
        "RAY_ADDRESS": "local",
        # Flower's own log handler, which the app replaces: otherwise an actor logs its end after
        # the last line of a run.
        "FLWR_LOG_LEVEL": "ERROR",
    }.items():
        os.environ.setdefault(name, value)
    if len(os.environ.get("TMPDIR", "")) + RAY_SOCKETS > SOCKET_PATH:
        os.environ.setdefault("RAY_TMPDIR", "/tmp")


def missing_cluster() -> str:
    """The value of RAY_ADDRESS if no cluster answers there, else "".

    Ray would wait for minutes. So the variable becomes "local": the run ends with a message.
    Flower imports an app twice, so the value is kept in the environment.
    """
    address = os.environ.setdefault(GIVEN_ADDRESS, os.environ["RAY_ADDRESS"])
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host:  # local, or auto, which Ray refuses at once if there is none
        return ""
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT):
            return ""
    except (OSError, ValueError, OverflowError):
        os.environ["RAY_ADDRESS"] = "local"
        return address


def _is_met(wanted: Requirement, paths: list[str]) -> bool:
    found: list[Distribution] = [*distributions(name=canonicalize_name(wanted.name), path=paths)]
    return bool(found) and wanted.specifier.contains(found[0].version, prereleases=True)
