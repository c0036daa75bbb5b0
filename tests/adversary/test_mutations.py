"""Thousands of changed parcels, orders, cards, figures: each ends in a typed failure, or in none.

A `Failure` other than CRASHED is typed; so is a parcel that is refused. What the server takes in
can be written down and read again.
"""

import dataclasses
import json
import random
import struct
import zipfile
import zlib
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from client_app.app import app
from learning.packing import pack_buffer
from learning.samples import Samples
from strategies.engine.admission import admit, admit_first, admit_tested, admit_trained
from strategies.engine.courier import Courier, Letter
from strategies.engine.shelf import Shelf
from strategies.protocol import archive
from strategies.protocol.may_leave import Failure
from strategies.protocol.optimizer import PARTS
from strategies.protocol.order import Order
from strategies.protocol.parcel import Manifest, bundle, check_parcel, hash_arrays, pack
from strategies.protocol.records import to_record
from strategies.registry import strategy_of
from tests.fakes import (
    CountingHospital,
    FakeGrid,
    Ledger,
    context,
    failing,
    federation,
    go,
    run_config,
    settings,
    write_archive,
)

IMAGES = 6  # of a buffer
BLOCK = 50  # mutations of one test
FAST, ALL = 3, 60  # tests of each kind

JUNK = [
    *("", "x", "x" * 70_000, "a\nb", "../..", "=1+1", "\0", "\ud800", "[" * 5000, "ä"),
    *(0, -1, 1, 7, 2**63 - 1, -(2**63), 0.0, -1.5, float("nan"), float("inf"), True, b"", b"\xff"),
    *([], [""], ["x"] * 9, ["model=0", "model=0"], ["model"], [1], [2**62] * 3, [0.5], [True]),
]


SEEDS = [pytest.param(k, marks=[pytest.mark.slow] * (k >= FAST)) for k in range(ALL)]


class Mutator:
    """Random changes, small ones and absurd ones."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def content(self, content):
        """One to three changes; most of the time the hashes are right again afterwards."""
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            change = self.records if self.rng.random() < 0.25 else self.record
            content = change(content) if content else content
        return repaired(content) if self.rng.random() < 0.7 else content

    def records(self, content):
        """Drop, rename, copy or exchange whole records."""
        records = dict(content)
        name = self.rng.choice(list(records))
        match self.rng.randrange(4):
            case 0:
                del records[name]
            case 1:
                records[self.rng.choice([*(t for t in JUNK if isinstance(t, str)), "model"])] = (
                    records.pop(name)
                )
            case 2:
                records[name] = records[self.rng.choice(list(records))]
            case 3:
                records[name] = self.rng.choice([ArrayRecord(), ConfigRecord(), MetricRecord()])
        return RecordDict(records)

    def record(self, content):
        name = self.rng.choice(list(content))
        change = self.arrays if isinstance(content[name], ArrayRecord) else self.values
        return RecordDict({**content, name: change(content[name])})

    def arrays(self, record):
        arrays = dict(record)
        if not arrays:
            return record
        name = self.rng.choice(list(arrays))
        match self.rng.randrange(6):
            case 0:
                del arrays[name]
            case 1:
                other = self.rng.choice(["", "x" * 70_000, "a/b", "\0", "\ud800", "w"])
                arrays[other] = arrays.pop(name)
            case 2 | 3:
                arrays[name] = self.array(arrays[name])
            case 4:
                arrays[name] = Array(
                    "uint8", (3,), "numpy.ndarray", self.damaged(arrays[name].data)
                )
            case 5:
                like = arrays[name]
                arrays[name] = Array(like.dtype, like.shape, like.stype, self.damaged(like.data))
        return ArrayRecord(arrays)

    def array(self, array):
        """Another array, or the same one that says something else about itself."""
        try:
            values = archive.array_of(array.data).numpy()
        except archive.ArchiveError:  # changed already
            return array
        values = np.asarray(np.nan_to_num(values).clip(-1e4, 1e4), values.dtype)
        version = BytesIO()
        np.lib.format.write_array(version, values, version=(2, 0), allow_pickle=False)
        objects = BytesIO()
        np.save(objects, np.array([{}]), allow_pickle=True)
        return self.rng.choice(
            [
                Array(array.dtype, (2**40,), array.stype, array.data),
                Array(array.dtype, (-1,), array.stype, array.data),
                Array("object", array.shape, array.stype, array.data),
                Array(array.dtype, array.shape, "pickle", array.data),
                Array(array.dtype, array.shape, array.stype, version.getvalue()),
                Array(array.dtype, array.shape, array.stype, objects.getvalue()),
                Array(values.astype("f8")),
                Array(values.astype("c16")),
                Array(values.astype("U3")),
                Array(values.astype(">f4")),
                Array(np.zeros(values.shape, "datetime64[s]")),
                Array(values[..., None]),
                Array(values.ravel()[:0]),
                Array(np.zeros((0, 2**20, 2**20))),
                Array(np.full_like(values, -1 if values.dtype.kind == "i" else 200)),
                Array(np.full(values.shape, np.nan)),
            ]
        )

    def values(self, record):
        """A card, a label, an order or figures, in which a value is another."""
        values = dict(record)
        key = self.rng.choice([*values, "extra"])
        junk = self.rng.choice(JUNK)
        if isinstance(values.get(key), list) and values[key] and self.rng.random() < 0.5:
            junk = [*values[key], values[key][0]]
        if key == "architecture" and self.rng.random() < 0.8:
            junk = self.architecture(str(values[key]))
        if isinstance(record, MetricRecord):
            junk = junk if isinstance(junk, int | float) and junk is not True else 2.5
            name = self.rng.choice([key, "a/accuracy", "../accuracy", "a/b/c", "x" * 999, "#"])
            return MetricRecord({**values, name: junk})
        if self.rng.random() < 0.1:
            values.pop(key, None)
        else:
            values[key] = junk
        return ConfigRecord(values)

    def architecture(self, text):
        try:
            facts = json.loads(text)
        except ValueError:  # changed already
            return "{}"
        key = self.rng.choice(list(facts))
        sizes: list[Any] = [
            0,
            -1,
            1,
            20_000,
            10**9,
            10**30,
            True,
            None,
            "x",
            [],
            {},
            [20_000] * 2,
            [10**18],
        ]
        models = ["resnet18", "vit_h_14", "regnet_y_128gf", "mlp", "cnn", "quantized_resnet18"]
        facts[key] = self.rng.choice([*sizes, *models, [1] * 2000])
        return json.dumps(facts)

    def damaged(self, content):
        """Bytes of which some are others, are missing, or come twice."""
        damaged = bytearray(content)
        for _ in range(self.rng.choice([1, 2, 8])):
            place = self.rng.randrange(max(1, len(damaged)))
            if self.rng.random() < 0.5:
                place = min(place, self.rng.randrange(130))  # headers
            match self.rng.randrange(4):
                case 0:
                    damaged[place : place + 1] = bytes([self.rng.randrange(256)])
                case 1:
                    damaged[place : place + self.rng.randrange(1, 9)] = b""
                case 2:
                    damaged[place:place] = damaged[: self.rng.randrange(40)]
                case 3:
                    damaged[place : place + 4] = struct.pack("<I", self.rng.randrange(2**32))
        return bytes(damaged)


def repaired(content):
    """The content with right hashes, as a member makes them for whatever it sends."""
    records = dict(content)
    for name, record in content.config_records.items():
        prefix = name.removesuffix("manifest")
        names = ("model", "buffer", "memory", "optimizer")
        beside = {each: records.get(prefix + each) for each in names}
        arrays = {k: v for k, v in beside.items() if isinstance(v, ArrayRecord)}
        if name.endswith("manifest") and isinstance(record.get("hashes"), list):
            try:
                hashes = [f"{each}={hash_arrays(value)}" for each, value in arrays.items()]
            except UnicodeError:
                continue
            records[name] = ConfigRecord({**record, "hashes": hashes})
    return RecordDict(records)


# At a hospital.


@pytest.fixture
def hospital(tmp_path):
    """What asks a simulated hospital something; and answers that others have given."""
    write_archive(tmp_path / "data.npz", 12)
    dataset = f"npz:{tmp_path / 'data.npz'}"
    config = run_config(model="mlp", mlp__hidden="4", dataset=dataset, partition="iid")
    config["train.optimizer-state"] = "travels"

    def ask(verb, content, ttl=60.0):
        place = context(0, 2, config, **{"store-dir": str(tmp_path)})
        return app(Message(content, 100, verb, ttl=ttl), place)

    return ask


def order(**changes):
    return to_record(
        Order(
            **{
                **{"round": 1, "hop": 1, "hospital": "hospital-0", "classes": ["0", "1"]},
                **{"learner": "plain", "run": "1", "epochs": 1},
                **changes,
            }
        )
    )


@pytest.fixture
def first(hospital):
    """The first parcel of a hospital."""
    content = hospital("query.prepare", RecordDict({"order": order()})).content
    return {name: content[name] for name in ("model", "manifest")}


@pytest.fixture
def messages(hospital, first):
    """Good messages, each with its verb."""
    images = torch.arange(IMAGES * 64, dtype=torch.uint8).view(IMAGES, 1, 8, 8)
    buffer = pack_buffer(Samples(images, torch.arange(IMAGES) % 2), "0" * 64)
    hash_ = hash_arrays(buffer)
    replay = order(learner="feder", buffer_size=IMAGES, replay=[f"wien={hash_}"])
    memory = {"order": order(learner="cwc")}
    consolidated = hospital("train", RecordDict({**first, **memory})).content
    found: list[Any] = [
        ("train", {**first, "order": order(test=True, snapshots=True, epochs=2)}),
        ("train", {k: consolidated[k] for k in consolidated if k != "metrics"} | memory),
        ("train", {**first, f"{hash_}/buffer": buffer, "order": replay}),
        (
            "evaluate",
            {
                **bundle({"a": RecordDict(first), "b": RecordDict(first)}),
                "order": order(ensemble=True),
            },
        ),
    ]
    for verb, content in found:
        assert not hospital(verb, RecordDict(content)).has_error()
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_arrives_at_a_hospital_is_used_or_refused_with_a_type(hospital, messages, seed):
    mutator = Mutator(seed)
    for _ in range(BLOCK):
        verb, content = mutator.rng.choice(messages)
        rest = {name: record for name, record in content.items() if name != "order"}
        if mutator.rng.random() < 0.15:
            sent = RecordDict({**rest, "order": mutator.values(content["order"])})
        else:
            changed = mutator.content(RecordDict(rest))
            sent = RecordDict({**changed, "order": content["order"]})
        answer = hospital(verb, sent, ttl=5.0)  # an order may ask for 2**63 - 1 epochs
        if answer.has_error():
            assert answer.error.code != Failure.CRASHED, (answer.error.reason, sent)


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["icarl", "fdr", "agem", "lwf"])
def test_what_a_learner_takes_along_and_keeps_is_used_or_refused_with_a_type(learner, tmp_path):
    """Two tasks of two rounds each: the last visit has a memory, kept images, kept weights."""
    write_archive(tmp_path / "data.npz", 24)
    small = {"num_server_rounds": 4, "tasks": 2, "model": "mlp", "mlp__hidden": "4"}
    reservoir = {"reservoir__size": 4, "reservoir__batch_size": 2, "partition": "iid"}
    dataset = f"npz:{tmp_path / 'data.npz'}"
    config = run_config(strategy="cwt", learner=learner, dataset=dataset, **small, **reservoir)

    def ask(verb, content, server_round):
        task = (server_round + 1) // 2
        asked = {**content, "order": order(learner=learner, round=server_round, task=task)}
        place = context(0, 2, config, **{"store-dir": str(tmp_path)})
        return app(Message(RecordDict(asked), 100, verb, ttl=60.0), place)

    parcel = ask("query.prepare", {}, 1).content
    for server_round in (1, 2, 3, 4):
        before = {name: parcel[name] for name in parcel if name in ("model", "memory", "manifest")}
        parcel = ask("train", before, server_round).content
    mutator = Mutator(7)
    for _ in range(BLOCK):
        answer = ask("train", mutator.content(RecordDict(before)), 4)
        assert not answer.has_error() or answer.error.code != Failure.CRASHED, answer.error.reason
    (kept,) = tmp_path.rglob("rehearsal/3-1.npz")
    whole = kept.read_bytes()
    for rest in (b"", whole[: len(whole) // 2], whole[:-5]):
        kept.write_bytes(rest)
        answer = ask("train", before, 4)
        assert answer.error.code == Failure.SETTINGS
        assert answer.error.reason.startswith("The hospital's store cannot be used")
    kept.write_bytes(whole)
    assert not ask("train", before, 4).has_error()


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_picture_a_buffer_is_it_is_used_or_refused_with_a_type(hospital, messages, seed):
    """Its hash is right: a member has made it so. Half of them have texts in the PNG."""
    mutator = Mutator(seed)
    verb, content = messages[2]
    (name,) = [name for name in content if name.endswith("/buffer")]
    for _ in range(BLOCK // 5):
        picture = content[name]["images"].numpy().tobytes()
        if mutator.rng.random() < 0.5:
            text = b"a\0\0" + zlib.compress(bytes(2**21))
            chunk = struct.pack(">I", len(text)) + b"zTXt" + text
            picture = picture[:33] + chunk + struct.pack(">I", zlib.crc32(chunk[4:])) + picture[33:]
        else:
            picture = mutator.damaged(picture)
        images = Array(np.frombuffer(picture, np.uint8))
        record = ArrayRecord({"images": images, "labels": content[name]["labels"]})
        hash_ = hash_arrays(record)
        sent = {"model": content["model"], "manifest": content["manifest"]}
        changed = {**content["order"], "replay": [f"wien={hash_}"]}
        sent |= {f"{hash_}/buffer": record, "order": ConfigRecord(changed)}
        answer = hospital(verb, RecordDict(sent))
        if answer.has_error():
            assert answer.error.code == Failure.PARCEL, answer.error.reason


# At the server.

LABEL = Manifest("h0", "counter", ["a", "b"])


def carried(verb, answer):
    """What the courier makes of an answer."""
    letter = Letter(1, verb, None, RecordDict, 60.0, "hop-timeout")
    handle = lambda message: Message(answer, reply_to=message)  # noqa: E731
    (delivery,) = Courier(FakeGrid({1: handle})).exchange([letter])
    return delivery


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_a_hospital_answers_is_admitted_or_refused_with_a_type(seed, tmp_path):
    """And what is admitted can be written down and read again: a checkpoint is made of it."""
    mutator, shelf = Mutator(seed), Shelf(tmp_path)
    first = Order(0, 0, "h0", ["a", "b"], "plain", "1", buffer_size=1)
    visit = Order(1, 1, "h0", ["a", "b"], "plain", "1", epochs=2, snapshots=True)
    weights = ArrayRecord({"head.weight": Array(np.ones((8, 2), "f4"))})
    parts = {"means": (2, 2), "counts": (2,), "radius": ()}
    memory = ArrayRecord({name: Array(np.ones(shape, "f4")) for name, shape in parts.items()})
    check_memory = strategy_of(settings(strategy="fedspace")).check_memory
    given = pack({"model": weights, "buffer": weights}, LABEL)
    sent = check_parcel(given)
    moments = {f"head.weight.{part}": Array(np.ones((8, 2), "f4")) for part in PARTS[1:]}
    moments["head.weight.step"] = Array(np.ones((), "f4"))
    beside = {"memory": memory, "optimizer": ArrayRecord(moments)}
    back = pack({"model": weights, **beside}, sent.advance(visit))
    early = pack({"model": weights}, dataclasses.replace(sent.advance(visit), epochs=1))
    figures = MetricRecord({"num-examples": 3.0, "train-loss": 0.5, "seconds-train": 1.0})
    card = ConfigRecord({"hospital": "h0", "release": "ok"})
    shown = bundle({"epoch-1": early})
    trained = RecordDict({**back, **shown, "metrics": figures})
    about = MetricRecord({"a/accuracy": 0.5, "a/auroc": 1.0, "ensemble/accuracy": 0.5})
    answers: list[Any] = [
        (
            "query.prepare",
            {**given, "metrics": figures, "card": card},
            admit_first,
            (first, first.classes),
        ),
        ("train", trained, admit_trained, (visit, given, {}, check_memory, True)),
        ("evaluate", {"metrics": about}, admit_tested, (replace(visit, ensemble=True), ("a",))),
    ]
    for verb, good, check, expected in answers:
        assert admit(carried(verb, RecordDict(good)), check, *expected)[1] is not None
    for _ in range(BLOCK):
        verb, good, check, expected = mutator.rng.choice(answers)
        delivery, admitted = admit(
            carried(verb, mutator.content(RecordDict(good))), check, *expected
        )
        assert (admitted is None) == (delivery.failure is not None)
        assert delivery.failure != Failure.CRASHED
        if admitted is not None and check is not admit_tested:
            parcels = [admitted] if check is admit_first else admitted.values()
            names = [shelf.put(parcel) for parcel in parcels]
            shelf.write(names)
            shelf.check(names)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_bytes_an_archive_has_it_is_read_or_refused_with_a_type(seed):
    mutator, good = Mutator(seed), BytesIO()
    archive.write(good, {"model/w": Array(np.ones(3)), "b": Array(np.ones((2, 2)))}, {"t": "x"})
    compressed = BytesIO()
    with zipfile.ZipFile(compressed, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("w.npy", Array(np.zeros(999)).data)
    for _ in range(BLOCK):
        content = mutator.damaged(mutator.rng.choice([good, good, compressed]).getvalue())
        try:
            arrays, _ = archive.read(BytesIO(content))
        except archive.ArchiveError:
            continue
        assert all(array.numpy().shape == array.shape for array in arrays.values())


class Careful(CountingHospital):
    """Refuses, as a real one does, a model that is not a counter."""

    def train(self, message, order):
        try:
            return super().train(message, order)
        except (KeyError, IndexError, TypeError, ValueError):
            return failing(message, Failure.PARCEL, "not a counter")


class Mutated(CountingHospital):
    """Answers everything, changed."""

    def __init__(self, name, seed):
        super().__init__(name)
        self.mutator = Mutator(seed)

    def __call__(self, message):
        try:
            reply = super().__call__(message)
        except (KeyError, IndexError, TypeError, ValueError):  # its own model, from another visit
            return failing(message)
        if reply is None or self.mutator.rng.random() < 0.5:
            return reply
        return Message(self.mutator.content(reply.content), reply_to=message)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_one_member_answers_the_run_goes_on_for_the_others(seed):
    handlers = federation(3, h0=Careful("h0"), h1=Careful("h1"), h2=Mutated("h2", seed))
    ledger = Ledger()
    chosen = settings(strategy="rwt", num_server_rounds=2, classes="a,b")
    state = go(chosen, FakeGrid(handlers, np.random.default_rng(seed)), ledger)
    assert {"h0", "h1"} <= set(state.hospitals) <= {"h0", "h1", "h2"}
    failed = [event for event in ledger.events if event.outcome != "ok"]
    # Elsewhere fails at most what began as a model of the hospital that answers so.
    assert all(e.hospital in ("h2", "node 102") or e.lineage == "h2" for e in failed)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("ensemble/accuracy", "figures of 'ensemble'"),
        ("standalone/accuracy", "figures of 'standalone'"),
        ("a/accuracy-of-task-50", "figures of task 50"),
        ("accuracy-in-task-3", "figures of task 3"),
        ("a/accuracy-of-task-2", ""),
    ],
)
def test_figures_that_no_order_asks_for_do_not_count(key, words):
    order = Order(1, 1, "h0", ["a", "b"], "plain", "run", task=2)
    answer = carried("evaluate", RecordDict({"metrics": MetricRecord({key: 0.5})}))
    delivery, admitted = admit(answer, admit_tested, order, ["a"])
    assert words in delivery.reason
    assert (admitted is None) == bool(words)
