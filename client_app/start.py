"""What a hospital's people have written, read when the hospital starts and before it connects."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from client_app.identity import Identity
from client_app.members import FIRST_USE, WHAT, member_line, read_members
from client_app.node_config import OwnError, check_node_config
from client_app.policy import Policy
from client_app.store import DEFAULT
from strategies.protocol.may_leave import OWN_SETTINGS
from strategies.protocol.settings import Settings, SettingsError, merged


def check_own(config: Mapping[str, Any]) -> None:
    """Refuse a hospital whose own files, or whose node-config, it could not use in a run.

    Raises:
        OwnError: Names the file and line, or the key, the value and what is allowed.
    """
    check_node_config(config)
    own = {key: config[key] for key in OWN_SETTINGS if key in config}
    try:
        Settings.parse(merged(own))
    except SettingsError as error:
        raise OwnError("node-config", str(error)) from error
    if policy := config.get("policy"):
        Policy.read(Path(policy).expanduser())
    members, site = config.get("members", ""), str(config["site"])
    if not members:  # it takes part in open runs only
        return
    store = Path(config.get("store-dir", DEFAULT)).expanduser() / site
    identity = Identity.of(site, Path(config.get("identity", store / "identity")).expanduser())
    if members == FIRST_USE:
        if (pins := store / "members").exists():
            read_members(pins)
        return
    path = Path(members).expanduser()
    if str(read_members(path).get(site)) != str(identity.member):
        line = member_line(site, identity.member).strip()
        raise OwnError(WHAT, f"{path} has no line with this hospital's key. It must have: {line}")
