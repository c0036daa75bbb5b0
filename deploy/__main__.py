"""What a consortium starts (docs/deployment.md): `python -m deploy <command> --help`."""

import argparse
import sys
from pathlib import Path

from deploy.credentials import make_authority, make_key
from deploy.errors import DeployError
from deploy.hospital import start_supernode
from deploy.server import register, run, start_superlink


def main() -> None:
    """Do one command."""
    parser = argparse.ArgumentParser(prog="python -m deploy", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(name: str, text: str, folder: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(command=name)
        added.add_argument("folder", type=Path, help=folder)
        return added

    server, hospital = "the server's folder", "the hospital's folder"
    authority = command("authority", "operator: certificates of authority and server", server)
    authority.add_argument(
        "--server",
        nargs="+",
        required=True,
        metavar="NAME",
        help="host names or IP addresses under which hospitals reach it",
    )
    key = command("key", "hospital: a key that it proves with who it is", hospital)
    key.add_argument("hospital", help="its name")
    superlink = command("superlink", "operator: run the server", server)
    superlink.add_argument(
        "--fleet-address",
        default="0.0.0.0:9092",
        help="host:port to listen on for hospitals (default: %(default)s)",
    )
    superlink.add_argument(
        "--control-port",
        type=int,
        default=8000,
        help="port to listen on for commands from this machine (default: %(default)s)",
    )
    registered = command("register", "operator: let a hospital take part", server)
    registered.add_argument("public_key", type=Path, help="the hospital's .pub file")
    registered.add_argument("--name", required=True, help="the hospital's name")
    supernode = command("supernode", "hospital: take part", hospital)
    supernode.add_argument("--server", required=True, help="its host:port")
    supernode.add_argument("--name", required=True, help="the hospital's name")
    supernode.add_argument("--data-dir", type=Path, required=True, help="its images (docs/data.md)")
    supernode.add_argument("--store-dir", type=Path, help="its store")
    supernode.add_argument(
        "--members",
        required=True,
        help="file of those whose sealed parcels it opens, first-use, or none: open runs only",
    )
    supernode.add_argument("--node-config", default="", help="more, such as \"model='resnet18'\"")
    supernode.add_argument(
        "--warm",
        action="store_true",
        help="begin the processes that answer messages a second sooner (docs/deployment.md)",
    )
    runs = command("run", "operator: do one run and wait for its end", server)
    runs.add_argument("--run-config", help="settings, such as \"strategy='cwt' image-size=64\"")
    arguments = parser.parse_args()
    try:
        _do(arguments)
    except DeployError as error:
        sys.exit(f"python -m deploy {arguments.command}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def _do(given: argparse.Namespace) -> None:
    folder = given.folder.expanduser()
    match given.command:
        case "authority":
            make_authority(folder, given.server)
            print(
                f"{folder}/ca.crt      to every hospital: it knows the server by it\n"
                f"{folder}/ca.key      only for new server certificates: best kept off line\n"
                f"{folder}/server.crt  and\n"
                f"{folder}/server.key  stay on the server; the key is shown to nobody"
            )
        case "key":
            make_key(folder, given.hospital)
            print(
                f"{folder}/{given.hospital}.pub  to the server's operator, who registers it\n"
                f"{folder}/{given.hospital}.key  stays here, and is shown to nobody"
            )
        case "superlink":
            start_superlink(folder, given.fleet_address, given.control_port)
        case "register":
            register(folder, given.public_key.expanduser(), given.name)
        case "supernode":
            store = given.store_dir and given.store_dir.expanduser()
            data = given.data_dir.expanduser()
            paths = (data, store, given.members)
            start_supernode(
                folder, given.server, given.name, *paths, given.node_config, warm=given.warm
            )
        case "run":
            run(folder, given.run_config)


if __name__ == "__main__":
    main()
