"""Whoever relays sealed parcels changes them in every way: each is refused with a `ParcelError`.

Three hospitals are members. The server has all that they sealed, an identity that nobody trusts,
and wien's keys, since a member may be dishonest. linz, too, may seal what is no archive of arrays.
"""

import json
from dataclasses import replace
from io import BytesIO
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from client_app.authority.identity import Identity
from client_app.authority.sealing import SIGNATURE, Seal, open_parcel
from strategies.protocol import archive
from strategies.protocol.parcel import Manifest, pack
from strategies.protocol.records import ParcelError

LABEL = Manifest("graz", "mlp", ["a", "b"], round=2, hop=1, visited=["graz", "linz"])
WEIGHTS = {"weight": np.arange(600, dtype=np.float32).reshape(20, 30), "steps": np.array(7)}
# X25519 and Ed25519 points of low order, among them 0, 1 and p - 1.
LOW_ORDER = [
    *(bytes(32), bytes([1, *[0] * 31]), bytes([0xEC, *[0xFF] * 30, 0x7F])),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
]
STRANGE: list[Any] = [
    *(None, True, 0, -1, 10**400, 1.5, float("nan"), [], {}, [[]], {"a": 1}, "", "0", "00" * 32),
    *("ü", "\ud800", "linz\n", "..", "x" * 100_000, "linz", "wien", "run-0", "model"),
    *(point.hex() for point in LOW_ORDER),
]


def record_of(content):
    return ArrayRecord({"sealed": Array(np.frombuffer(bytes(content), np.uint8))})


def bytes_of(record):
    return record["sealed"].numpy().tobytes()


def parts_of(record):
    content = bytes_of(record)
    end = 4 + int.from_bytes(content[:4], "big")
    return content[4:end], content[end : end + SIGNATURE], content[end + SIGNATURE :]


def joined(text, signature, ciphertext):
    return record_of(len(text).to_bytes(4, "big") + text + signature + ciphertext)


class World:
    """What there is to play with."""

    def __init__(self, folder):
        names = ("graz", "linz", "wien", "mallory")
        self.identities = {name: Identity.load(name, folder / name) for name in names}
        members = {name: self.identities[name].member for name in names[:3]}
        self.seals = {n: Seal(self.identities[n], members, "run-1") for n in names}
        arrays = {k: ArrayRecord({n: Array(a) for n, a in WEIGHTS.items()}) for k in "mb"}
        self.model = {"model": arrays["m"], "memory": arrays["b"]}
        self.parcel = self.seals["linz"].close(pack(self.model, LABEL))
        first = {name: Manifest(name, "mlp", ["a", "b"]) for name in names}
        images = {"model": arrays["m"], "buffer": arrays["b"]}
        others = [
            *(self.seals[name].close(pack(images, first[name])) for name in names),
            self.seals["wien"].close(pack(self.model, LABEL)),
            replace(self.seals["linz"], run="run-0").close(pack(self.model, LABEL)),
            self.seals["linz"].close(pack(self.model, replace(LABEL, round=1))),
            self.parcel,
        ]
        self.records = [record for parcel in others for record in parcel.array_records.values()]
        self.buffers = {n: others[k].array_records["buffer"] for k, n in enumerate(names)}

    def sealed_by_linz(self, plain):
        """A record in the model's place that linz has sealed with something else in it."""
        write = patch.object(archive, "write", lambda file, _: file.write(plain))
        with write:
            return self.seals["linz"].close(pack(self.model, LABEL)).array_records["model"]


def changed_bytes(rng, content):
    """Bit flips, cuts, repetitions, insertions."""
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        start, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
        match rng.randrange(6):
            case 0 | 1 if content:
                content[min(start, len(content) - 1)] ^= 1 << rng.randrange(8)
            case 2:
                del content[start:end]
            case 3:
                content[start:start] = rng.randbytes(rng.randrange(1, 40))
            case 4:
                content[start:start] = content[start:end]
            case _:
                del content[start:]
    return bytes(content)


def damaged(rng, world, record):
    return record_of(changed_bytes(rng, bytes_of(record)))


def garbage(rng, world, record):
    return record_of(rng.randbytes(rng.choice([0, 1, 3, 4, 60, 1000])))


def other_head_length(rng, world, record):
    length = rng.choice([0, 1, 2**20, 2**20 + 1, 2**31, 2**32 - 1, rng.randrange(3000)])
    return record_of(length.to_bytes(4, "big") + bytes_of(record)[4:])


def exchanged(rng, world, record):
    return rng.choice(world.records)


def spliced(rng, world, record):
    return joined(*(parts_of(rng.choice([record, *world.records]))[k] for k in range(3)))


def other_head(rng, world, record):
    """A head with other fields or of another kind, and any signature but linz's under it."""
    text, signature, ciphertext = parts_of(record)
    head = json.loads(text)
    name = rng.choice([*head, "more"])
    match rng.randrange(6):
        case 0:
            head.pop(name, None)
        case 1:
            head["keys"][rng.choice([*head["keys"], "ü"])] = rng.choice(STRANGE)
        case 2:
            head = rng.choice(STRANGE)
        case _:
            head[name] = rng.choice(STRANGE)
    depth = rng.choice([1000, 10**5, 10**6])
    changed = json.dumps(head).encode() if rng.random() < 0.95 else b"[" * depth
    who = rng.choice(["nobody", "linz", "wien", "mallory"])
    if who in ("wien", "mallory"):
        if isinstance(head, dict) and rng.random() < 0.3:
            changed = json.dumps({**head, "sender": who}).encode()
        signature = world.identities[who].signing.sign(changed)
    elif who == "nobody":
        signature = rng.choice([bytes(64), rng.randbytes(64), LOW_ORDER[1] + bytes(32)])
    return joined(changed, signature, ciphertext)


def other_head_by_linz(rng, world, record):
    """What only linz could do, which signs it: it harms itself."""
    text, _, ciphertext = parts_of(record)
    head = json.loads(text)
    head[rng.choice(["ephemeral", "hash", "keys", "label"])] = rng.choice(STRANGE)
    changed = json.dumps(head).encode()
    return joined(changed, world.identities["linz"].signing.sign(changed), ciphertext)


def other_archive_by_linz(rng, world, record):
    archive.write(file := BytesIO(), world.model["model"])
    return world.sealed_by_linz(changed_bytes(rng, file.getvalue()))


def other_array(rng, world, record):
    """An array that announces another type than it has, or is written in another way."""
    data = record["sealed"].data
    headers = [
        data[:6] + bytes([rng.choice([0, 2, 3, 9]), 0]) + data[8:],
        data.replace(b"|u1", rng.choice([b"|O8", b"<f8", b"|i1", b"|V1", b"|b1"])),
        data.replace(b"False", b"True ", 1),
        data.replace(b"'shape': (", rng.choice([b"'shape': (-", b"'shape': (9", b"'shape': ("])),
        data[: rng.randrange(130)],
        changed_bytes(rng, data[:128]) + data[128:],
        b"\x93NUMPY\x01\x00" + (60000).to_bytes(2, "little") + b"(" * 60000 + data[128:],
    ]
    announced = [
        {"shape": rng.choice([(), (-1,), (1, 1), (10**12,), (0,)])},
        {"stype": rng.choice(["", "torch", "numpy"])},
        {"dtype": rng.choice(["int8", "object", "", "uint8 "])},
    ]
    array: dict[str, Any] = {"data": data, "dtype": "uint8", "stype": "numpy.ndarray"}
    array["shape"] = record["sealed"].shape
    array |= rng.choice([*({"data": each} for each in headers), *announced])
    return ArrayRecord({"sealed": Array(**array)})


def other_record(rng, world, record):
    sealed = record["sealed"]
    opened = dict(world.model["model"])
    others = [{}, {"Sealed": sealed}, {"sealed": sealed, "more": sealed}, opened]
    return ArrayRecord(rng.choice(others))


CHANGES = [
    *(damaged, damaged, garbage, other_head_length, exchanged, spliced, other_head, other_head),
    *(
        other_head,
        other_head_by_linz,
        other_archive_by_linz,
        other_array,
        other_array,
        other_record,
    ),
]
BY_LINZ = (other_head_by_linz, other_archive_by_linz)  # no forgery, whatever comes of it


def other_label(rng, parcel):
    """A parcel whose label the server has rewritten."""
    label = dict(parcel["manifest"])
    name = rng.choice([*label, "more"])
    strange = ["", "wien", "..", "x" * 10_000, 0, 1, 2, 3, -1, 10**15, 1.5, True, b"x"]
    strange += [
        [],
        ["wien"],
        ["graz", "wien"],
        [1],
        ["model"],
        [""],
        ["model=", "model"],
        ["a", "b"],
    ]
    value = rng.choice(strange)
    if rng.random() < 0.1:
        label.pop(name, None)
    else:
        label[name] = value
    return RecordDict({**parcel, "manifest": ConfigRecord(label)})


def arrives(rng, world):
    """What comes at graz, the way in which it opens it, and whether nobody but linz could send it.

    The server writes the hashes of the label anew.
    """
    change = rng.choice(CHANGES)
    if rng.random() < 0.2:
        whose = rng.choice(["linz", "wien", "graz", "mallory"])
        buffer = change(rng, world, world.buffers["linz"])
        genuine = buffer == world.buffers[whose] and whose != "mallory"
        return lambda seal: seal.open_buffer(buffer, whose), genuine or change in BY_LINZ
    records = dict(world.parcel.array_records)
    name = rng.choice([*records])
    records[name] = change(rng, world, records[name])
    if rng.random() < 0.1:
        records["model"], records["memory"] = records["memory"], records["model"]
    parcel = pack(records, LABEL)
    if rng.random() < 0.2:
        parcel = other_label(rng, parcel)
    if rng.random() < 0.02:
        other = {rng.choice(["model", "manifest"]): rng.choice([MetricRecord(), ArrayRecord()])}
        parcel = RecordDict({**parcel, **other})
    return lambda seal: open_parcel(parcel, seal), parcel == world.parcel or change in BY_LINZ


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize(
    ("first", "count"), [(0, 500), pytest.param(500, 9000, marks=pytest.mark.slow)]
)
def test_no_mutation_is_accepted_and_each_gives_a_parcel_error(first, count, world):
    forged, untyped = [], {}
    for seed in range(first, first + count):
        open_at, genuine = arrives(Random(seed), world)
        try:
            open_at(world.seals["graz"])
        except ParcelError:
            continue
        except Exception as error:
            untyped[seed] = repr(error)[:100]
        else:
            if not genuine:
                forged.append(seed)
    assert (forged, untyped) == ([], {})
