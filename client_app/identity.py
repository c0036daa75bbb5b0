"""A hospital's own keys, and the keys of other hospitals that it trusts.

An identity is two key pairs: one signs (Ed25519), for the other one others encrypt (X25519). Its
public half is one line of text, which hospitals give one another outside of any run:

    graz 3q2+7w...==

A hospital keeps the lines that it trusts in a file, the members. With `members='first-use'` in its
node-config it trusts the first key that the server announces for a name instead, and no other key
for that name afterwards.
"""

import base64
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from strategies.protocol.files import replacing
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import SettingsError

FIRST_USE = "first-use"


@dataclass(frozen=True)
class Member:
    """The public half of an identity."""

    signing: Ed25519PublicKey
    writing: X25519PublicKey

    @classmethod
    def parse(cls, text: str) -> "Member":
        """Read the text that `str` gives.

        Raises:
            ValueError: The text is not two public keys.
        """
        raw = base64.b64decode(text, validate=True)
        return cls(
            Ed25519PublicKey.from_public_bytes(raw[:32]),
            X25519PublicKey.from_public_bytes(raw[32:]),
        )

    def __str__(self) -> str:
        raw = self.signing.public_bytes_raw() + self.writing.public_bytes_raw()
        return base64.b64encode(raw).decode()

    def has_signed(self, text: bytes, signature: bytes) -> bool:
        """Whether a signature under a text is this member's."""
        try:
            self.signing.verify(signature, text)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class Identity:
    """A hospital's keys.

    Attributes:
        name: The hospital's name.
        signing: The private key that signs.
        reading: The private key that opens what others have encrypted for the hospital.
    """

    name: str
    signing: Ed25519PrivateKey
    reading: X25519PrivateKey

    @classmethod
    def of(cls, name: str, path: Path) -> "Identity":
        """The identity in a file, which is made if it does not exist.

        Raises:
            SettingsError: The file is not an identity file.
        """
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            keys = (Ed25519PrivateKey.generate(), X25519PrivateKey.generate())
            draft = path.with_name(f".{path.name}.{os.getpid()}.part")
            try:
                draft.touch(mode=0o600)
                draft.write_bytes(b"".join(key.private_bytes_raw() for key in keys))
                # Not `replacing`: a link fails if another process was faster, whose keys then hold.
                with suppress(FileExistsError):
                    os.link(draft, path)
            finally:
                draft.unlink(missing_ok=True)
        raw = path.read_bytes()
        if len(raw) != 64:
            raise SettingsError("Not an identity file: expected 64 bytes.")
        return cls(
            name,
            Ed25519PrivateKey.from_private_bytes(raw[:32]),
            X25519PrivateKey.from_private_bytes(raw[32:]),
        )

    @property
    def member(self) -> Member:
        """The public half."""
        return Member(self.signing.public_key(), self.reading.public_key())


def read_members(path: Path) -> dict[str, Member]:
    """The members in a file: a name and a key in each line. Lines that start with # are comments.

    Raises:
        SettingsError: The file cannot be read, or a line is not a name and a key.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise SettingsError(
            f"The hospital's file of members cannot be read ({type(error).__name__})."
        ) from error
    members = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            try:
                name, key = line.split()
                members[name] = Member.parse(key)
            except ValueError as error:
                raise SettingsError(
                    f"Line {number} of the hospital's file of members is not a name and a key."
                ) from error
    return members


def pin(path: Path, announced: Mapping[str, str]) -> dict[str, Member]:
    """Add announced members that are new to a file, and return all members in it.

    Raises:
        ParcelError: A name is announced with another key than its first, or with what is not a key.
    """
    members = read_members(path) if path.exists() else {}
    for name, key in announced.items():
        try:
            member = Member.parse(key)
        except ValueError as error:
            raise ParcelError(f"The server announced a key of '{name}' that is not one.") from error
        if str(members.setdefault(name, member)) != str(member):
            raise ParcelError(
                f"The key of '{name}' is not the one of its first use: ask that hospital. If the "
                "new key is right, remove the old line from this hospital's file of members."
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        draft.write_text("".join(f"{name} {key}\n" for name, key in members.items()), "utf-8")
    return members
