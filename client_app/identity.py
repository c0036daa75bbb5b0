"""A hospital's own keys.

An identity is two key pairs: one signs (Ed25519), for the other one others encrypt (X25519). Its
public half is one line of text, which hospitals give one another outside of any run:

    graz = "3q2+7w...=="
"""

import base64
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from client_app.store import own_draft
from strategies.protocol.settings import SettingsError

# The curve of Ed25519: -x² + y² = 1 + D x² y², modulo P (RFC 8032, section 5.1).
P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P


@dataclass(frozen=True)
class Member:
    """The public half of an identity."""

    signing: Ed25519PublicKey
    writing: X25519PublicKey

    @classmethod
    def parse(cls, text: str) -> "Member":
        """Read the text that `str` gives.

        Raises:
            ValueError: The text is not two public keys, or one of them keeps no secret.
        """
        raw = base64.b64decode(text, validate=True)
        member = cls(
            Ed25519PublicKey.from_public_bytes(raw[:32]),
            X25519PublicKey.from_public_bytes(raw[32:]),
        )
        _check_point(raw[:32])
        X25519PrivateKey.generate().exchange(member.writing)  # a ValueError if of low order
        return member

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
            SettingsError: The file is not an identity file, or others may read it.
        """
        if not path.exists():
            keys = (Ed25519PrivateKey.generate(), X25519PrivateKey.generate())
            with own_draft(path) as draft:
                draft.write_bytes(b"".join(key.private_bytes_raw() for key in keys))
                # A link fails if another process was faster, whose keys then hold.
                with suppress(FileExistsError):
                    os.link(draft, path)
        try:
            raw, status = path.read_bytes(), path.stat()
        except OSError as error:
            raise SettingsError(
                f"The hospital's identity file cannot be read ({type(error).__name__})."
            ) from error
        if status.st_mode & 0o077 or status.st_uid not in (os.geteuid(), 0):
            raise SettingsError(
                "Others can read or write the hospital's identity file: make it its user's own, "
                "with mode 0600. If others may have read it, make a new one."
            )
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


def _check_point(raw: bytes) -> None:
    """Refuse 32 bytes that are not a point of Ed25519's curve, or one of small order.

    Under a point of small order anybody can sign. Its order divides 8: y is 0, 1 or -1, or doubling
    it gives y = 0, which with the curve's equation is D y⁴ + 2 y² - 1 = 0.

    Raises:
        ValueError: They are no such point.
    """
    y = int.from_bytes(raw, "little") % 2**255  # without the sign of x
    small = y * (y**2 - 1) * (D * y**4 + 2 * y**2 - 1) % P == 0
    square = pow((y**2 - 1) * (D * y**2 + 1), (P - 1) // 2, P) == 1  # x² of this y, times a square
    if y >= P or small or not square:
        raise ValueError("not a key that signs")
