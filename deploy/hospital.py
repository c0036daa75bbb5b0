"""A hospital's side: its SuperNode."""

import os
import shutil
import socket
import ssl
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from deploy import forkserver
from deploy.credentials import check_name
from deploy.errors import DeployError
from deploy.supervisor import Program, flower, forget_apps, keep_running


def start_supernode(
    folder: Path,
    server: str,
    hospital: str,
    data_dir: Path,
    store_dir: Path | None,
    members: str,
    more: str,
    warm: bool,
) -> None:
    """Run a hospital's SuperNode until SIGTERM or SIGINT.

    Args:
        folder: With `ca.crt` and the hospital's key; Flower's files go there, too.
        server: host:port of the SuperLink.
        hospital: Its name.
        data_dir: Its images, or the manifest.
        store_dir: Its store; None = the app's default.
        members: The file of those whose parcels it opens, "first-use", or "none".
        more: Of its node-config.
        warm: Whether its ClientApp processes are begun by `deploy.forkserver`.

    Raises:
        DeployError: A file is missing, the server is not the consortium's, or it turns the
            hospital away for good.
    """
    check_name(hospital)
    folder = folder.absolute()
    authority, key = folder / "ca.crt", folder / f"{hospital}.key"
    for path, source in (
        (authority, "the server's operator has it"),
        (key, "make it with `python -m deploy key`"),
        (data_dir, "--data-dir names the hospital's images"),
    ):
        if not path.exists():
            raise DeployError(f"{path} is not there: {source}.")
    if not shutil.which("ps"):  # for the watch
        raise DeployError("There is no command ps: install it (on Linux the package procps).")
    check_server(server, authority)
    config = node_config(hospital, data_dir, store_dir, members, more)
    hint = (
        "If [code: 2004] stands above: the server does not know this hospital's key (its operator "
        f"registers {hospital}.pub), or takes it for connected for a minute after a crash. Status "
        "0: the key is no longer registered, or this machine's clock is wrong."
    )
    program = command(server, authority, key, config, _free_port())
    forget_apps(folder / "flwr")
    # What a resident process that is killed leaves behind goes with the folder. The names of its
    # sockets may have a hundred letters: TMPDIR may be too long for them.
    with TemporaryDirectory(prefix="fedhandoff-", dir="/tmp") as private:
        work, environment = folder / "work", flower(folder / "flwr") | {"TMPDIR": private}
        programs = [Program(program, work, environment, hint, watched=True)]
        if warm:
            environment[forkserver.ADDRESS] = f"{private}/forkserver"
            environment["PATH"] = f"{forkserver.PROGRAMS}{os.pathsep}{environment['PATH']}"
            begin = [sys.executable, "-I", forkserver.__file__]
            programs.insert(0, Program(begin, work, environment))
        keep_running(*programs)


def command(server: str, authority: Path, key: Path, config: str, port: int) -> list[str]:
    """The command line of the SuperNode, whose ClientApps talk to it on `port`."""
    return [
        *("flower-supernode", "--superlink", server, "--root-certificates", str(authority)),
        *("--auth-supernode-private-key", str(key), "--node-config", config),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]


def node_config(
    hospital: str, data_dir: Path, store_dir: Path | None, members: str, more: str
) -> str:
    """What the hospital tells its own SuperNode.

    Raises:
        DeployError: There is no file of members, or a path cannot be written in a node-config.
    """
    paths = {"data-dir": data_dir} | ({"store-dir": store_dir} if store_dir else {})
    if members == "first-use":
        more = f"members='first-use' {more}"
    elif members != "none":
        paths["members"] = Path(members).expanduser()
        if not paths["members"].is_file():
            raise DeployError(
                f"--members is {members}: name a file with the line of each hospital, as `python "
                "-m client_app identity` prints it there; or first-use, or none (docs/privacy.md)."
            )
    for key, path in paths.items():
        if "'" in str(path):
            raise DeployError(f"--{key} is {path}: Flower takes no path with a ' in it.")
    parts = [f"{key}='{path.absolute()}'" for key, path in paths.items()]
    if "resident=" not in more:
        parts.append("resident=true")
    return " ".join([f"site='{hospital}'", *parts, more]).strip()


def check_server(server: str, authority: Path) -> None:
    """Look whether the server is the one that the consortium's authority has vouched for.

    A server that does not answer is none of its business: the SuperNode waits for it.

    Raises:
        DeployError: It is not, or `server` is no address.
    """
    host, _, port = server.rpartition(":")
    if not host or not port.isdecimal():
        raise DeployError(f"--server is '{server}': give host:port, such as fl.example.org:9092.")
    host = host.strip("[]")
    context = ssl.create_default_context(cafile=authority)
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, int(port)), timeout=10) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            pass
    except ssl.SSLCertVerificationError as error:
        raise DeployError(
            f"{server} is not the server that {authority} vouches for ({error.verify_message}). "
            "Either ca.crt is not the one that its operator gives out, or the operator has to make "
            f"a certificate for the name '{host}' (`python -m deploy authority`)."
        ) from error
    except ssl.SSLError as error:
        raise DeployError(
            f"What listens on {server} is not a SuperLink with TLS ({error.reason})."
        ) from error
    except OSError as error:
        print(f"{server} does not answer yet ({error}); the SuperNode waits for it.", flush=True)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
