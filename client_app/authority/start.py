"""The check of a hospital's own files, when the hospital starts and before it connects."""

import hashlib
import os
import sqlite3
import unicodedata
from collections import deque
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from client_app.authority.identity import Identity, secret_of
from client_app.authority.ledger import path_of, read
from client_app.authority.ledger_index import BrokenLedger, open_index
from client_app.authority.members import FIRST_USE, WHAT, member_line, read_members
from client_app.authority.node_config import NodeConfig, OwnError, combined_settings, policy_file
from client_app.authority.policy import DEFAULTS, Policy
from client_app.authority.privacy_account import read_account
from client_app.store import DEFAULT, Store
from strategies.protocol.archive import ArchiveError, check_unpacked
from strategies.protocol.files import expand, read_bytes, reason_of
from strategies.protocol.may_leave import OWN_FILES
from strategies.protocol.settings import PUBLIC, defaults

POLICY = "policy.toml"


def check_own(config: Mapping[str, Any]) -> list[str]:
    """Check a hospital's own files and its node-config; returns sentences on those in force.

    Raises:
        OwnError: A file or the node-config cannot be used.
    """
    own = NodeConfig.read(config)
    combined_settings(defaults(), config)
    for key in OWN_FILES:
        file = Path(str(config.get(key, "")).removeprefix(PUBLIC))
        if file.is_absolute() and not file.is_file():
            raise OwnError("node-config", f"'{key}' is {config[key]!r}, which is not a file.")
        try:
            if file.is_absolute():  # torch would unpack it, whatever its size
                check_unpacked(file)
        except (OSError, ArchiveError) as error:
            text = f"'{key}' is {config[key]!r}, which cannot be used: {reason_of(error)}"
            raise OwnError("node-config", text) from error
    if own.model:
        _check_model(own.model)
    rules = policy_file(config)
    Policy.read(rules)
    sentences = [
        f"Policy: {_file_and_hash(rules)}"
        if rules
        else f"Policy: none, so the defaults hold ({_file_and_hash(DEFAULTS)})."
    ]
    members, site = own.members, own.site
    store = expand(own.store_dir or DEFAULT) / site
    read_account(store)
    if os.path.lexists(store / "figures-secret"):
        secret_of(Store(store))
    sentences.append(_check_ledger(path_of(site, store.parent)))
    if not members:
        return [*sentences, "Members: none, so it takes part in open runs only."]
    identity = Identity.load(site, expand(own.identity or store / "identity"))
    if members == FIRST_USE:
        if not os.path.lexists(pins := store / "members"):
            return [*sentences, "Members: none yet; the members of the first run are trusted."]
        read_members(pins)
        return [*sentences, f"Members: {_file_and_hash(pins)}"]
    path = expand(members)
    trusted = read_members(path)
    if trusted.get(site) != identity.member:
        line = member_line(site, identity.member).strip()
        found = "no line with this hospital's key"
        if site in trusted:
            found = f"another key of this hospital: if {store} was lost, restore its backup first"
        raise OwnError(WHAT, f"{path} has {found}. It must have: {line}")
    return [*sentences, f"Members: {_file_and_hash(path)}"]


def find_policy(folder: Path) -> Path | None:
    """The policy in a hospital's folder; None if the folder has none.

    Raises:
        OwnError: A file with another name than `policy.toml` looks like a policy.
    """
    names = os.listdir(folder)
    if POLICY in names:
        return folder / POLICY
    for name in sorted(names):
        plain = unicodedata.normalize("NFKC", name).casefold()
        if "polic" in plain or get_close_matches(plain, [POLICY, "policy"], cutoff=0.75):
            raise OwnError(
                "policy",
                f"{str(folder / name)!a} has a similar name: rename it to {POLICY}, or, to use the "
                "defaults, move it to another folder.",
            )
    return None


def _file_and_hash(path: Path) -> str:
    return f"{path}, SHA-256 {hashlib.sha256(read_bytes(path)).hexdigest()}"


def _check_ledger(path: Path) -> str:
    """The end of a hospital's ledger, which must be intact, in a sentence."""
    if not [*path.parent.glob(f"{path.stem}.*")]:
        return "Ledger: none yet."
    try:
        with open_index(path) as index:
            gone = index.find_missing("")
        newest = deque(read(path), maxlen=1)
    except (BrokenLedger, sqlite3.Error) as error:
        cure = (
            f"Without a backup move {path.stem}.* to another folder, and keep them there: a new "
            "ledger begins."
        )
        raise OwnError("ledger", f"{path}: {error} {cure}") from error
    if gone:
        raise OwnError("files", gone)
    number, digest = (newest[0].number, newest[0].hash) if newest else (0, "-")
    return f"Ledger: {path}, valid lines: {number}, SHA-256 of the last one: {digest}."


def _check_model(name: str) -> None:
    from learning.errors import ModelError
    from learning.models import Architecture  # imports torch, which takes seconds

    try:
        Architecture(name, 3, 224, 224, 2)
    except ModelError as error:
        raise OwnError("node-config", f"'model' is {name!r}. {error}") from error
