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
from strategies.protocol.text import Screen


def main() -> None:
    """Run one command."""
    Screen.install()
    parser = argparse.ArgumentParser(prog="python -m deploy", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(name: str, text: str, folder: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(command=name)
        added.add_argument("folder", type=_path, help=folder)
        return added

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
    approved = command("approve", "hospital: approve the code to run", hospital)
    approved.add_argument(
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
    registered = command("register", "operator: let a hospital take part", server)
    registered.add_argument("public_key", type=_path, help="the hospital's .pub file")
    registered.add_argument("--name", required=True, help="the hospital's name")
    supernode = command("supernode", "hospital: start its SuperNode", hospital)
    supernode.add_argument("--server", required=True, help="the server's host:port")
    supernode.add_argument("--name", required=True, help="the hospital's name")
    supernode.add_argument(
        "--data-dir", type=_path, required=True, help="the hospital's images (docs/data.md)"
    )
    supernode.add_argument("--store-dir", type=_path, help="the hospital's store")
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
    about = "show the servers and hospitals on this machine, their certificates and free disk"
    states = commands.add_parser("status", help=about, description=about)
    states.set_defaults(command="status")
    states.add_argument(
        "folder",
        type=_path,
        nargs="*",
        help="a server's or a hospital's folder (default: all of this user that run here)",
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


def _do(given: argparse.Namespace) -> None:
    folder = given.folder
    match given.command:
        case "authority":
            make_authority(folder, given.server)
            print(
                f"{folder}/ca.crt      goes to every hospital, to check the server\n"
                f"{folder}/ca.key      signs new server certificates: best kept offline\n"
                f"{folder}/server.crt  and\n"
                f"{folder}/server.key  stay on the server; keep the key secret"
            )
        case "key":
            make_key(folder, given.hospital)
            print(
                f"{folder}/{given.hospital}.pub  goes to the server's operator, who registers it\n"
                f"{folder}/{given.hospital}.key  stays here; keep it secret"
            )
        case "approve":
            code = approve(folder, given.checkout)
            print(f"{code} is approved: compare this hash with the other hospitals'.")
        case "superlink":
            start_superlink(folder, given.fleet_address, given.control_port)
        case "register":
            register(folder, given.public_key, given.name)
        case "supernode":
            start_supernode(Hospital(**{k: v for k, v in vars(given).items() if k != "command"}))
        case "run":
            run(folder, given.run_config)
        case "status":
            sys.exit(not status(folder))


if __name__ == "__main__":
    main()
