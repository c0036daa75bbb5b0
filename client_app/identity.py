"""Who a hospital is to the others: its keys, and whose keys it trusts.

An identity is two key pairs, one to sign with (Ed25519) and one to be written to (X25519). Its
public half is one line of text that hospitals tell one another, outside of any run:

    graz 3q2+7w...==

Hospitals keep the lines that they trust in a file, the members. Where the node-config says
`members='first-use'`, a hospital instead trusts the key that the server first hands it for a name,
and no other for that name afterwards.
"""

import base64
import binascii
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
        """Read what `str` gives.

        Raises:
            ValueError: It is something else.
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
        """Whether a signature of a text is this member's."""
        try:
            self.signing.verify(signature, text)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class Identity:
    """A hospital's keys.

    Attributes:
        name: Of the hospital.
        signing: What it signs with.
        reading: What it opens with what was written to it.
    """

    name: str
    signing: Ed25519PrivateKey
    reading: X25519PrivateKey

    @classmethod
    def of(cls, name: str, path: Path) -> "Identity":
        """The identity in a file; a new one if there is no file.

        Raises:
            SettingsError: The file is something else.
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
            raise SettingsError("The hospital's file of its identity is none.")
        return cls(
            name,
            Ed25519PrivateKey.from_private_bytes(raw[:32]),
            X25519PrivateKey.from_private_bytes(raw[32:]),
        )

    @property
    def member(self) -> Member:
        """Its public half."""
        return Member(self.signing.public_key(), self.reading.public_key())


def read_members(path: Path) -> dict[str, Member]:
    """The members in a file: a name and a key in each line; lines that start with # say nothing.

    Raises:
        SettingsError: There is no file, or a line is something else.
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
            except (ValueError, binascii.Error) as error:
                raise SettingsError(
                    f"Line {number} of the hospital's file of members is no name and key."
                ) from error
    return members


def pin(path: Path, announced: Mapping[str, str]) -> dict[str, Member]:
    """The members in a file, after those that it does not name yet were written into it.

    Raises:
        ParcelError: A name is announced with another key than it had first, or with none.
    """
    members = read_members(path) if path.exists() else {}
    for name, key in announced.items():
        try:
            member = Member.parse(key)
        except (ValueError, binascii.Error) as error:
            raise ParcelError(f"The server gives a key of '{name}' that is none.") from error
        if str(members.setdefault(name, member)) != str(member):
            raise ParcelError(
                f"The key of '{name}' is another one than at its first use: ask that hospital, and "
                "remove its line from this hospital's file of members if the new one is right."
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        draft.write_text("".join(f"{name} {key}\n" for name, key in members.items()), "utf-8")
    return members
