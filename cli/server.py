"""Commands of the server's operator (docs/deployment.md)."""

from pathlib import Path
from typing import Annotated

import typer

from cli.command import RunConfig, command, output_option
from cli.places import HERE, SERVER, Server

FLEET_ADDRESS, CONTROL_PORT = "0.0.0.0:9092", 8000
app = typer.Typer(
    help="The operator: start the server, register hospitals, start runs.", no_args_is_help=True
)


@command(app, "server authority --name fl.example.org --name 192.0.2.7")
def authority(
    name: Annotated[
        list[str],
        typer.Option(help="A host name or IP address under which hospitals reach the server."),
    ],
    server: Server = HERE,
) -> None:
    """Make the certificates of the authority and the server."""
    from deploy.credentials import make_authority
    from deploy.own_file import write_own

    make_authority(server, name)
    if not (server / SERVER).exists():
        everywhere, _, port = FLEET_ADDRESS.rpartition(":")
        host = next((each for each in name if "*" not in each), None)
        if host and ":" in host:  # IPv6
            host, everywhere = f"[{host}]", "[::]"
        own = {"fleet-address": f"{everywhere}:{port}", "control-port": CONTROL_PORT}
        write_own(server, SERVER, {"address": host and f"{host}:{port}", **own})
    print(
        f"{server}/ca.crt      goes to every hospital, to check the server\n"
        f"{server}/ca.key      signs new server certificates: best kept offline\n"
        f"{server}/server.crt  and\n"
        f"{server}/server.key  stay on the server; keep the key secret"
    )


@command(app, "server start")
def start(
    server: Server = HERE,
    fleet_address: Annotated[
        str, typer.Option(help="host:port on which hospitals connect.")
    ] = FLEET_ADDRESS,
    control_port: Annotated[
        int,
        typer.Option(
            min=1,
            max=65535,
            help="Port for commands from this machine. Flower 1.40 and newer use the port of "
            "--fleet-address.",
        ),
    ] = CONTROL_PORT,
) -> None:
    """Start the server, and keep it running."""
    from deploy.server import start_superlink

    start_superlink(server, fleet_address, control_port)


@command(app, "server register graz.pub --name graz")
def register(
    public_key: Annotated[Path, typer.Argument(help="The hospital's .pub file.")],
    name: Annotated[str, typer.Option(help="The hospital's name.")],
    server: Server = HERE,
) -> None:
    """Let a hospital take part."""
    from deploy.server import register

    register(server, public_key, name)


@command(app, "server invite graz")
def invite(
    hospital: Annotated[str, typer.Argument(help="The hospital's name in the consortium.")],
    to: Annotated[
        Path | None, output_option("The invitation. Without it: NAME.invitation.", ".invitation")
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, max=3650, help="Days until the invitation ends.")
    ] = 14,
    server: Server = HERE,
) -> None:
    """Make an invitation, with which a hospital joins.

    A thief of the file can register a key under the hospital's name before the hospital does. So
    send it by a channel that only the hospital reads.
    """
    from deploy.invitation import invite

    file = to or Path(f"{hospital}.invitation")
    invite(server, hospital, file, days)
    print(f"{file} goes to {hospital}, and to nobody else.")


@command(app, "server accept graz.answer")
def accept(
    answer: Annotated[Path, typer.Argument(help="The hospital's answer to its invitation.")],
    server: Server = HERE,
) -> None:
    """Register the hospital that has answered its invitation, once."""
    from deploy.invitation import accept

    accept(server, answer)


@command(app, "server run --run-config \"strategy='cwt' min-hospitals=3\"")
def run(server: Server = HERE, run_config: RunConfig = None) -> bool:
    """Start a run, show its log, and wait for its end."""
    from deploy.server import run

    return not run(server, run_config)


@command(app, "server status")
def status(server: Server = HERE) -> bool:
    """Show the server's process, hospitals, certificates and free disk space."""
    from deploy.status import status

    return not status(server)
