"""Commands of a hospital that takes part in real runs (docs/deployment.md)."""

from pathlib import Path
from typing import Annotated

import typer

from cli.command import SITE, STORE_DIR, Site, StoreDir, command, private

app = typer.Typer(help="A hospital: make its keys, approve code, start its SuperNode.")
Folder = Annotated[Path, typer.Argument(help="The hospital's folder.")]


@command(app, "hospital key ~/fedhandoff/graz graz")
def key(folder: Folder, name: Annotated[str, typer.Argument(help="The hospital's name.")]) -> None:
    """Make the key with which the server knows the hospital."""
    from deploy.credentials import make_key

    make_key(folder, name)
    path = folder / name
    print(
        f"{path}.pub  goes to the server's operator, who registers it\n"
        f"{path}.key  stays here; keep it secret"
    )


@command(app, "hospital identity --site graz --store-dir ~/fedhandoff/graz/store")
def identity(site: Site = SITE, store_dir: StoreDir = STORE_DIR) -> None:
    """Print the hospital's line for the file of members; make its keys if it has none."""
    from client_app.commands import identity

    private()
    identity(site, store_dir)


@command(app, "hospital approve ~/fedhandoff/graz")
def approve(
    folder: Folder,
    checkout: Annotated[
        Path | None,
        typer.Argument(help="The clone whose code is approved. Without it: this one."),
    ] = None,
) -> None:
    """Approve the code to run."""
    from deploy.approved import approve
    from deploy.server import APP

    code = approve(folder, checkout or APP)
    print(f"{code} is approved: compare this hash with the other hospitals'.")


@command(
    app,
    "hospital start ~/fedhandoff/graz --server fl.example.org:9092 --name graz "
    "--data-dir ~/skin --members ~/fedhandoff/graz/members",
)
def start(
    folder: Folder,
    server: Annotated[str, typer.Option(help="The server's host:port.")],
    name: Annotated[str, typer.Option(help="The hospital's name.")],
    data_dir: Annotated[Path, typer.Option(help="The hospital's images (docs/data.md).")],
    members: Annotated[
        str,
        typer.Option(
            help="File with the keys of all hospitals; or first-use; or none (open runs only)."
        ),
    ],
    store_dir: StoreDir = STORE_DIR,
    policy: Annotated[
        Path | None,
        typer.Option(
            help="The hospital's policy. Without it: policy.toml in its folder, if there is one."
        ),
    ] = None,
    any_code: Annotated[
        bool,
        typer.Option(
            "--any-code",
            help="Run code that the hospital has not approved: anyone who can start a run at the "
            "server can then read all files of this user, also images and keys.",
        ),
    ] = False,
    runtime_port: Annotated[
        int,
        typer.Option(
            help="Local port for the hospital's own processes, for a firewall rule. Without it: "
            "any.",
            show_default=False,
        ),
    ] = 0,
    node_config: Annotated[str, typer.Option(help="More keys, such as \"model='resnet18'\".")] = "",
) -> None:
    """Start the hospital's SuperNode, and keep it running."""
    from deploy.hospital import Hospital, start_supernode

    start_supernode(
        Hospital(
            folder=folder,
            server=server,
            name=name,
            data_dir=data_dir,
            store_dir=store_dir,
            members=members,
            policy=policy,
            node_config=node_config,
            any_code=any_code,
            runtime_port=runtime_port,
        )
    )


@command(app, "hospital status ~/fedhandoff/graz")
def status(folder: Folder) -> bool:
    """Show whether the SuperNode runs, its code, certificates and free disk."""
    from deploy.status import status

    return not status(folder)
