"""What a hospital's people have written, read when the hospital starts and before it connects."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from client_app.identity import Identity, secret_of
from client_app.members import FIRST_USE, WHAT, member_line, read_members
from client_app.node_config import OwnError, check_node_config, with_own
from client_app.policy import Policy
from client_app.privacy_account import Account
from client_app.store import DEFAULT, Store
from strategies.protocol.may_leave import OWN_FILES
from strategies.protocol.settings import PUBLIC, defaults


def check_own(config: Mapping[str, Any]) -> None:
    """Refuse a hospital whose own files, or whose node-config, it could not use in a run.

    Raises:
        OwnError: Names the file and line, or the key, the value and what is allowed.
    """
    check_node_config(config)
    with_own(defaults(), config)
    for key in OWN_FILES:
        file = Path(str(config.get(key, "")).removeprefix(PUBLIC))
        if file.is_absolute() and not file.is_file():
            raise OwnError("node-config", f"'{key}' is {config[key]!r}, which is no file.")
    if "model" in config:
        _check_model(config["model"])
    if policy := config.get("policy"):
        Policy.read(Path(policy).expanduser())
    members, site = config.get("members", ""), str(config["site"])
    store = Path(config.get("store-dir", DEFAULT)).expanduser() / site
    Account(store / "privacy.jsonl").read()
    if (store / "figures-secret").exists():
        secret_of(Store(store))
    if not members:  # it takes part in open runs only
        return
    identity = Identity.of(site, Path(config.get("identity", store / "identity")).expanduser())
    if members == FIRST_USE:
        if (pins := store / "members").exists():
            read_members(pins)
        return
    path = Path(members).expanduser()
    if str(read_members(path).get(site)) != str(identity.member):
        line = member_line(site, identity.member).strip()
        raise OwnError(WHAT, f"{path} has no line with this hospital's key. It must have: {line}")


def _check_model(name: str) -> None:
    from learning.errors import ModelError
    from learning.models import Architecture  # imports torch, which takes seconds

    try:
        Architecture(name, 3, 224, 224, 2)
    except ModelError as error:
        raise OwnError("node-config", f"'model' is {name!r}. {error}") from error
