"""The commands of a consortium (docs/deployment.md): `python -m deploy <command> --help`."""

import argparse
import sys
from pathlib import Path

from deploy.approved import approve
from deploy.credentials import make_authority, make_key
from deploy.errors import DeployError
from deploy.hospital import Hospital, start_supernode
from deploy.server import APP, register, run, start_superlink
from deploy.status import status
from strategies.protocol.files import STORES
from strategies.protocol.text import Screen


def main() -> None:
    """Run one command."""
    Screen.install()
    parser = argparse.ArgumentParser(prog="python -m deploy", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(name: str, text: str, folder: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(command=name)
        command.add_argument("folder", type=_path, help=folder)
        return command

    server, hospital = "the server's folder", "the hospital's folder"
    authority = command(
        "authority", "operator: make the certificates of the authority and the server", server
    )
    authority.add_argument(
        "--server",
        nargs="+",
        required=True,
        metavar="NAME",
        help="host names or IP addresses under which hospitals reach the server",
    )
    key = command("key", "hospital: make its authentication key", hospital)
    key.add_argument("hospital", help="the hospital's name")
    approval = command("approve", "hospital: approve the code to run", hospital)
    approval.add_argument(
        "checkout",
        nargs="?",
        type=_path,
        default=APP,
        help="clone of this repository whose code is approved (default: this one)",
    )
    superlink = command("superlink", "operator: start the server", server)
    superlink.add_argument(
        "--fleet-address",
        default="0.0.0.0:9092",
        help="host:port on which hospitals connect (default: %(default)s)",
    )
    superlink.add_argument(
        "--control-port",
        type=int,
        default=8000,
        help="port for commands from this machine (default: %(default)s); Flower 1.40 and newer "
        "use the port of --fleet-address",
    )
    registration = command("register", "operator: let a hospital take part", server)
    registration.add_argument("public_key", type=_path, help="the hospital's .pub file")
    registration.add_argument("--name", required=True, help="the hospital's name")
    supernode = command("supernode", "hospital: start its SuperNode", hospital)
    supernode.add_argument("--server", required=True, help="the server's host:port")
    supernode.add_argument("--name", required=True, help="the hospital's name")
    supernode.add_argument(
        "--data-dir", type=_path, required=True, help="the hospital's images (docs/data.md)"
    )
    supernode.add_argument(
        "--store-dir",
        type=_path,
        default=STORES,
        help="the hospital's store (default: %(default)s)",
    )
    supernode.add_argument(
        "--members",
        required=True,
        help="file with the keys of all hospitals, first-use, or none (open runs only)",
    )
    supernode.add_argument(
        "--policy",
        type=_path,
        help="the hospital's policy (default: policy.toml in its folder, if there is one)",
    )
    supernode.add_argument(
        "--any-code",
        action="store_true",
        help="run code that the hospital has not approved: anyone who can start a run at the "
        "server can then read all files of this user, also images and keys",
    )
    supernode.add_argument(
        "--runtime-port",
        type=int,
        default=0,
        help="local port for the hospital's own processes, for a firewall rule (default: any)",
    )
    supernode.add_argument(
        "--node-config", default="", help="more keys, such as \"model='resnet18'\""
    )
    runs = command("run", "operator: start a run and wait for its end", server)
    runs.add_argument("--run-config", help="settings, such as \"strategy='cwt' image-size=64\"")
    command(
        "status",
        "show whether a server or hospital runs, its certificates and free disk",
        "the server's or hospital's folder",
    )
    arguments = parser.parse_args()
    try:
        _do(arguments)
    except DeployError as error:
        sys.exit(f"python -m deploy {arguments.command}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def _path(text: str) -> Path:
    return Path(text).expanduser()


def _do(arguments: argparse.Namespace) -> None:
    folder: Path = arguments.folder
    match arguments.command:
        case "authority":
            make_authority(folder, arguments.server)
            print(
                f"{folder}/ca.crt      goes to every hospital, to check the server\n"
                f"{folder}/ca.key      signs new server certificates: best kept offline\n"
                f"{folder}/server.crt  and\n"
                f"{folder}/server.key  stay on the server; keep the key secret"
            )
        case "key":
            make_key(folder, arguments.hospital)
            path = folder / arguments.hospital
            print(
                f"{path}.pub  goes to the server's operator, who registers it\n"
                f"{path}.key  stays here; keep it secret"
            )
        case "approve":
            code = approve(folder, arguments.checkout)
            print(f"{code} is approved: compare this hash with the other hospitals'.")
        case "superlink":
            start_superlink(folder, arguments.fleet_address, arguments.control_port)
        case "register":
            register(folder, arguments.public_key, arguments.name)
        case "supernode":
            start_supernode(
                Hospital(**{k: v for k, v in vars(arguments).items() if k != "command"})
            )
        case "run":
            run(folder, arguments.run_config)
        case "status":
            sys.exit(not status(folder))


if __name__ == "__main__":
    main()
