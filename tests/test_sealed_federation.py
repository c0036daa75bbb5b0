"""Federations whose server cannot read what it relays: real hospitals behind a fake grid."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict

from client_app import parcels, visit
from client_app.app import app as hospital_app
from client_app.authority.identity import Identity
from client_app.authority.judge import Judge
from client_app.authority.members import member_line, read_members
from client_app.authority.sealing import Seal
from learning.packing import pack_network
from strategies.protocol.may_leave import Failure
from strategies.protocol.parcel import Manifest, check_parcel, is_sealed, pack, parcel_in
from strategies.protocol.records import UselessError, from_record
from strategies.protocol.settings import Settings, SettingsError
from tests.fakes import FakeGrid, Ledger, context, go, parcels_of, run_config

NAMES = ("hospital-0", "hospital-1", "hospital-2")


class Relay(FakeGrid):
    """A grid that may change what it relays: `change` is given a message, and gives another."""

    change = staticmethod(lambda message: message)

    def push_messages(self, messages):
        return super().push_messages([self.change(message) for message in messages])


def federate(tmp_path, strategy="rwt", change=None, members=None, **overrides):
    """Three hospitals; `members` says what each has in its node-config."""
    defaults = {"num_server_rounds": 3, "train__epochs": 3, "model": "mlp", "mlp__hidden": "16"}
    config = run_config(strategy=strategy, **{"sealed": True, **defaults, **overrides})

    def hospital(index):
        trusted = "first-use" if members is None else members[index]
        keys = {"members": trusted} if trusted else {}
        place = context(index, 3, config, **{"store-dir": str(tmp_path), **keys})
        return lambda message: hospital_app(message, place)

    ledger, grid = Ledger(), Relay({100 + index: hospital(index) for index in range(3)})
    if change:
        grid.change = change
    return go(Settings.parse(config), grid, ledger), ledger, grid


def opened(state, tmp_path, sealed):
    """The models at the end of a run, as a hospital reads them."""
    store = tmp_path / "hospital-0"
    seal = Seal(
        Identity.load("hospital-0", store / "identity"),
        read_members(store / "members"),
        state.run,
    )
    return {
        name: seal.open(parcel, check_parcel(parcel)) if sealed else parcel
        for name, parcel in parcels_of(state).items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        *(("rwt", {}), ("cwc", {}), ("fedrewind", {})),
        ("cwc", {"train__optimizer_state": "travels"}),
        ("rwt", {"asynchronous": True, "async__seconds": "1,2,7"}),
    ],
)
def test_sealed_models_are_those_that_an_open_run_comes_to(strategy, settings, tmp_path):
    models = []
    for sealed, members in ((True, None), (False, [""] * 3)):
        chosen = {"sealed": sealed, **settings}
        state, ledger, grid = federate(tmp_path, strategy, members=members, **chosen)
        assert {event.outcome for event in ledger.events} == {"ok"}
        assert all(
            is_sealed(record) == sealed
            for message in grid.sent
            for record in message.content.array_records.values()
        )
        models.append(
            {
                (lineage, name, entry): array.numpy()
                for lineage, parcel in opened(state, tmp_path, sealed).items()
                for name, record in parcel.array_records.items()
                for entry, array in record.items()
            }
        )
    assert models[0].keys() == models[1].keys()
    assert all(np.array_equal(models[0][key], models[1][key]) for key in models[0])


@pytest.mark.slow
def test_members_of_a_file_seal_for_one_another(tmp_path):
    identities = [Identity.load(name, tmp_path / name / "identity") for name in NAMES]
    path = tmp_path / "consortium"
    path.write_text("".join(member_line(each.name, each.member) for each in identities))
    _, ledger, _ = federate(tmp_path, members=[str(path)] * 3)
    assert {event.outcome for event in ledger.events} == {"ok"}


@pytest.mark.slow
def test_a_hospital_is_sent_the_list_of_members_once(tmp_path):
    _, ledger, grid = federate(tmp_path)
    assert {event.outcome for event in ledger.events} == {"ok"}
    orders = [m.content["order"] for m in grid.sent if m.metadata.message_type != "query.enrol"]
    assert len({order["members_hash"] for order in orders}) == 1
    sent = Counter(order["hospital"] for order in orders if order["members"])
    assert sent == dict.fromkeys(NAMES, 1)
    assert len(orders) > len(NAMES)


def failures(ledger, verb="train"):
    return {(e.hospital, e.outcome, e.reason) for e in ledger.of(verb) if e.outcome != "ok"}


@pytest.mark.slow
def test_a_hospital_that_is_no_member_reads_nothing_and_the_run_goes_on(tmp_path):
    identities = [Identity.load(name, tmp_path / name / "identity") for name in NAMES]
    path = tmp_path / "two"
    path.write_text("".join(member_line(each.name, each.member) for each in identities[:2]))
    state, ledger, _ = federate(tmp_path, "cwt", members=[str(path)] * 3, num_server_rounds=4)
    reasons = {(hospital, reason) for hospital, _, reason in failures(ledger)}
    assert (
        "hospital-2",
        "A record of 'hospital-1' is not sealed for 'hospital-2': is it among the members there?",
    ) in reasons
    assert any("sealed by 'hospital-2', who is not a member" in reason for _, reason in reasons)
    assert any(event.outcome == "ok" and event.round == 4 for event in ledger.of("train"))
    assert len(parcels_of(state)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"asynchronous": True, "async__seconds": "1,2,7"}])
def test_sealed_garbage_is_refused_and_undone(settings, tmp_path, monkeypatch):
    """The server cannot open it; whoever receives it can, and names the hospital that sent it."""
    pack_it = parcels.pack

    def spoilt(request, network, *rest):
        if request.hospital.name == "hospital-1":
            with torch.no_grad():
                for weights in network.parameters():
                    weights *= 5e4
        return pack_it(request, network, *rest)

    monkeypatch.setattr(visit, "pack", spoilt)
    state, ledger, _ = federate(tmp_path, **settings)
    failed = [event for event in ledger.events if event.outcome != "ok"]
    others = {(event.hospital, event.verb) for event in failed if event.verb != "evaluate"}
    assert others == {("hospital-1", "undo")}
    for parcel in opened(state, tmp_path, True).values():
        assert all(abs(each.numpy()).max() < 100 for each in parcel["model"].values())


def wider(record):
    name = next(iter(record))
    record[name] = Array(record[name].numpy().astype("f8"))


def more(record):
    record["more"] = Array(np.zeros(1, "f4"))


def less(record):
    del record[next(iter(record))]


def negative(record):
    name = next(iter(record))
    record[name] = Array(-1 - record[name].numpy())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sealed", "learner", "record", "change"),
    [
        *((True, "cwc", "model", change) for change in (wider, more, less)),
        *((True, "cwc", "memory", change) for change in (negative, more, less)),
        (True, "", "optimizer", more),
        *((sealed, name, "memory", more) for sealed in (1, 0) for name in ("icarl", "mah", "twf")),
    ],
)
def test_content_that_fits_no_network_is_undone(
    sealed, learner, record, change, tmp_path, monkeypatch
):
    """The server cannot judge it. The one lineage goes on, and its maker is named."""

    def spoilt(network, label, *rest):
        parcel = pack_network(network, label, *rest)
        records = parcel.array_records
        if label.visited[-1:] == ["hospital-1"] and label.round == 1:
            change(records[record])
        return pack(records, label)

    monkeypatch.setattr(parcels, "pack_network", spoilt)
    own = {} if learner in ("", "cwc") else {"learner": learner, "partition": "iid"}
    own |= {"train__optimizer_state": "travels"} if record == "optimizer" else {}
    own |= {"model": "cnn"} if learner == "twf" else {}
    strategy = "cwc" if learner == "cwc" else "cwt-serial"
    own |= {"num_server_rounds": 2, "train__epochs": 1, "evaluate__cross": False}
    members = None if sealed else [""] * 3
    state, ledger, _ = federate(tmp_path, strategy, members=members, sealed=bool(sealed), **own)
    failed = {(event.hospital, event.verb) for event in ledger.events if event.outcome != "ok"}
    (undone,) = ledger.of("undo")
    assert (undone.hospital, undone.round, undone.outcome) == ("hospital-1", 1, "useless")
    assert failed - {(name, "evaluate") for name in NAMES} == {("hospital-1", "undo")}
    (model,) = state.models.values()
    visited = state.shelf.label(model.parcel).visited
    assert visited == ["hospital-0", "hospital-2", *NAMES]


@pytest.mark.slow
def test_a_hospital_that_calls_good_models_useless_undoes_one_visit(tmp_path, monkeypatch):
    """Who has tested an undone model can train and test the copy before it."""

    def lie(request, *rest):
        if request.hospital.name == "hospital-2" and request.order.round == 2:
            raise UselessError("It is of no use.")
        return Judge(request, *rest)

    monkeypatch.setattr("client_app.handlers.Judge", lie)
    _, ledger, _ = federate(tmp_path, num_server_rounds=3)
    assert {outcome for _, outcome, _ in failures(ledger)} <= {"useless"}
    tests = [event for event in ledger.of("evaluate") if event.round == 3]
    assert {event.outcome for event in tests} == {"ok"}
    assert [event.outcome for event in ledger.of("train") if event.round == 3] == ["ok"] * 3


def tampered(message):
    """The first parcel to hospital-1 in round 2, with one bit of its ciphertext changed."""
    if message.metadata.message_type != "train" or message.content["order"]["round"] != 2:
        return message
    if message.content["order"]["hospital"] != "hospital-1":
        return message
    content = message.content
    sealed = content["model"]["sealed"].numpy().copy()
    sealed[-1] ^= 1
    label = from_record(Manifest, content["manifest"])
    changed = pack({"model": ArrayRecord({"sealed": Array(sealed)})}, label)
    return Message(
        RecordDict({**content, **changed}), message.metadata.dst_node_id, "train", ttl=60
    )


@pytest.mark.slow
def test_a_tampered_parcel_is_refused_and_the_run_goes_on(tmp_path):
    _, ledger, _ = federate(tmp_path, change=tampered)
    ((hospital, outcome, reason),) = failures(ledger)
    assert (hospital, outcome) == ("hospital-1", "parcel")
    assert "was changed after it was sealed" in reason
    assert [event.outcome for event in ledger.of("train") if event.round == 3] == ["ok"] * 3


@pytest.mark.slow
def test_an_old_parcel_is_refused(tmp_path):
    """With `standalone` each model comes back to its hospital; in round 3 as it was in round 1."""
    first: dict[str, Any] = {}

    def replayed(message):
        if message.metadata.message_type != "train":
            return message
        order = message.content["order"]
        if order["hospital"] != "hospital-1":
            return message
        if order["round"] == 2:
            first.update(parcel_in(message.content))
        if order["round"] != 4:
            return message
        content = RecordDict({**message.content, **first})
        return Message(content, message.metadata.dst_node_id, "train", ttl=60)

    _, ledger, _ = federate(tmp_path, "standalone", change=replayed, num_server_rounds=4)
    ((hospital, outcome, reason),) = failures(ledger)
    assert (hospital, outcome) == ("hospital-1", "parcel")
    assert "is from round 1, hop 1, but a model from" in reason


@pytest.mark.slow
def test_parcels_of_another_run_are_refused(tmp_path):
    state, _, _ = federate(tmp_path, "standalone", num_server_rounds=1)
    old = parcels_of(state)["hospital-1"]

    def replayed(message):
        if (
            message.metadata.message_type == "train"
            and message.content["order"]["hospital"] == "hospital-1"
        ):
            content = RecordDict({**message.content, **old})
            return Message(content, message.metadata.dst_node_id, "train", ttl=60)
        return message

    config = run_config(
        strategy="standalone", sealed=True, num_server_rounds=1, model="mlp", mlp__hidden="16"
    )

    def hospital(index):
        place = context(index, 3, config, **{"store-dir": str(tmp_path), "members": "first-use"})
        return lambda message: hospital_app(message, place)

    ledger, grid = Ledger(), Relay({100 + index: hospital(index) for index in range(3)})
    grid.change = replayed
    go(Settings.parse(config), grid, ledger)
    ((hospital_name, outcome, reason),) = failures(ledger)
    assert (hospital_name, outcome) == ("hospital-1", "parcel")
    assert "sealed for another run" in reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sealed", "members", "reason"),
    [
        (True, ["first-use", "first-use", ""], "Parcels are sealed in this run"),
        (False, ["", "", "first-use"], "hands on sealed parcels only"),
        (True, ["first-use", "first-use", "/no/such/file"], "file of members cannot be used"),
    ],
)
def test_a_hospital_s_own_node_config_decides(sealed, members, reason, tmp_path):
    state, ledger, _ = federate(tmp_path, sealed=sealed, members=members)
    assert state.hospitals == ["hospital-0", "hospital-1"]
    failed = failures(ledger, "query.enrol")
    assert {outcome for _, outcome, _ in failed} == {Failure.SETTINGS.name.lower()}
    assert all(reason in text for _, _, text in failed)


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "fedbn"])
def test_methods_that_average_refuse_sealed_models(strategy, tmp_path):
    with pytest.raises(SettingsError, match=f"'sealed' is true.* strategy '{strategy}' averages"):
        federate(tmp_path, strategy, model="cnn")
