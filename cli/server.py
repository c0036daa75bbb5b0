"""Commands of the server's operator (docs/deployment.md)."""

from pathlib import Path
from typing import Annotated

import typer

from cli.command import RunConfig, command

app = typer.Typer(help="The operator: start the server, register hospitals, start runs.")
Folder = Annotated[Path, typer.Argument(help="The server's folder.")]


@command(app, "server authority ~/fedhandoff/server --name fl.example.org --name 192.0.2.7")
def authority(
    folder: Folder,
    name: Annotated[
        list[str],
        typer.Option(help="A host name or IP address under which hospitals reach the server."),
    ],
) -> None:
    """Make the certificates of the authority and the server."""
    from deploy.credentials import make_authority

    make_authority(folder, name)
    print(
        f"{folder}/ca.crt      goes to every hospital, to check the server\n"
        f"{folder}/ca.key      signs new server certificates: best kept offline\n"
        f"{folder}/server.crt  and\n"
        f"{folder}/server.key  stay on the server; keep the key secret"
    )


@command(app, "server start ~/fedhandoff/server")
def start(
    folder: Folder,
    fleet_address: Annotated[
        str, typer.Option(help="host:port on which hospitals connect.")
    ] = "0.0.0.0:9092",
    control_port: Annotated[
        int,
        typer.Option(
            help="Port for commands from this machine. Flower 1.40 and newer use the port of "
            "--fleet-address."
        ),
    ] = 8000,
) -> None:
    """Start the server, and keep it running."""
    from deploy.server import start_superlink

    start_superlink(folder, fleet_address, control_port)


@command(app, "server register ~/fedhandoff/server graz.pub --name graz")
def register(
    folder: Folder,
    public_key: Annotated[Path, typer.Argument(help="The hospital's .pub file.")],
    name: Annotated[str, typer.Option(help="The hospital's name.")],
) -> None:
    """Let a hospital take part."""
    from deploy.server import register

    register(folder, public_key, name)


@command(app, "server run ~/fedhandoff/server --run-config \"strategy='cwt' min-hospitals=3\"")
def run(folder: Folder, run_config: RunConfig = None) -> bool:
    """Start a run, show its log, and wait for its end."""
    from deploy.server import run

    return not run(folder, run_config)


@command(app, "server status ~/fedhandoff/server")
def status(folder: Folder) -> bool:
    """Show whether the server runs, its hospitals, certificates and free disk."""
    from deploy.status import status

    return not status(folder)
