"""The hospital's commands: start its SuperNode."""

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
        folder: Has `ca.crt` and the hospital's key; Flower's files go there, too.
        server: host:port of the SuperLink.
        hospital: The hospital's name.
        data_dir: The hospital's folder of images, or its manifest.
        store_dir: The hospital's store; None = the app's default.
        members: The file with the keys of all hospitals, "first-use", or "none".
        more: Further keys of the node-config.
        warm: Whether `deploy.forkserver` starts the ClientApp processes.

    Raises:
        DeployError: A file is missing, the server's certificate is not from the consortium's
            authority, or the SuperNode does not stay up.
    """
    check_name(hospital)
    folder = folder.absolute()
    authority, key = folder / "ca.crt", folder / f"{hospital}.key"
    for path, source in (
        (authority, "get it from the server's operator"),
        (key, "make it with `python -m deploy key`"),
        (data_dir, "give --data-dir the folder of the hospital's images"),
    ):
        if not path.exists():
            raise DeployError(f"{path} does not exist: {source}.")
    if not shutil.which("ps"):  # for the watch
        raise DeployError("The command ps is missing: install it (on Linux the package procps).")
    check_server(server, authority)
    config = node_config(hospital, data_dir, store_dir, members, more)
    hint = (
        "If the log above shows [code: 2004], the server does not know this hospital's key: ask "
        f"its operator to register {hospital}.pub. After a crash the server also answers so for a "
        "minute. Status 0: the key is no longer registered, or this machine's clock is wrong."
    )
    program = command(server, authority, key, config, _free_port())
    forget_apps(folder / "flwr")
    # Removed at the end, with what a killed resident process leaves behind. Not in the user's own
    # TMPDIR: the path of a socket has at most about a hundred characters.
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
    """The command line of the SuperNode, to which its ClientApps connect on `port`."""
    return [
        *("flower-supernode", "--superlink", server, "--root-certificates", str(authority)),
        *("--auth-supernode-private-key", str(key), "--node-config", config),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]


def node_config(
    hospital: str, data_dir: Path, store_dir: Path | None, members: str, more: str
) -> str:
    """The hospital's node-config, as Flower's command line takes it.

    Raises:
        DeployError: The file of members does not exist, or a path holds a quote.
    """
    paths = {"data-dir": data_dir} | ({"store-dir": store_dir} if store_dir else {})
    if members == "first-use":
        more = f"members='first-use' {more}"
    elif members != "none":
        paths["members"] = Path(members).expanduser()
        if not paths["members"].is_file():
            raise DeployError(
                f"--members is {members}, which is no file: give a file with the line of each "
                "hospital that `python -m client_app identity` prints there; or first-use, or none "
                "(docs/privacy.md)."
            )
    for key, path in paths.items():
        if "'" in str(path):
            raise DeployError(f"--{key} is {path}: Flower accepts no path with a ' in it.")
    parts = [f"{key}='{path.absolute()}'" for key, path in paths.items()]
    if "resident=" not in more:
        parts.append("resident=true")
    return " ".join([f"site='{hospital}'", *parts, more]).strip()


def check_server(server: str, authority: Path) -> None:
    """Check the server's certificate with that of the consortium's authority.

    A server that does not answer is not an error: the SuperNode retries.

    Raises:
        DeployError: The certificate is not from that authority or not for this address, or `server`
            is not host:port.
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
            f"The certificate of {server} cannot be verified with {authority} "
            f"({error.verify_message}). Get ca.crt from the server's operator again, or ask for a "
            f"certificate for the name '{host}' (`python -m deploy authority`)."
        ) from error
    except ssl.SSLError as error:
        raise DeployError(
            f"What listens on {server} is not a SuperLink with TLS ({error.reason}): check the "
            "port."
        ) from error
    except OSError as error:
        print(f"{server} does not answer yet ({error}): the SuperNode retries.", flush=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
