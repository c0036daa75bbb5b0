"""Sealed parcels: the server relays them and cannot read them.

Each array record of a parcel becomes one array of bytes, `sealed`:

    length of the head, 4 bytes | head, JSON | signature, 64 bytes | ciphertext

Each record has its own key, which encrypts the arrays (ChaCha20-Poly1305). That key is wrapped for
each member: X25519 with the record's own key pair, HKDF-SHA256, and again ChaCha20-Poly1305. The
head names the sender, the run, the record, the lineage and the label (round, hop, ..., as a hash),
and holds the hash of the ciphertext. The sender signs the head (Ed25519). So a recipient refuses a
record that was changed on its way, has another sender, or belongs elsewhere.

The package `cryptography` does the cryptography; only the content of the head is our own.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from io import BytesIO

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.lib import format as npy

from client_app.authority.identity import Identity, Member
from client_app.authority.members import members_of
from client_app.hospital import Hospital
from strategies.protocol import archive
from strategies.protocol.names import check_name
from strategies.protocol.order import Order
from strategies.protocol.parcel import Manifest, check_parcel, check_sealed, is_sealed, pack
from strategies.protocol.records import ParcelError, UselessError, array_records, to_record
from strategies.protocol.settings import SettingsError
from strategies.protocol.shapes import from_json

SIGNATURE = 64  # bytes
NONCE = bytes(12)  # always the same: each key encrypts once
LONGEST_HEAD = 2**20  # bytes; enough for some 5,000 members


@dataclass(frozen=True)
class Head:
    """The signed head of a sealed record."""

    run: str  # the identity of the run
    record: str  # the record's name in the parcel
    sender: str  # the hospital that sealed the record
    lineage: str  # the lineage of the parcel
    label: str  # the hash of the parcel's label
    hash: str  # the hash of the ciphertext
    ephemeral: str  # the record's own public key
    keys: dict[str, str]  # the record's key, wrapped for each member, by name


@dataclass(frozen=True)
class Seal:
    """A hospital's keys for the parcels of one run."""

    identity: Identity  # the hospital's own keys
    members: Mapping[str, Member]  # the senders and recipients of sealed parcels, by name
    run: str  # the identity of the run

    def close(self, parcel: RecordDict) -> RecordDict:
        """Seal all array records of a parcel for all members."""
        manifest = Manifest.read(parcel)
        records = {
            name: self._close(record, self._place(name, self.identity.name, manifest))
            for name, record in array_records(parcel).items()
        }
        return pack(records, manifest)

    def open(self, parcel: RecordDict, manifest: Manifest) -> RecordDict:
        """Open a sealed parcel.

        Raises:
            ParcelError: A record is not sealed, not for this hospital, or not for this label.
            UselessError: Its sender has sealed something else than arrays.
        """
        sender = manifest.visited[-1] if manifest.visited else manifest.lineage
        records = {
            name: self._open(record, self._place(name, sender, manifest))
            for name, record in array_records(parcel).items()
        }
        return RecordDict({**records, "manifest": parcel["manifest"]})

    def open_buffer(self, record: ArrayRecord, hospital: str) -> ArrayRecord:
        """Open a hospital's sealed buffer of this run.

        Raises:
            ParcelError: The record is not this hospital's buffer.
        """
        place = {"run": self.run, "record": "buffer", "sender": hospital, "lineage": hospital}
        return self._open(record, place)

    def _place(self, record: str, sender: str, manifest: Manifest) -> dict[str, str]:
        """The place of a record of a parcel, as fields of its head."""
        label = json.dumps(dict(to_record(replace(manifest, hashes=[]))), sort_keys=True)
        digest = hashlib.sha256(label.encode()).hexdigest()
        where = {"run": self.run, "record": record, "sender": sender}
        return where | {"lineage": manifest.lineage, "label": digest}

    def _close(self, record: ArrayRecord, place: Mapping[str, str]) -> ArrayRecord:
        key, ephemeral = ChaCha20Poly1305.generate_key(), X25519PrivateKey.generate()
        archive.write(file := BytesIO(), record)
        ciphertext = ChaCha20Poly1305(key).encrypt(NONCE, file.getvalue(), None)
        public = ephemeral.public_key()
        keys = {
            name: _wrapping_cipher(ephemeral.exchange(member.writing), public, member.writing)
            .encrypt(NONCE, key, None)
            .hex()
            for name, member in self.members.items()
        }
        digest = hashlib.sha256(ciphertext).hexdigest()
        drawn = public.public_bytes_raw().hex()
        head = Head(**place, hash=digest, ephemeral=drawn, keys=keys)
        text = json.dumps(asdict(head)).encode()
        signature = self.identity.signing.sign(text)
        sealed = len(text).to_bytes(4, "big") + text + signature + ciphertext
        return ArrayRecord({"sealed": Array(np.frombuffer(sealed, np.uint8))})

    def _open(self, record: ArrayRecord, place: Mapping[str, str]) -> ArrayRecord:
        """The arrays of a sealed record, if it belongs in this place; else ParcelError."""
        sealed = _bytes(record)
        length = int.from_bytes(sealed[:4], "big")
        if length > LONGEST_HEAD:
            raise ParcelError("A sealed record is damaged.")
        end = 4 + length
        text, signature = sealed[4:end], sealed[end : end + SIGNATURE]
        ciphertext = sealed[end + SIGNATURE :]
        try:
            head = from_json(text.decode(), Head)
            check_name(head.sender)
        except ValueError as error:
            raise ParcelError("A sealed record is damaged.") from error
        sender, own = head.sender, self.identity.name
        if sender not in self.members:
            raise ParcelError(f"A record was sealed by '{sender}', who is not a member here.")
        if not self.members[sender].has_signed(text, signature):
            raise ParcelError(f"A record names '{sender}' as its sender and is not signed by it.")
        if hashlib.sha256(ciphertext).hexdigest() != head.hash:
            raise ParcelError(f"A record of '{sender}' was changed after it was sealed.")
        for name, value in place.items():
            if getattr(head, name) != value:
                raise ParcelError(
                    f"A record of '{sender}' was sealed for another {name}: it is refused."
                )
        if own not in head.keys:
            raise ParcelError(
                f"A record of '{sender}' is not sealed for '{own}': is it among the members there?"
            )
        try:
            public = X25519PublicKey.from_public_bytes(bytes.fromhex(head.ephemeral))
            shared = self.identity.reading.exchange(public)
            wrapping = _wrapping_cipher(shared, public, self.identity.reading.public_key())
            key = wrapping.decrypt(NONCE, bytes.fromhex(head.keys[own]), None)
            opened = ChaCha20Poly1305(key).decrypt(NONCE, ciphertext, None)
        except (InvalidTag, ValueError) as error:
            raise ParcelError(
                f"A record of '{sender}' cannot be opened: does '{sender}' have this hospital's "
                "present key?"
            ) from error
        try:
            return ArrayRecord(archive.read(BytesIO(opened))[0])
        except archive.ArchiveError as error:
            raise UselessError(f"A record of '{sender}' holds no arrays.") from error


def seal_for(hospital: Hospital, order: Order) -> Seal | None:
    """A hospital's keys for the parcels of a run; None if parcels are not sealed.

    Raises:
        SettingsError: Only one of server and hospital wants sealed parcels, or a file of keys
            cannot be used.
        ParcelError: The announced keys are no list of keys.
    """
    if bool(hospital.members) != order.sealed:
        raise SettingsError(
            "This hospital hands on sealed parcels only: set 'sealed' to true."
            if hospital.members
            else "Parcels are sealed in this run, and the hospital names no members: set "
            "'members' in its node-config, or 'sealed' to false if the server may read the models."
        )
    if not hospital.members:
        return None
    identity = Identity.load(hospital.name, hospital.identity)
    pins = hospital.store.folder / "members"
    members = members_of(hospital.members, pins, identity, order.keys)
    return Seal(identity, members, order.run)


def open_parcel(parcel: RecordDict, seal: Seal | None) -> tuple[RecordDict, Manifest]:
    """Check a parcel and, with a seal, open it."""
    manifest = check_parcel(parcel)
    check_sealed(parcel, seal is not None)
    return (seal.open(parcel, manifest) if seal else parcel), manifest


def _bytes(record: ArrayRecord) -> bytes:
    """The one array of bytes in a sealed record, if it is just as NumPy writes it."""
    if not is_sealed(record):
        raise ParcelError("A record is not sealed, and this hospital opens sealed records only.")
    array = record["sealed"]
    length = 10 + int.from_bytes(array.data[8:10], "little")  # of the header
    content = array.data[length:]
    plain = {"descr": "|u1", "fortran_order": False, "shape": (len(content),)}
    npy.write_array_header_1_0(header := BytesIO(), plain)
    form = array.data[:length], tuple(array.shape), array.stype
    if form != (header.getvalue(), (len(content),), "numpy.ndarray"):
        raise ParcelError("A sealed record is damaged: it is not one array of bytes.")
    return content


def _wrapping_cipher(
    shared: bytes, ephemeral: X25519PublicKey, recipient: X25519PublicKey
) -> ChaCha20Poly1305:
    """The cipher that wraps the key of a record for one recipient."""
    salt = ephemeral.public_bytes_raw() + recipient.public_bytes_raw()
    derive = HKDF(SHA256(), length=32, salt=salt, info=b"fedhandoff parcel key 1")
    return ChaCha20Poly1305(derive.derive(shared))
