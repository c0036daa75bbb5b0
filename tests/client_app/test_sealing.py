"""Sealed parcels: what only members can open, and what everybody must refuse."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st

from client_app.authority import sealing
from client_app.authority.identity import Identity, Member
from client_app.authority.node_config import OwnError
from client_app.authority.sealing import NONCE, SIGNATURE, Seal
from strategies.protocol.parcel import Manifest, check_parcel, is_sealed, pack
from strategies.protocol.records import ParcelError, UselessError

LABEL = Manifest("graz", "mlp", ["a", "b"], round=2, hop=1, visited=["graz", "linz"])
WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    return {name: Identity.load(name, folder / name) for name in ("graz", "linz", "wien")}


@pytest.fixture(scope="module")
def seals(identities):
    """Of three members."""
    members = {name: identity.member for name, identity in identities.items()}
    return {name: Seal(identity, members, "run-1") for name, identity in identities.items()}


def parcel(label=LABEL, **records):
    records = records or {"model": {"weight": WEIGHTS, "steps": np.array(7)}}
    arrays = {
        name: ArrayRecord({key: Array(value) for key, value in each.items()})
        for name, each in records.items()
    }
    return pack(arrays, label)


def altered(sealed, change):
    """A sealed parcel whose bytes were changed, with a label that knows nothing of it."""
    content = bytearray(sealed.array_records["model"]["sealed"].numpy().tobytes())
    changed = np.frombuffer(bytes(change(content)), np.uint8)
    return pack({"model": ArrayRecord({"sealed": Array(changed)})}, check_parcel(sealed))


def test_every_member_reads_what_a_member_sealed(seals):
    memory = {"weight": np.ones(3)}
    sealed = seals["linz"].close(parcel(model={"weight": WEIGHTS}, memory=memory))
    for seal in seals.values():
        opened = seal.open(sealed, check_parcel(sealed))
        assert set(opened.array_records) == {"model", "memory"}
        assert np.array_equal(opened.array_records["model"]["weight"].numpy(), WEIGHTS)
        assert np.array_equal(opened.array_records["memory"]["weight"].numpy(), memory["weight"])


def test_arrays_keep_names_shapes_and_types(seals):
    before = parcel()
    sealed = seals["linz"].close(before)
    after = seals["graz"].open(sealed, check_parcel(sealed))
    for name, array in before.array_records["model"].items():
        opened = after.array_records["model"][name]
        assert (opened.dtype, opened.shape, opened.data) == (array.dtype, array.shape, array.data)


def test_the_server_sees_the_label_and_no_array(seals):
    sealed = seals["linz"].close(parcel())
    assert is_sealed(sealed.array_records["model"])
    assert check_parcel(sealed).visited == ["graz", "linz"]
    content = sealed.array_records["model"]["sealed"].data
    assert WEIGHTS.tobytes()[:12] not in content
    assert b"weight" not in content


def test_nothing_is_sealed_the_same_way_twice(seals):
    one, two = (seals["linz"].close(parcel()) for _ in range(2))
    assert check_parcel(one).hash_of != check_parcel(two).hash_of


def test_any_byte_that_is_changed_is_noticed(seals):
    sealed = seals["linz"].close(parcel())
    length = len(sealed.array_records["model"]["sealed"].numpy())

    @given(st.integers(0, length - 1), st.integers(1, 255))
    def changed(place, by):
        def change(content):
            content[place] ^= by
            return content

        with pytest.raises(ParcelError):
            seals["graz"].open(altered(sealed, change), LABEL)

    changed()


@given(st.binary(max_size=400))
def test_garbage_is_refused(seals, content):
    sealed = seals["linz"].close(parcel())
    with pytest.raises(ParcelError):
        seals["graz"].open(altered(sealed, lambda _: content), LABEL)


def test_something_else_than_arrays_is_a_failure_of_the_member_that_sealed_it(seals, monkeypatch):
    no_archive = "client_app.authority.sealing.archive.write"
    monkeypatch.setattr(no_archive, lambda file, record: file.write(b"no archive"))
    sealed = seals["linz"].close(parcel())
    with pytest.raises(UselessError, match="A record of 'linz' holds no arrays"):
        seals["graz"].open(sealed, check_parcel(sealed))


@pytest.mark.parametrize(
    "head",
    [
        [],
        {},
        7,
        {"sender": [], "keys": {}},
        {"sender": 1, "keys": {}},
        {"sender": "linz", "keys": 1},
    ],
)
def test_a_head_of_another_kind_is_refused(head, seals):
    """Before anybody looks for a signature."""
    if isinstance(head, dict):
        head = {"ephemeral": "00" * 32, "hash": "", **head}
    text = json.dumps(head).encode()
    sealed = altered(seals["linz"].close(parcel()), lambda _: len(text).to_bytes(4, "big") + text)
    with pytest.raises(ParcelError, match="A sealed record is damaged"):
        seals["graz"].open(sealed, LABEL)


def test_of_two_processes_that_make_an_identity_one_wins(tmp_path, monkeypatch):
    path = tmp_path / "identity"
    other = Identity.load("graz", tmp_path / "other")
    link = os.link

    def slower(draft, place):
        link(tmp_path / "other", path)
        link(draft, place)

    monkeypatch.setattr(os, "link", slower)
    assert str(Identity.load("graz", path).member) == str(other.member)
    assert {file.name for file in tmp_path.iterdir()} == {"identity", "other"}


def test_keys_that_cannot_be_kept_leave_no_draft(tmp_path, monkeypatch):
    def without_links(draft, place):
        assert draft.stat().st_mode & 0o777 == 0o600
        raise PermissionError  # as on some file systems

    monkeypatch.setattr(os, "link", without_links)
    with pytest.raises(PermissionError):
        Identity.load("graz", tmp_path / "identity")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("end", [0, 3, 4, 100, 900, -1])
def test_a_part_of_a_parcel_is_refused(end, seals):
    sealed = seals["linz"].close(parcel())
    with pytest.raises(ParcelError):
        seals["graz"].open(altered(sealed, lambda content: content[:end]), LABEL)


@pytest.mark.parametrize(
    "change",
    [{"round": 3}, {"hop": 2}, {"lineage": "wien"}, {"classes": ["b", "a"]}, {"epochs": 9}],
)
def test_a_label_that_is_another_one_s_is_refused(change, seals):
    sealed = seals["linz"].close(parcel())
    with pytest.raises(ParcelError, match=r"sealed for another (label|lineage): it is refused"):
        seals["graz"].open(sealed, replace(check_parcel(sealed), **change))


def test_a_parcel_of_another_run_is_refused(seals):
    sealed = replace(seals["linz"], run="run-0").close(parcel())
    with pytest.raises(ParcelError, match="sealed for another run: it is refused"):
        seals["graz"].open(sealed, check_parcel(sealed))


def test_a_record_in_the_place_of_another_is_refused(seals):
    sealed = seals["linz"].close(parcel(model={"weight": WEIGHTS}, memory={"weight": WEIGHTS}))
    swapped = {"model": sealed.array_records["memory"]}
    with pytest.raises(ParcelError, match="sealed for another record"):
        seals["graz"].open(pack(swapped, check_parcel(sealed)), check_parcel(sealed))


def test_only_who_trained_a_model_last_can_have_sealed_it(seals):
    sealed = seals["wien"].close(parcel())
    with pytest.raises(ParcelError, match="A record of 'wien' was sealed for another sender"):
        seals["graz"].open(sealed, check_parcel(sealed))


def test_a_member_cannot_rewrite_what_another_has_sealed(seals, identities):
    """Each recipient knows the key of a record, and could encrypt other arrays with it."""
    sealed = seals["linz"].close(parcel())

    def rewrite(content):
        end = 4 + int.from_bytes(content[:4], "big")
        head, reading = json.loads(content[4:end]), identities["wien"].reading
        public = X25519PublicKey.from_public_bytes(bytes.fromhex(head["ephemeral"]))
        cipher = sealing._wrapping_cipher(reading.exchange(public), public, reading.public_key())
        key = cipher.decrypt(NONCE, bytes.fromhex(head["keys"]["wien"]), None)
        return content[: end + SIGNATURE] + ChaCha20Poly1305(key).encrypt(NONCE, b"other", None)

    with pytest.raises(ParcelError, match="A record of 'linz' was changed after it was sealed"):
        seals["graz"].open(altered(sealed, rewrite), LABEL)


def test_before_the_first_visit_that_is_the_hospital_itself(seals):
    first = Manifest("graz", "mlp", ["a", "b"])
    sealed = seals["graz"].close(parcel(first))
    assert seals["wien"].open(sealed, check_parcel(sealed))
    sealed = seals["wien"].close(parcel(first))
    with pytest.raises(ParcelError, match="sealed for another sender"):
        seals["graz"].open(sealed, check_parcel(sealed))


def test_strangers_are_refused_and_read_nothing(seals, tmp_path):
    stranger = Identity.load("linz", tmp_path / "stranger")
    members = seals["graz"].members
    false = Seal(stranger, members, "run-1").close(parcel())  # calls itself linz
    with pytest.raises(ParcelError, match="names 'linz' as its sender and is not signed by it"):
        seals["graz"].open(false, check_parcel(false))

    other = Seal(replace(stranger, name="ischl"), members, "run-1").close(parcel())
    with pytest.raises(ParcelError, match="sealed by 'ischl', who is not a member"):
        seals["graz"].open(other, check_parcel(other))

    sealed = seals["linz"].close(parcel())
    reader = Seal(replace(stranger, name="ischl"), members, "run-1")
    with pytest.raises(ParcelError, match="is not sealed for 'ischl'"):
        reader.open(sealed, check_parcel(sealed))
    reader = Seal(replace(stranger, name="graz"), members, "run-1")
    with pytest.raises(ParcelError, match="cannot be opened: does 'linz' have this hospital's"):
        reader.open(sealed, check_parcel(sealed))


def test_an_open_parcel_is_refused(seals):
    opened = parcel()
    with pytest.raises(ParcelError, match="is not sealed"):
        seals["graz"].open(opened, check_parcel(opened))


def test_a_buffer_goes_to_all_without_its_parcel(seals):
    images = {"images": np.zeros(5, np.uint8)}
    sealed = seals["linz"].close(parcel(Manifest("linz", "mlp", ["a"]), buffer=images))
    buffer = sealed.array_records["buffer"]
    opened = seals["wien"].open_buffer(buffer, "linz")
    assert np.array_equal(opened["images"].numpy(), images["images"])
    with pytest.raises(ParcelError, match="another run"):
        replace(seals["wien"], run="run-2").open_buffer(buffer, "linz")
    model = seals["linz"].close(parcel()).array_records["model"]
    with pytest.raises(ParcelError, match="another record"):
        seals["wien"].open_buffer(model, "linz")


def test_an_identity_is_made_once_and_for_its_owner_alone(tmp_path):
    path = tmp_path / "store" / "graz" / "identity"
    first, second = (Identity.load("graz", path) for _ in range(2))
    assert str(first.member) == str(second.member)
    assert path.stat().st_mode & 0o777 == 0o600
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in path.parents[:2])
    assert [file.name for file in path.parent.iterdir()] == ["identity"]
    path.write_bytes(b"something else")
    with pytest.raises(OwnError) as refusal:
        Identity.load("graz", path)
    assert "has 14 bytes; 64 are expected" in refusal.value.explain()


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o660])
def test_keys_that_others_can_read_or_write_are_not_used(mode, tmp_path):
    Identity.load("graz", tmp_path / "identity")
    (tmp_path / "identity").chmod(mode)
    with pytest.raises(OwnError) as refusal:
        Identity.load("graz", tmp_path / "identity")
    assert "Others can read or write" in refusal.value.explain()


def test_a_link_that_leads_nowhere_is_no_identity(tmp_path):
    (tmp_path / "identity").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OwnError):
        Identity.load("graz", tmp_path / "identity")
    assert [file.name for file in tmp_path.iterdir()] == ["identity"]


def test_the_text_of_a_member_is_that_of_both_keys(identities):
    member = identities["graz"].member
    assert str(Member.parse(str(member))) == str(member)
