"""Commands for a hospital's decisions and records: images, policy, members, ledger, dossier."""

import os
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    output_option,
    private,
)
from cli.places import HERE, Hospital
from strategies.protocol.files import write_whole

if TYPE_CHECKING:
    from client_app.authority.policy import Policy
    from strategies.protocol.settings import Settings

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
    from client_app.authority.policy import Policy
    from client_app.datasets.own import own_data
    from client_app.datasets.preflight.card import examine
    from client_app.datasets.preflight.page import text, write_pages
    from strategies.registry import changed_settings

    private()
    path = str(data_dir.absolute())
    source = f"{dataset}:{path}" if dataset else own_data(path)
    settings = replace(changed_settings(run_config), dataset=source)
    card, survey = examine(site, settings, store_dir, policy)
    print(f"Images: {path}")
    print(text(card))
    print(write_pages(store_dir / site / "preflight", card, survey))
    allowed = _allows(Policy.read(policy), settings) if policy else True
    return card.verdict == "red" or not (allowed or run_config is None)


@command(app, "policy ~/fedhandoff/graz/policy.toml --run-config \"strategy='cwc'\"")
def policy(
    file: Annotated[Path, typer.Argument(help="The policy; a new file gets the defaults.")],
    run_config: RunConfig = None,
) -> bool:
    """Write a policy with the defaults, or judge a run by a policy."""
    from client_app.authority.policy import Policy, write_policy
    from strategies.registry import changed_settings

    private()
    if not os.path.lexists(file):
        write_policy(file)
        print(f"{file} has the defaults now: read it, and change rules as needed.")
    rules = Policy.read(file)
    if run_config is None:
        return False
    return not _allows(rules, changed_settings(run_config))


def _allows(rules: "Policy", settings: "Settings") -> bool:
    """Whether a policy allows a run; prints its rulings and remarks."""
    from client_app.authority.policy import explain

    rulings = list(rules.judge(settings))
    print(explain(rulings))
    for sentence in rules.remarks(settings):
        print(sentence)
    return all(ruling.holds for ruling in rulings)


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
        typer.Option(help="The file of members. Without it: hospital.toml's, or first-use's."),
    ] = None,
) -> None:
    """List the members that a hospital trusts, or change them."""
    from client_app.authority.members import add_member, member_line, read_members, remove_member

    private()
    path = members or store_dir / site / "members"
    if not (members or path.exists() or "add" in (change or [])):
        raise ValueError(
            f"{path} is not there yet. A hospital with members='first-use' writes it in its first "
            "run; --members names a consortium's own file."
        )
    match change or []:
        case [] | ["list"]:
            pass
        case ["add", name, key] | ["add", name, "=", key]:  # the line that `join` prints
            add_member(path, name, key)
        case ["remove", name]:
            remove_member(path, name)
        case _:
            raise ValueError("Say list, add NAME KEY, or remove NAME.")
    print("".join(member_line(*each) for each in read_members(path).items()), end="")


@command(app, "ledger --hospital graz --html ledger.html")
def ledger(
    hospital: Hospital = HERE,
    site: Site = SITE,
    store_dir: StoreDir = STORE_DIR,
    html: Annotated[
        Path | None, output_option("Also write the ledger as this page.", ".html")
    ] = None,
) -> bool:
    """Check and show a hospital's ledger: requests and answers."""
    from client_app.authority import ledger_view
    from client_app.authority.ledger import path_of, read_to_break

    private()
    path = path_of(site, store_dir)
    try:
        lines, broken = read_to_break(path)
    except FileNotFoundError as error:
        raise ValueError(
            f"There is no ledger at {path}. Name a hospital with --hospital. A simulation has no "
            "ledger, nor has a hospital before its first run."
        ) from error
    newest = lines[-1].hash if lines else "-"
    verdict = f"{broken or 'The chain is intact.'} Valid lines: {len(lines)}. Hash of the last: "
    verdict += f"{newest}. Keep both on another machine: they show later if lines are missing."
    print(ledger_view.text(lines, verdict))
    if html:
        write_whole(html, ledger_view.page(site, lines, verdict, not broken))
    return bool(broken)


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
    from client_app.authority.identity import Identity
    from client_app.authority.ledger import path_of, released_dossiers
    from client_app.authority.members import read_members
    from client_app.release.dossier.crate import write_dossier_crate
    from client_app.release.dossier.files import check, newest_dossier
    from client_app.run import dossiers, run_folder
    from client_app.store import Store

    private()
    store = store_dir / site
    if file and run:
        raise ValueError(f"{file} is one dossier: leave out --run, which chooses among the own.")
    for given in (identity, members):
        if given and not given.is_file():
            raise ValueError(f"There is no file '{given}': give another one, or none.")
    own, trusted = identity or store / "identity", members or store / "members"
    keys = read_members(trusted) if trusted.is_file() else {}
    if own.is_file():  # `Identity.load` would make new keys
        keys[site] = Identity.load(site, own).member
    path = file or newest_dossier(store / "dossiers", run)
    checked = check(path, keys)
    print(path)
    print(f"Dossier of {checked.hospital!a}, run {checked.run!a}, SHA-256 {checked.hash}.")
    signed = "Signed by the known" if checked.signed else "NOT signed by a known"
    print(f"{signed} key of {checked.hospital!a}.")
    if not checked.page:
        print("dossier.html is missing, or does NOT match dossier.json.")
    if file and checked.hospital != site:
        named = dossiers(run_folder(Store(store), checked.run)).get(checked.hospital)
        where = "the received buffer"
    else:
        released = released_dossiers(
            path_of(site, store_dir), checked.run if file else path.parent.name
        )
        named = released[-1] if released else None
        if file and checked.hash in released:  # an earlier one of the run
            named = checked.hash
        where = "the ledger"
    match named:
        case None:
            print(f"For this run, {where} names no dossier.")
        case checked.hash:
            print(f"This is the dossier that {where} names.")
        case _:
            print(f"NOT the dossier that {where} names: its SHA-256 is {named}.")
    holds = checked.holds and named == checked.hash
    print("The dossier is valid." if holds else "The dossier is NOT valid.")
    if crate and holds:
        print(write_dossier_crate(path, checked))
    return not holds
