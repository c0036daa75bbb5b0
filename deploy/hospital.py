"""The hospital's command: start its SuperNode."""

import json
import os
import shutil
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from client_app.authority.node_config import NODE_CONFIG
from client_app.authority.start import check_own, find_policy
from deploy.approved import approved_code
from deploy.credentials import check_key, end_of
from deploy.errors import DeployError
from deploy.own_file import flaw_of_keys
from deploy.running import FILE, lock, read_facts
from deploy.supervisor import Program, flower_environment, forget_apps, keep_running, write_secret
from deploy.transport import ALPN, check_free, free_port, split_address
from deploy.voice import SuperNodeVoice
from strategies.protocol.files import STORES, expand, make_private, reason_of
from strategies.protocol.run_config import parse_pairs

PROGRAMS = Path(__file__).parent / "programs"  # replace Flower's own programs
REPLACED = (
    "flower-supernode",
    "flwr-clientapp",
    "flwr-agentapp",
    "flwr-connector",
    "flwr-model",
    "flwr-serverapp",
    "flwr-simulation",
)
# Environment variables of the hospital's processes. A command line would be visible to other users
# of the machine, and Flower passes its node-config to every process that takes a message.
CODE = "FEDHANDOFF_CODE"  # the folder of the approved code


@dataclass(frozen=True)
class Hospital:
    """A hospital's options for the start of its SuperNode."""

    # The folder with `ca.crt`, the hospital's key, its approved code, and Flower's files
    folder: Path
    server: str  # host:port of the SuperLink
    name: str  # the hospital's name, checked
    data_dir: Path  # the hospital's folder of images, or its manifest
    store_dir: Path = STORES  # the hospital's store
    members: str = "none"  # the file with the keys of all hospitals, "first-use", or "none"
    # The file of its policy; None = `policy.toml` in the folder, if there is one
    policy: Path | None = None
    # hospital.toml's keys of the node-config
    own_config: Mapping[str, Any] = field(default_factory=dict)
    node_config: str = ""  # further keys of the node-config, in Flower's notation
    runtime_port: int = 0  # the port of the SuperNode for the hospital's processes; 0 = a free one


def start_supernode(hospital: Hospital) -> None:
    """Run a hospital's SuperNode until SIGTERM, SIGINT or SIGHUP.

    All that can be checked is checked first.

    Raises:
        DeployError: A program, a key, a certificate, a folder, a port or the code cannot be used.
        OwnError: The policy, the members, the keys or the node-config cannot be used.
        OSError: A file in the store cannot be read or written.
    """
    folder = hospital.folder.absolute()
    store = hospital.store_dir.absolute()
    authority, key = folder / "ca.crt", folder / f"{hospital.name}.key"
    end_of(authority)
    check_key(key)
    if not (data := hospital.data_dir).exists():
        raise DeployError(f"{data} does not exist: give --data-dir the folder of the images.")
    if not os.access(data, os.R_OK):
        raise DeployError(f"{data} cannot be read: give this user the right to read it.")
    check_known_store(folder, hospital.name, store)
    check_writable(hospital.name, store)
    if not shutil.which("ps"):  # for the watch
        raise DeployError("The command ps is missing: install it (on Linux the package procps).")
    for name in REPLACED:
        if not shutil.which(name, path=str(PROGRAMS)):
            raise DeployError(
                f"{PROGRAMS / name} is missing or cannot be executed. Flower's own program would "
                "run any code of a run: start the hospital in a clone of the repository, not in a "
                "download from Flower's Hub (docs/hub.md)."
            )
    code = str(approved_code(folder))
    config = node_config(hospital)
    for sentence in check_own(config):
        print(sentence, flush=True)
    check_server(hospital.server, authority)
    hint = "With status 0 the hospital's key is not registered, or this machine's clock is wrong."
    facts = {"name": hospital.name, "server": hospital.server, "store": str(store)}
    with (
        lock(folder, f"{hospital.name}'s SuperNode", **facts),
        # Not in the user's own TMPDIR: the path of a socket has at most about a hundred characters.
        TemporaryDirectory(prefix="fedhandoff-", dir="/tmp") as private,
    ):
        if port := hospital.runtime_port:
            check_free({"runtime-port": f"127.0.0.1:{port}"})
        forget_apps(folder / "flwr")
        command = [
            *("flower-supernode", "--superlink", hospital.server),
            *("--root-certificates", str(authority), "--auth-supernode-private-key", str(key)),
            *("--superexec-auth-secret-file", str(write_secret(folder))),
            *("--isolation", "process", "--host", "127.0.0.1"),
            *("--port", str(port or free_port())),
        ]
        environment = flower_environment(folder / "flwr")
        environment |= {"TMPDIR": private, CODE: code, NODE_CONFIG: json.dumps(config)}
        environment["PATH"] = f"{PROGRAMS}{os.pathsep}{environment['PATH']}"
        voice = SuperNodeVoice(hospital.name, hospital.server)
        keep_running(Program(command, folder / "work", environment, voice, hint, watched=True))


def check_known_store(folder: Path, hospital: str, store: Path) -> None:
    """Raise a `DeployError` if the store of the last start from `folder` is missing."""
    own, last = store.absolute() / hospital, read_facts(folder).get("store")
    if last and not own.exists():
        raise DeployError(
            f"{own} is missing, and the last start was with a store in {last}: mount its disk, "
            "correct the path, or restore the store from a backup. A new store would begin keys, "
            f"ledger and privacy account again. To do this on purpose, remove {folder / FILE}."
        )


def check_writable(hospital: str, store: Path) -> None:
    """Raise a `DeployError` if a hospital's store cannot be written to."""
    folder = store / hospital
    try:
        make_private(folder)
        with TemporaryFile(dir=folder) as file:
            file.write(b"0")
    except OSError as error:
        raise DeployError(
            f"{hospital}'s store {folder} cannot be written to ({error.strerror}): give this user "
            "the right to, free space on that disk, or choose another folder as store in "
            "hospital.toml."
        ) from error


def node_config(hospital: Hospital) -> dict[str, Any]:
    """The hospital's node-config.

    Raises:
        DeployError: A file in it does not exist, or a key or value cannot be read.
        OwnError: A file in the hospital's folder is named almost like a policy.
    """
    # Always with the store: no variable of a later process may choose another ledger or account.
    paths = {"data-dir": hospital.data_dir, "store-dir": hospital.store_dir}
    if hospital.members not in ("first-use", "none"):
        paths["members"] = expand(hospital.members)
        if not paths["members"].is_file():
            raise DeployError(
                f"--members is {hospital.members}, which is not a file: give a file with the line "
                "of each hospital that `fedhandoff hospital identity` prints there; or first-use, "
                "or none (docs/privacy/sealing.md)."
            )
    if policy := hospital.policy or find_policy(hospital.folder):
        if not policy.is_file():
            raise DeployError(
                f"The policy {policy} is not a file: `fedhandoff policy` writes one. Move the "
                "present one away, or name another file with --policy."
            )
        paths["policy"] = policy
    try:
        more = parse_pairs(hospital.node_config)
    except ValueError as error:
        raise DeployError(
            f"--node-config is {hospital.node_config!r}, which cannot be read ({error}): give keys "
            "and values such as \"model='resnet18' train.batch-size=8\"."
        ) from error
    if taken := flaw_of_keys(more):
        raise DeployError(f"--node-config: {taken}")
    config = {"resident": True, **hospital.own_config, **more, "site": hospital.name}
    if isinstance(identity := config.get("identity"), str) and identity:
        paths["identity"] = expand(identity)
    if hospital.members == "first-use":
        config["members"] = "first-use"
    return config | {key: str(path.absolute()) for key, path in paths.items()}


def check_server(server: str, authority: Path) -> None:
    """Raise a `DeployError` if the server's certificate is not from the consortium's authority.

    It must be for this host:port. A server without an answer is no error: the SuperNode retries.
    """
    host, port = split_address(server, "--server")
    context = ssl.create_default_context(cafile=authority)
    context.set_alpn_protocols([ALPN])
    try:
        with (
            socket.create_connection((host, port), timeout=10) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            pass
    except ssl.SSLCertVerificationError as error:
        raise DeployError(
            f"The certificate of {server} cannot be verified with {authority} "
            f"({error.verify_message}); this machine's clock shows "
            f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC. Set the clock if it is wrong; else get "
            "ca.crt from the server's operator again, or ask for a new certificate for the name "
            f"'{host}' (`fedhandoff server authority`)."
        ) from error
    except OSError as error:
        # By a proxy, for example, while the SuperLink behind it restarts
        closed = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
        if isinstance(error, ssl.SSLError) and not closed:
            raise DeployError(
                f"The program at {server} is not a SuperLink with TLS ({error.reason}): check the "
                "port."
            ) from error
        reason = "it closes the connection" if closed else reason_of(error)
        print(
            f"{server} cannot be reached now ({reason}): the SuperNode tries again and again. "
            "Check --server, the network and the firewall if this lasts.",
            flush=True,
        )
