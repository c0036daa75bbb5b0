"""The members: the senders and recipients of a hospital's sealed parcels.

They are in a TOML file with a line for each hospital. `fedhandoff hospital identity` prints the
line of a hospital:

    graz = "3q2+7w...=="

A consortium writes the file by hand. With `members='first-use'` in its node-config a hospital
writes the file itself, once: when the server first announces the enrolled hospitals. Afterwards
only the hospital can change the file (`fedhandoff members`).
"""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from shlex import quote

import numpy as np

from client_app.authority.identity import Identity, Member
from client_app.authority.node_config import OwnError
from client_app.store import Store, own_folder
from strategies.protocol.files import (
    alone,
    expand,
    parse_toml,
    read_by_hand,
    reason_of,
    write_whole,
)
from strategies.protocol.names import check_name
from strategies.protocol.order import Order, hash_members
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import SettingsError

FIRST_USE = "first-use"
WHAT = "file of members"


def member_line(name: str, member: Member) -> str:
    """The line of a hospital in a file of members."""
    key = json.dumps(name) if "." in name else name  # TOML reads a dot as a table's
    return f'{key} = "{member}"\n'


def read_members(path: Path) -> dict[str, Member]:
    """The members in a file.

    Raises:
        OwnError: The file cannot be read, or a line is not a name and a key.
    """
    return _parse(_text(path), path)


def add_member(path: Path, name: str, key: str) -> None:
    """Add a hospital to a file that does not have it; a missing file is made.

    Raises:
        SettingsError: The file, the name or the key cannot be used, or the name has another key.
    """
    member = _member(name, key)
    with alone(own_folder(path.parent)):
        before = _text(path) if os.path.lexists(path) else ""
        members = _parse(before, path)
        if members.get(name) == member:
            return
        if name in members:
            raise SettingsError(
                f"'{name}' is a member: remove it before you add it with another key."
            )
        line_break = "\n" if before and not before.endswith("\n") else ""
        _write(path, before + line_break + member_line(name, member), members | {name: member})


def remove_member(path: Path, name: str) -> None:
    """Remove a hospital from a file.

    Raises:
        SettingsError: The file cannot be used, or does not name the hospital.
    """
    with alone(path.parent):
        before = _text(path)
        members = _parse(before, path)
        if members.pop(name, None) is None:
            raise SettingsError(f"'{name}' is not a member.")
        lines = before.splitlines(keepends=True)
        _write(path, "".join(line for line in lines if not _names(line, name)), members)


def members_of(
    trusted: str, pins: Path, own: Identity, keys: Mapping[str, str]
) -> dict[str, Member]:
    """The recipients of a hospital's sealed parcels in a run, the hospital included.

    The server announces `keys`, by hospital. The log names a hospital that is no member, or has
    another key. It is not among the recipients. `trusted` is the file of members, or "first-use";
    a hospital with "first-use" writes the file `pins`.

    Raises:
        SettingsError: The file cannot be used, or names a wrong key for the hospital itself.
        ParcelError: The server announces a wrong key for the hospital itself.
    """
    announced = _usable(keys)
    path = pins if trusted == FIRST_USE else expand(trusted)
    if trusted != FIRST_USE:
        members = read_members(path)
    else:
        if own.name in keys and keys[own.name] != str(own.member):
            raise ParcelError(f"The server announces a wrong key for this hospital, '{own.name}'.")
        # Once the server names the hospital itself, it names all that have enrolled with it.
        if own.name in announced and len(announced) > 1 and not os.path.lexists(pins):
            head = "# Trusted at first use. To change it: fedhandoff members --help\n"
            lines = (member_line(name, announced[name]) for name in sorted(announced))
            _write(pins, head + "".join(lines), announced)
        members = read_members(pins) if os.path.lexists(pins) else {}
    if members.setdefault(own.name, own.member) != own.member:
        raise SettingsError(f"The file of members has a wrong key for this hospital, '{own.name}'.")
    for name, member in announced.items():
        if members.get(name) != member:
            logging.getLogger("flwr").warning(
                "The server announces '%s' with a key that is not among this hospital's members: "
                "nothing is sealed for it, and its parcels are refused. Ask that hospital. If the "
                "key is right: fedhandoff members --members %s add %s %s",
                *(name, quote(str(path)), name, member),
            )
    return members


def announced_members(run: Store, order: Order) -> list[str]:
    """The members that an order announces. The list comes once in a run, and after each change.

    The folder of the run keeps the last list.

    Raises:
        ParcelError: The hospital does not have the list.
    """
    if order.members:
        text = "\n".join(order.members).encode()
        run.save("members", {"announced": np.frombuffer(text, np.uint8)})
        return order.members
    kept = run.load_small("members").get("announced") if order.members_hash else None
    members = [] if kept is None else kept.tobytes().decode().split("\n")
    if order.members_hash and hash_members(members) != order.members_hash:
        raise ParcelError("The order names a list of members that has not come to this hospital.")
    return members


def _usable(keys: Mapping[str, str]) -> dict[str, Member]:
    """The announced members with a usable key; the others are left out."""
    members = {}
    for name, key in keys.items():
        try:
            members[name] = _member(name, key)
        except SettingsError as error:
            logging.getLogger("flwr").warning("The server announces a member: %s", error)
    return members


def _member(name: str, key: object) -> Member:
    try:
        check_name(name)
        return Member.parse(key if isinstance(key, str) else "")
    except ValueError as error:
        raise SettingsError(
            f"{name[:80]!r} is not a name, or has no usable key: {error}"
        ) from error


def _text(path: Path) -> str:
    try:
        return read_by_hand(path)
    except (OSError, ValueError) as error:
        raise OwnError(WHAT, f"{path} cannot be read: {reason_of(error)}") from error


def _parse(text: str, path: Path) -> dict[str, Member]:
    """The members in the text of a file."""
    try:
        found = parse_toml(text)
    except ValueError as error:
        raise OwnError(WHAT, f'{path}: {error}. A line is name = "key".') from error
    members = {}
    for name, key in found.items():
        try:
            members[name] = _member(name, key)
        except SettingsError as error:
            lines = enumerate(text.splitlines(), 1)
            place = next((f", line {number}" for number, line in lines if _names(line, name)), "")
            hint = " A name with a dot in it has quotes, too." if isinstance(key, dict) else ""
            text = str(error).removesuffix(".")
            raise OwnError(WHAT, f"{path}{place}: {text}.{hint}") from error
    return members


def _names(line: str, name: str) -> bool:
    """Whether a line of a file names a hospital."""
    try:
        return name in parse_toml(line)
    except ValueError:
        return False


def _write(path: Path, text: str, members: Mapping[str, Member]) -> None:
    """Replace a file by a text, if the text has the expected members."""
    if _parse(text, path) != members:
        raise SettingsError("The hospital's file of members must be changed by hand.")
    own_folder(path.parent)
    write_whole(path, text, private=True)
