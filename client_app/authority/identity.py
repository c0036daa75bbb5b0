"""A hospital's own keys.

An identity has two key pairs. The hospital signs with one (Ed25519). Other hospitals encrypt for
the other one (X25519). Hospitals exchange the public halves outside of runs (members.py).
"""

import base64
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from client_app.authority.node_config import OwnError
from client_app.store import Store, own_folder
from strategies.protocol.files import FileError, read_secret, reason_of, write_new
from strategies.protocol.keys import read_key


@dataclass(frozen=True)
class Member:
    """The public keys of an identity."""

    signing: Ed25519PublicKey
    writing: X25519PublicKey

    @classmethod
    @lru_cache(maxsize=1024)  # each message of a sealed run names all members
    def parse(cls, text: str) -> "Member":
        """Read a member from the text that `str` returns.

        Raises:
            ValueError: The text is not two public keys, or a key is insecure.
        """
        return cls(*read_key(text))

    def __str__(self) -> str:
        raw = self.signing.public_bytes_raw() + self.writing.public_bytes_raw()
        return base64.b64encode(raw).decode()

    def has_signed(self, text: bytes, signature: bytes) -> bool:
        """Whether this member has signed a text."""
        try:
            self.signing.verify(signature, text)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class Identity:
    """A hospital's keys."""

    name: str  # the hospital's name
    signing: Ed25519PrivateKey  # the private key that signs
    reading: X25519PrivateKey  # the private key that decrypts messages for the hospital

    @classmethod
    def load(cls, name: str, path: Path) -> "Identity":
        """The identity in a file; a missing file is made.

        Raises:
            OwnError: The file is not an identity file, or others may read it.
        """
        if not os.path.lexists(path):
            keys = (Ed25519PrivateKey.generate(), X25519PrivateKey.generate())
            _make_once(path, b"".join(key.private_bytes_raw() for key in keys))
        raw = _read("identity file", path, 64, ", or move it away, and give others the new keys.")
        return cls(
            name,
            Ed25519PrivateKey.from_private_bytes(raw[:32]),
            X25519PrivateKey.from_private_bytes(raw[32:]),
        )

    @property
    def member(self) -> Member:
        """The public keys."""
        return Member(self.signing.public_key(), self.reading.public_key())


def secret_of(store: Store) -> bytes:
    """The hospital's secret, which seeds the noise of its figures. It never leaves the store.

    Raises:
        OwnError: The file was damaged, or others may read it. Noise hides nothing if its secret is
            known.
    """
    path = store.folder / "figures-secret"
    if not os.path.lexists(path):
        _make_once(path, secrets.token_bytes(32))
    lost = ": with a new secret a server could ask again and average the noise out."
    return _read("secret", path, 32, lost)


def _read(what: str, path: Path, size: int, lost: str) -> bytes:
    """The `size` bytes of a secret file; `lost` is what the hospital does without a backup."""
    try:
        content = read_secret(path)
    except FileError as error:
        raise OwnError(what, str(error)) from error
    except OSError as error:
        raise OwnError(what, f"{path} cannot be read: {reason_of(error)}") from error
    if len(content) != size:
        text = f"{path} has {len(content)} bytes; {size} are expected. Restore it from a backup"
        raise OwnError(what, text + lost)
    return content


def _make_once(path: Path, content: bytes) -> None:
    """Make a file for this user alone; of two processes one makes it, and its content holds."""
    own_folder(path.parent)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        write_new(draft, content)
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
