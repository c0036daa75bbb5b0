"""The serial hand-off, with hospitals that count visits instead of training."""

import re

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from strategies.protocol.parcel import bundle, check_parcel, pack, parcel_in
from strategies.protocol.records import ParcelError
from strategies.registry import strategy_of
from tests.fakes import (
    CountingHospital,
    FakeGrid,
    Ledger,
    failing,
    federation,
    go,
    parcels_of,
    settings,
)
from tests.strategies.test_engine import run_unreliably, visits_of


def run(handlers, ledger=None, grid=None, strategy="cwt-serial", **overrides):
    grid, ledger = grid or FakeGrid(handlers), ledger or Ledger()
    defaults = {"num_server_rounds": 3, "min_hospitals": 1, "strategy": strategy}
    return go(settings(**{**defaults, **overrides}), grid, ledger), ledger, grid


def visits(ledger):
    return [(e.round, e.hop, e.hospital) for e in ledger.of("train") if e.outcome == "ok"]


class At(Ledger):
    """Calls a function at the end of a round."""

    def __init__(self, **at):
        super().__init__()
        self.at = at

    def round_finished(self, server_round):
        super().round_finished(server_round)
        self.at.get(f"round_{server_round}", lambda: None)()


@pytest.mark.parametrize("strategy", ["cwt-serial", "cwc"])
def test_one_model_visits_all_in_their_order(strategy):
    state, ledger, _ = run(federation(3), strategy=strategy)
    assert visits(ledger) == [(r, k + 1, f"h{k}") for r in (1, 2, 3) for k in range(3)]
    (parcel,) = parcels_of(state).values()
    label = check_parcel(parcel)
    assert (label.lineage, label.visited) == ("h0", ["h0", "h1", "h2"] * 3)
    assert ledger.rounds == [1, 2, 3]


def test_the_model_is_tested_after_every_visit_at_every_hospital():
    _, ledger, grid = run(federation(3), num_server_rounds=2)
    tested = sorted((e.round, e.hop, e.epochs, e.hospital) for e in ledger.of("evaluate"))
    epochs = settings().train.epochs
    assert tested == [
        (r, hop, epochs, f"h{k}") for r in (1, 2) for hop in (1, 2, 3) for k in range(3)
    ]
    messages = [m for m in grid.sent if m.metadata.message_type == "evaluate"]
    assert len(messages) == 2 * 3  # one for all models of a round


def test_every_hospital_holds_the_one_model():
    _, ledger, _ = run(federation(3), num_server_rounds=1)
    assert {e.hospital: e.lineage for e in ledger.of("hand-off")} == dict.fromkeys(
        ["h0", "h1", "h2"], "h0"
    )


def test_without_cross_evaluation_the_last_model_of_a_round_is_tested():
    _, ledger, _ = run(federation(3), num_server_rounds=1, evaluate__cross=False)
    assert sorted((e.hop, e.hospital) for e in ledger.of("evaluate")) == [
        (3, "h0"),
        (3, "h1"),
        (3, "h2"),
    ]


@pytest.mark.parametrize("away", ["h0", "h1", "h2"])
def test_a_hospital_that_is_away_is_passed_over_until_it_is_back(away):
    handlers = federation(3)
    grid = FakeGrid(handlers)
    node = 100 + int(away[1])
    ledger = At(
        round_1=lambda: grid.handlers.pop(node),
        round_2=lambda: grid.handlers.update({200: handlers[node]}),
    )
    state, _, _ = run(handlers, ledger, grid)
    others = [name for name in ("h0", "h1", "h2") if name != away]
    (parcel,) = parcels_of(state).values()
    assert check_parcel(parcel).visited == ["h0", "h1", "h2", *others, "h0", "h1", "h2"]
    assert [(e.round, e.hospital, e.outcome) for e in ledger.of("train") if e.outcome != "ok"] == [
        (2, away, "gone")
    ]


def test_the_model_goes_on_from_its_last_good_copy():
    class Failing(CountingHospital):
        def train(self, message, order):
            return failing(message) if order.round == 2 else super().train(message, order)

    state, ledger, _ = run(federation(3, h1=Failing("h1")))
    (parcel,) = parcels_of(state).values()
    assert visits_of(parcel) == 8.0
    assert (2, 2, "h1") not in visits(ledger)
    tested = {e.hop for e in ledger.of("evaluate") if e.round == 2}
    assert tested == {1, 3}


def test_a_round_that_all_miss_is_tested_as_it_was():
    class Failing(CountingHospital):
        def train(self, message, order):
            return failing(message) if order.round == 2 else super().train(message, order)

    _, ledger, _ = run({100 + k: Failing(f"h{k}") for k in range(2)})
    assert {(e.hop, e.hospital) for e in ledger.of("evaluate") if e.round == 2} == {
        (2, "h0"),
        (2, "h1"),
    }


def test_a_hospital_that_joins_late_is_visited_from_the_next_round_on():
    """In round 2 of 3; a round has four hops from then on."""
    handlers = federation(3)
    grid = FakeGrid(handlers)
    ledger = At(round_1=lambda: grid.handlers.update({103: CountingHospital("h3")}))
    state, _, _ = run(handlers, ledger, grid)
    (parcel,) = parcels_of(state).values()
    assert check_parcel(parcel).visited == ["h0", "h1", "h2", *["h0", "h1", "h2", "h3"] * 2]
    assert ledger.rounds == [1, 2, 3]


@pytest.mark.slow
@given(count=st.integers(1, 5), seed=st.integers(0, 2**32), failure_share=st.floats(0, 1))
@hypothesis_settings(max_examples=40, deadline=None)
def test_the_model_is_neither_lost_nor_doubled_whatever_fails(count, seed, failure_share):
    state, ledger = run_unreliably("cwt-serial", count, seed, failure_share)
    (parcel,) = parcels_of(state).values()
    good = [event.hospital for event in ledger.of("train") if event.outcome == "ok"]
    assert check_parcel(parcel).visited == good
    assert visits_of(parcel) == len(good)
    assert len(ledger.of("train")) == 4 * count


class WithSnapshots(CountingHospital):
    """Its models after each epoch but the last are those that it received."""

    def train(self, message, order):
        reply = super().train(message, order)
        if reply is None or not order.snapshots:
            return reply
        label = check_parcel(parcel_in(message.content)).advance(order)
        copies = {
            f"epoch-{epoch}": self.parcel(float(epoch), self.after(label, epoch))
            for epoch in range(1, order.epochs)
        }
        content = {**reply.content, **bundle(copies)}
        return Message(RecordDict(content), reply_to=message)

    def after(self, label, epoch):
        return type(label)(**{**vars(label), "epochs": epoch})


def test_the_model_is_tested_after_every_epoch_where_that_is_asked_for():
    handlers = {100 + k: WithSnapshots(f"h{k}") for k in range(2)}
    asked = {"num_server_rounds": 1, "train__epochs": 3, "evaluate__epochs": True}
    _, ledger, _ = run(handlers, **asked)
    assert sorted((e.hop, e.epochs) for e in ledger.of("evaluate") if e.hospital == "h0") == [
        (hop, epochs) for hop in (1, 2) for epochs in (1, 2, 3)
    ]
    assert [event.epochs for event in ledger.of("train")] == [3, 3]


def test_copies_that_are_not_to_be_tested_are_not_asked_for():
    handlers = {100 + k: WithSnapshots(f"h{k}") for k in range(2)}
    asked = {"train__epochs": 3, "evaluate__epochs": True, "evaluate__every": 3}
    _, ledger, grid = run(handlers, **asked)
    orders = [m.content["order"] for m in grid.sent if m.metadata.message_type == "train"]
    assert [order["snapshots"] for order in orders] == [False] * 4 + [True] * 2
    assert {e.round for e in ledger.of("evaluate")} == {3}


class AddsArray(WithSnapshots):
    def parcel(self, visits, label):
        parcel = super().parcel(visits, label)
        if label.round == 1 and label.epochs == 1:  # the copy
            model = ArrayRecord({**parcel["model"], "extra": parcel["model"]["visits"]})
            return pack({"model": model}, label)
        return parcel


class SaysMoreEpochs(WithSnapshots):
    def after(self, label, epoch):
        return super().after(label, epoch + 5)


class SendsNoCopies(CountingHospital):
    pass


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (AddsArray, "other arrays than it left with: extra"),
        (SaysMoreEpochs, "not that of the visit that was ordered"),
        (SendsNoCopies, r"Expected the copies \['epoch-1'\]; found \[\]"),
    ],
)
def test_wrong_copies_are_refused(kind, words):
    asked = {"num_server_rounds": 1, "train__epochs": 2, "evaluate__epochs": True}
    handlers = {100: WithSnapshots("h0"), 101: kind("h1")}
    _, ledger, _ = run(handlers, **asked)
    first, second = ledger.of("train")
    assert (first.outcome, second.outcome) == ("ok", "parcel")
    assert re.search(words, second.reason)


LAYOUT = {
    "body.weight": ("float32", (2, 3)),
    "bn.running_var": ("float32", (2,)),
    "token": ("float32", (2,)),
}
MATRIX = {"body.weight": np.ones((2, 3), "f4"), "token": np.ones(2, "f4")}


def check_matrix(arrays):
    record = ArrayRecord({name: Array(each) for name, each in arrays.items()})
    strategy_of(settings(strategy="cwc")).check_memory(record, LAYOUT)


@pytest.mark.parametrize(
    "changes",
    [
        {"body.weight": np.ones((3, 2), "f4")},
        {"body.weight": np.ones((2, 3))},
        {"body.weight": -np.ones((2, 3), "f4")},
        {"other": np.ones(1, "f4")},
    ],
)
def test_a_memory_that_is_no_consolidation_matrix_is_refused_by_the_server(changes):
    """Else it would stay the last good copy, and no later hospital could begin its visit."""
    check_matrix(MATRIX)
    with pytest.raises(ParcelError, match="not a consolidation matrix"):
        check_matrix(MATRIX | changes)
    with pytest.raises(ParcelError, match="not a consolidation matrix"):
        check_matrix({"token": MATRIX["token"]})
