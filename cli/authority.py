"""Commands for a hospital's decisions and records: images, policy, members, ledger, dossier."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cli.command import (
    SITE,
    STORE_DIR,
    Keys,
    RunConfig,
    RunIdentity,
    Site,
    StoreDir,
    Trusted,
    command,
    private,
)
from cli.places import HERE, Hospital

app = typer.Typer()


class Kind(StrEnum):
    """The kinds of a hospital's images."""

    folder = "folder"
    manifest = "manifest"


@command(app, "preflight --hospital graz --run-config image-size=64")
def preflight(
    data_dir: Annotated[
        Path, typer.Option(help="The hospital's folder of images, or its manifest.")
    ],
    hospital: Hospital = HERE,
    site: Site = SITE,
    store_dir: StoreDir = STORE_DIR,
    dataset: Annotated[
        Kind | None, typer.Option(help="Without it: manifest if there is one.")
    ] = None,
    run_config: RunConfig = None,
    policy: Annotated[
        Path | None, typer.Option(help="The policy that judges these settings.")
    ] = None,
) -> bool:
    """Check a hospital's images before a run.

    The result is also a page in the hospital's store.
    """
    from client_app.commands import preflight

    private()
    return not preflight(site, store_dir, data_dir, dataset, run_config, policy)


@command(app, "policy ~/fedhandoff/graz/policy.toml --run-config \"strategy='cwc'\"")
def policy(
    file: Annotated[Path, typer.Argument(help="The policy; a new file gets the defaults.")],
    run_config: RunConfig = None,
) -> bool:
    """Write a policy with the defaults, or judge a run by a policy."""
    from client_app.commands import policy

    private()
    return not policy(file, run_config)


@command(app, 'members --hospital graz add linz = "KEY"')
def members(
    change: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[list | add NAME = KEY | remove NAME]", help="The task. Without it: list."
        ),
    ] = None,
    hospital: Hospital = HERE,
    site: Site = SITE,
    store_dir: StoreDir = STORE_DIR,
    members: Annotated[
        Path | None,
        typer.Option(help="The file of members. Without it: the one that first-use writes."),
    ] = None,
) -> None:
    """List the members that a hospital trusts, or change them."""
    from client_app.commands import members as change_members

    private()
    change_members(members or store_dir / site / "members", change or [])


@command(app, "ledger --hospital graz --html ledger.html")
def ledger(
    hospital: Hospital = HERE,
    site: Site = SITE,
    store_dir: StoreDir = STORE_DIR,
    html: Annotated[
        Path | None, typer.Option(help="Also write the ledger as this HTML page.")
    ] = None,
) -> bool:
    """Check and show a hospital's ledger: requests and answers."""
    from client_app.commands import ledger

    private()
    return not ledger(site, store_dir, html)


@command(app, "dossier --hospital graz")
def dossier(
    file: Annotated[Path | None, typer.Argument(help="Another hospital's dossier.json.")] = None,
    hospital: Hospital = HERE,
    site: Site = SITE,
    store_dir: StoreDir = STORE_DIR,
    run: RunIdentity = None,
    identity: Keys = None,
    members: Trusted = None,
    crate: Annotated[
        bool, typer.Option("--crate", help="Also write an RO-Crate beside a valid dossier.")
    ] = False,
) -> bool:
    """Check the dossier of synthetic images that left."""
    from client_app.afterwards.commands import dossier

    private()
    return not dossier(site, store_dir, file, run, identity, members, crate)
