"""hospital.toml and server.toml: what one would otherwise type in every command.

Each is in the folder of its hospital or server (docs/deployment.md).
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import tomli_w

from deploy.errors import DeployError
from deploy.transport import split_address
from strategies.protocol.declared import (
    Text,
    bounds,
    condition,
    declare,
    keys_of,
    near_miss,
    pattern,
    read,
)
from strategies.protocol.files import (
    expand,
    make_private,
    parse_toml,
    read_by_hand,
    reason_of,
    write_new,
)
from strategies.protocol.names import RULE, names_hospital

PLACE = Path("~/fedhandoff")  # where the folders of hospitals and servers are by default
NODE_CONFIG = "node-config"  # a table of hospital.toml: further keys of the node-config
# Keys of the node-config that `hospital start` sets, each with the key of hospital.toml
HOSPITAL_KEYS = {
    **{"site": "name", "data-dir": "data", "store-dir": "store"},
    **{"policy": "policy", "members": "members"},
}
Address = Annotated[
    str,
    condition(lambda text: _is_address(text), "host:port alone, such as fl.example.org:9092"),
]
Name = Annotated[str, condition(names_hospital, RULE)]
Kind = Annotated[str, pattern("folder|manifest", "folder or manifest")]
Port = Annotated[int, bounds(1, 65535)]
FreePort = Annotated[int, bounds(0, 65535)]


@declare
class HospitalFile:
    """The keys of hospital.toml; its paths are relative to its folder.

    Only the types count: for a key that is left out, a command has a default, or needs its option.
    """

    name: Name
    data: Text = "images"  # the folder of images, or the manifest
    dataset: Kind = "folder"  # "folder" or "manifest", if `data` can be read as either
    model: Text = "cnn"  # The network that the hospital starts with. Without it: the run's.
    store: Text = "store"
    policy: Text = "policy.toml"
    members: Text = "members"  # the file with the keys of all hospitals, "first-use", or "none"
    server: Address = "localhost:9092"  # host:port of the server
    # The port of the SuperNode for the hospital's processes; 0 = a free one
    runtime_port: FreePort = 0


@declare
class ServerFile:
    """The keys of server.toml."""

    # host:port under which hospitals reach the server, for invitations
    address: Address = "localhost:9092"
    fleet_address: Address = "0.0.0.0:9092"  # host:port on which hospitals connect
    control_port: Port = 8000  # the port for commands from the server's own machine


FILES: dict[str, type[Any]] = {"hospital.toml": HospitalFile, "server.toml": ServerFile}


def find_folder(chosen: Path, file: str) -> Path:
    """A chosen folder: a path, or a name below ~/fedhandoff. It should have `file`."""
    path = expand(chosen)
    is_bare = len(path.parts) == 1 and not path.is_absolute()
    return expand(PLACE) / path if is_bare and not (path / file).is_file() else path


def read_own(folder: Path, file: str) -> dict[str, Any]:
    """The keys and values in the file of a folder; empty if there is no file.

    Raises:
        DeployError: The file cannot be read, or has unknown keys or wrong values; it names all.
    """
    path = folder / file
    try:
        values = parse_toml(read_by_hand(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DeployError(f"{path} cannot be read: {reason_of(error)}") from error
    if isinstance(more := values.get(NODE_CONFIG), dict):
        values[NODE_CONFIG] = dict(_with_dots(more))
    _check(path, values)
    return values


def _with_dots(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a table and of the tables in it: TOML reads the dots of a key as tables."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _with_dots(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _check(path: Path, values: dict[str, Any]) -> None:
    table = FILES[path.name]
    known = [*keys_of(table), *[NODE_CONFIG] * (table is HospitalFile)]
    own = {key: value for key, value in values.items() if key != NODE_CONFIG}
    _, problems = read(own, table)
    for key in own.keys() - set(known):
        problems[key] = f"There is no key '{key}'{near_miss(key, known)}"
    more = values.get(NODE_CONFIG, {})
    if not isinstance(more, dict):
        problems[NODE_CONFIG] = f"'{NODE_CONFIG}' must be a table: [{NODE_CONFIG}]."
    elif more:
        from client_app.authority.node_config import NodeConfig, OwnError  # takes a second

        if taken := flaw_of_keys(more):
            problems["taken"] = taken
        try:
            NodeConfig.read(more)
        except OwnError as error:
            problems[NODE_CONFIG] = error.why
    if "name" in known and "name" not in own:
        problems["name"] = "The key 'name' is missing: it is the hospital's name."
    if problems:
        raise DeployError(f"{path}: " + " ".join(problems.values()))


def flaw_of_keys(more: Iterable[str]) -> str:
    """A text on those of further keys of the node-config that stand elsewhere; empty if none."""
    return " ".join(
        f"The node-config's key '{key}' cannot be set here: use '{HOSPITAL_KEYS[key]}' of "
        f"hospital.toml, or the option --{key}."
        for key in more
        if key in HOSPITAL_KEYS
    )


def _is_address(text: str) -> bool:
    try:
        return bool(split_address(text, "the address"))
    except DeployError:
        return False


def write_own(folder: Path, file: str, values: dict[str, Any]) -> None:
    """Write the file of a folder, as `making_own` does."""
    with making_own(folder, file, values):
        pass


@contextmanager
def making_own(folder: Path, file: str, values: dict[str, Any]) -> Iterator[None]:
    """Make a folder, and after the block its file; values that are None are left out.

    The file comes last, so that a command that fails or is killed can be repeated.

    Raises:
        DeployError: The file exists, or a value is wrong.
    """
    path = folder / file
    given = {key: value for key, value in values.items() if value is not None}
    _check(path, given)
    taken = DeployError(f"{path} already exists: change it with an editor, or move it away.")
    if os.path.lexists(path):
        raise taken
    make_private(folder)
    yield
    try:
        write_new(path, tomli_w.dumps(given).encode(), 0o644)
    except FileExistsError:
        raise taken from None
