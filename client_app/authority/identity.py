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
from strategies.protocol.files import read_bytes, reason_of, write_new
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
        try:
            raw, status = read_bytes(path), path.stat()
        except OSError as error:
            raise OwnError("identity file", f"{path} cannot be read: {reason_of(error)}") from error
        if status.st_mode & 0o077 or status.st_uid not in (os.geteuid(), 0):
            raise OwnError(
                "identity file",
                f"others can read or write {path}: give it to this user, with mode 0600. If others "
                "may have read the file, make a new one.",
            )
        if len(raw) != 64:
            raise OwnError("identity file", f"{path} has {len(raw)} bytes; 64 are expected.")
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
        OwnError: The file was damaged. Noise hides nothing if its secret can be guessed.
    """
    path = store.folder / "figures-secret"
    if not os.path.lexists(path):
        _make_once(path, secrets.token_bytes(32))
    try:
        secret = read_bytes(path)
    except OSError as error:
        raise OwnError("secret", f"{path} cannot be read: {reason_of(error)}") from error
    if len(secret) != 32:
        raise OwnError(
            "secret",
            f"{path} has {len(secret)} bytes; 32 are expected. Restore it from a backup: with a "
            "new secret a server could ask again and average the noise out.",
        )
    return secret


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
