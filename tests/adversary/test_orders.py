"""Orders that no honest server sends: out of turn, or for more than the run's settings say."""

import math
import os
import time
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from client_app import request
from client_app.app import app
from client_app.authority import node_config
from client_app.authority.ledger import path_of, read
from client_app.release import buffer
from strategies.protocol.code import code_hash
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.parcel import parcel_in
from strategies.protocol.records import to_record
from tests.fakes import deployed

HASH = "0" * 64
RWT: dict[str, Any] = {
    "strategy": "rwt",
    "model": "mlp",
    "mlp__hidden": "8",
    "num_server_rounds": 3,
}
# Beside each order: what it would have had a hospital do.
OTHER_THINGS = {
    "render-a-buffer": ("query.prepare", {"buffer_size": 64}),
    "learn-prototypes": ("train", {"learner": "fedspace"}),
    "learn-an-encoder": ("train", {"learner": "fil-ver-encoder"}),
    "learn-from-an-archive": ("train", {"images": "public"}),
    "learn-from-everyone": ("train", {"images": "everyone"}),
    "learn-from-buffers": ("train", {"replay": [f"linz={HASH}"], "images": "none"}),
    "send-embeddings": ("train", {"embeddings": "stats"}),
    "send-each-epoch": ("train", {"snapshots": True}),
    "test-at-once": ("train", {"test": True}),
    "train-longer": ("train", {"epochs": 50}),
    "train-without-end": ("train", {"epochs": 10**6}),
    "train-after-the-end": ("train", {"round": 4}),
    "train-before-the-start": ("train", {"round": 0}),
    "rewind": ("train.rewind", {}),
    "third-leg": ("train", {"leg": 3}),
    "keep-an-encoder": ("train", {"encoder": HASH}),
    "another-task": ("train", {"task": 1}),
    "sealed": ("train", {"sealed": True}),
    "members": ("train", {"members": ["linz key"], "members_hash": HASH}),
    "test-early-for-the-last-time": ("evaluate", {"final": True}),
    "test-all-together": ("evaluate", {"ensemble": True}),
    "test-before-the-start": ("evaluate", {"round": 0}),
    "prepare-in-a-round": ("query.prepare", {"round": 1}),
    "prepare-its-own-start": ("query.prepare", {"own_start": True}),
    "prepare-another-learner": ("query.prepare", {"learner": "fedbn"}),
    "train-at-preparation": ("query.prepare", {"epochs": 1}),
}


def message_of(verb, content=(), ttl=60.0, **order):
    """One with an order that a run by `rwt` gives, but for these changes."""
    trains, tests = verb.startswith("train"), verb == "evaluate"
    usual = {
        "round": int(trains or tests),
        "hop": int(trains),
        "hospital": "graz",
        "learner": "plain",
    }
    usual |= {"classes": ["a", "b"], "run": "1", "epochs": int(trains)}
    asked = to_record(Order(**{**usual, **order}))
    return Message(RecordDict({**dict(content), "order": asked}), 100, verb, ttl=ttl)


def ask(place, *words, **order):
    """What a hospital answers to such a message."""
    return app(message_of(*words, **order), place)


def last_failure(folder):
    *_, line = read(path_of("graz", folder / "store"))
    return line.entry["failure"]


@pytest.fixture
def place(tmp_path):
    """A hospital whose policy allows `rwt` alone, and that has joined a run."""
    place = deployed(tmp_path, **RWT)
    policy = tmp_path / "policy.toml"
    policy.write_text(f"{policy.read_text('utf-8')}\nruns.strategies = ['rwt']", "utf-8")
    assert not ask(place, "query.enrol", classes=[], code=code_hash()).has_error()
    return place


def test_a_hospital_that_was_not_asked_to_enrol_builds_no_network_that_is_too_large(
    tmp_path, monkeypatch
):
    place = deployed(tmp_path, **{**RWT, "mlp__hidden": "60000,60000"})  # 14 GB
    # It is refused before a pass through it.
    monkeypatch.setattr("client_app.authority.limits.activations", None)
    answer = ask(place, "query.prepare")
    assert answer.error.code == Failure.POLICY
    assert "models.max-megabytes" in last_failure(tmp_path)["rule"]


def test_the_orders_of_the_run_itself_are_carried_out(place):
    prepared = ask(place, "query.prepare")
    assert not prepared.has_error(), prepared.error
    trained = ask(place, "train", parcel_in(prepared.content))
    assert not trained.has_error(), trained.error


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "changes"), OTHER_THINGS.values(), ids=OTHER_THINGS)
def test_an_order_for_another_thing_than_the_run_is_refused(
    verb, changes, place, tmp_path, monkeypatch
):
    prepared = ask(place, "query.prepare").content

    def never(*_, **__):
        raise AssertionError("The hospital has begun to do it.")

    monkeypatch.setattr(buffer, "make_buffer", never)
    monkeypatch.setattr("client_app.visit.train", never)
    monkeypatch.setattr(request, "run_folder", never)  # nothing is written or counted, either
    answer = ask(place, verb, parcel_in(prepared), **changes)
    assert answer.error.code == Failure.PARCEL
    failure = last_failure(tmp_path)
    assert failure["class"] == "parcel"
    assert any(field in failure["reason"] for field in changes or ["learner"])


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["fedspace", "fedbn", "derpp", "rehearsal", "x", "plain2"])
@pytest.mark.parametrize("strategy", ["rwt", "cwt", "feder", "fedavg"])
def test_no_run_has_the_learner_of_another_method(strategy, learner, tmp_path):
    place = deployed(tmp_path, **{**RWT, "strategy": strategy})
    assert ask(place, "train", learner=learner).error.code == Failure.PARCEL


def test_an_archive_is_asked_of_no_learner_that_has_none(tmp_path):
    for strategy in ("rwt", "feder", "fedavg", "centralized"):
        place = deployed(tmp_path, **{**RWT, "strategy": strategy})
        answer = ask(place, "train", learner="plain", images="public")
        assert answer.error.code == Failure.PARCEL


@pytest.mark.parametrize("more", [[str(number) for number in range(999)], ["c" * 101]])
def test_an_order_names_no_more_classes_than_cards_can(more, place):
    """The details of a model with 1,503 classes took 36 s, beyond every time limit."""
    answer = ask(place, "query.prepare", classes=["a", "b", *more])
    assert answer.error.code == Failure.PARCEL
    assert "'classes' of the order" in answer.error.reason
    assert not ask(place, "query.prepare", classes=["a", "b", *more[1:]]).has_error()


@pytest.mark.parametrize("ttl", [1e9, math.inf, math.nan])
@pytest.mark.parametrize(("verb", "limit"), [("query.prepare", 40.0), ("train", 30.0)])
def test_a_message_keeps_the_machine_busy_no_longer_than_the_run_says(verb, limit, ttl, tmp_path):
    place = deployed(tmp_path, **RWT, hop_timeout=30.0, prepare_timeout=40.0)
    clock, message = request.Clock(ttl), message_of(verb, ttl=ttl)
    request.Request.open(message, place, clock)
    assert clock.deadline - time.monotonic() == pytest.approx(limit, abs=20)


def test_a_run_starts_no_more_threads_than_a_hospital_has_cores(tmp_path):
    place = deployed(tmp_path, **RWT, cpu_threads=1024)
    request.Request.open(message_of("query.prepare"), place, request.Clock(60.0))
    assert torch.get_num_threads() <= (os.cpu_count() or 1)


FORGED = "x\nerror: forged\x1b[2K\r\u2028error: forged\x85error: forged"


def forge(value):
    """A value of the same kind, with lines of its own; None for a number."""
    return FORGED if isinstance(value, str) else [FORGED] if isinstance(value, list) else None


def test_no_text_of_a_message_writes_a_line_of_its_own_into_the_log(place, capsys):
    parcel = parcel_in(ask(place, "query.prepare").content)
    label, arrays, config = parcel["manifest"], parcel.array_records["model"], place.run_config
    model = ArrayRecord({**arrays, FORGED: next(iter(arrays.values()))})
    joins = {"run": "2", "classes": [], "code": code_hash()}
    asked = []
    for name, value in vars(Order(1, 1, "graz", ["a"], "plain", "1")).items():
        if wrong := forge(value):
            asked += [(verb, parcel, {name: wrong}) for verb in ("query.enrol", "train")]
    asked += [("train", parcel, {"replay": [f"graz={FORGED}"]})]
    labels: list[dict[str, Any]]
    labels = [{**label, name: forge(value)} for name, value in label.items() if forge(value)]
    for each in (*labels, {**label, FORGED: 1}):
        asked += [("train", RecordDict({**parcel, "manifest": ConfigRecord(each)}), {})]
    for verb in ("train", "evaluate"):
        asked += [(verb, RecordDict({**parcel, FORGED: parcel["model"]}), {})]
        asked += [(verb, RecordDict({**parcel, "model": model}), {})]
        content = RecordDict({f"{FORGED}/manifest": label, f"{FORGED}/model": model})
        asked += [(verb, content, {})]
    answers = [ask(place, verb, content, **order) for verb, content, order in asked]
    for key in [*(key for key, value in config.items() if forge(value)), FORGED]:
        place.run_config = {**config, key: FORGED}
        answers.append(ask(place, "query.enrol", **joins))

    assert sum(answer.has_error() for answer in answers) > len(answers) * 0.8
    said = capsys.readouterr().out
    assert said.count("forged") > 20
    assert said.replace("\n", "").isprintable()
    assert not [line for line in said.splitlines() if line.startswith("error: forged")]


SIMULATED = [{"num-partitions": 2}, {"partition-id": 0}, {"partition-id": 0, "num-partitions": 2}]


@pytest.mark.parametrize("keys", SIMULATED, ids=repr)
def test_no_node_config_makes_a_hospital_a_simulated_one(keys, place, tmp_path, monkeypatch):
    """That is said by whoever starts its process: the engine of a simulation, or `workers`."""
    monkeypatch.setattr(node_config, "_simulates", False)
    place.node_config |= keys
    assert not node_config.is_simulated(place.node_config)
    for verb, images in (("query.prepare", "everyone"), ("train", "everyone"), ("train", "own")):
        assert ask(place, verb, images=images).has_error()
    assert last_failure(tmp_path)["class"] == "settings"


@pytest.mark.parametrize("name", ["FEDHANDOFF_RESIDENT", "FEDHANDOFF_SIMULATED", "RAY_ADDRESS"])
def test_no_variable_turns_the_ledger_off(name, place, tmp_path, monkeypatch):
    monkeypatch.setattr(node_config, "_simulates", False)
    monkeypatch.setenv(name, "1")
    before = len([*read(path_of("graz", tmp_path / "store"))])
    assert not ask(place, "query.prepare").has_error()
    assert len([*read(path_of("graz", tmp_path / "store"))]) == before + 1
