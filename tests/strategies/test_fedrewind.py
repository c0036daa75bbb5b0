"""FedRewind's three legs, with hospitals that count visits instead of training."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from strategies.fedavg import FedAvg
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.parcel import check_parcel
from strategies.protocol.records import from_record
from strategies.protocol.settings import SettingsError
from strategies.registry import strategy_of
from tests.fakes import CountingHospital, failing, federation, parcels_of, settings
from tests.strategies.test_engine import run, run_unreliably, visits_of

BASES = ["cwt", "rwt", "fedavg"]


def rewound(base, hospitals=4, handlers=None, **overrides):
    chosen = {"rewind__base": base, "train__epochs": 10, "num_server_rounds": 3}
    return run(handlers or federation(hospitals), "fedrewind", **{**chosen, **overrides})


def visits_in(grid, round_):
    """Of each hop of a round: verb, hospital and epochs of its visits."""
    names = {100 + k: f"h{k}" for k in range(10)}
    found: dict[int, list[tuple[str, str, int]]] = {}
    for message in grid.sent:
        order = from_record(Order, message.content.config_records["order"])
        if order.round == round_ and message.metadata.message_type.startswith("train"):
            place = names[message.metadata.dst_node_id]
            visit = (message.metadata.message_type, place, order.epochs)
            found.setdefault(order.hop, []).append(visit)
    return found


def test_a_model_goes_to_the_next_hospital_back_and_there_again():
    """E = 10, λ = 0.1 on the ring of h0, h1, h2: 8 epochs, 1 where it came from, 1."""
    state, ledger, grid = rewound("cwt", 3, num_server_rounds=2)
    assert check_parcel(parcels_of(state)["h0"]).visited == ["h0", "h1", "h0", "h1"]
    assert check_parcel(parcels_of(state)["h2"]).visited == ["h2", "h0", "h2", "h0"]
    told = [(e.round, e.hop, e.verb, e.epochs) for e in ledger.events if e.lineage == "h0"]
    assert [each for each in told if each[2].startswith("train")] == [
        (1, 1, "train", 10),
        (2, 1, "train", 8),
        (2, 2, "train.rewind", 1),
        (2, 3, "train", 1),
    ]
    legs = sorted(visits_in(grid, 2)[2])
    assert legs == [("train.rewind", f"h{k}", 1) for k in range(3)]


def test_the_rewind_leg_is_a_message_with_the_whole_model():
    _, ledger, _ = rewound("cwt", 3)
    legs = ledger.of("train.rewind")
    assert len(legs) == 2 * 3
    assert all(leg.bytes_sent == leg.bytes_received > 0 for leg in legs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epochs", "fraction", "shares"),
    [(3, 0.1, (1, 1, 1)), (10, 0.1, (8, 1, 1)), (10, 0.25, (4, 3, 3)), (100, 0.07, (86, 7, 7))],
)
@pytest.mark.parametrize("base", BASES)
def test_epochs_are_shared_out_by_the_ceiling_rule(base, epochs, fraction, shares):
    _, _, grid = rewound(
        base, 2, train__epochs=epochs, rewind__fraction=fraction, num_server_rounds=2
    )
    legs = visits_in(grid, 2)
    assert tuple(legs[hop][0][2] for hop in (1, 2, 3)) == shares


@pytest.mark.parametrize(
    ("epochs", "fraction", "legs", "enough", "lower"),
    [
        (2, 0.1, "1 epoch", 3, "rewind.fraction to 0"),
        (1, 0.4, "1 epoch", 10, "rewind.fraction to 0"),
        (4, 0.3, "2 epochs", 5, "lower rewind.fraction"),
        (6, 0.4, "3 epochs", 10, "lower rewind.fraction"),
    ],
)
def test_a_fraction_that_leaves_no_epochs_is_refused(epochs, fraction, legs, enough, lower):
    """Each cure that it names is one, also with more epochs than it asks for."""

    def method(total, share=fraction):
        chosen = {"train__epochs": total, "rewind__fraction": share}
        return strategy_of(settings(strategy="fedrewind", **chosen))

    with pytest.raises(SettingsError) as refusal:
        method(epochs)
    assert str(refusal.value) == (
        f"With train.epochs = {epochs}, two rewind legs of {legs} (rewind.fraction = {fraction}) "
        f"leave no epoch for the visit: set train.epochs to {enough} or more, or {lower}."
    )
    for total in range(enough, 4 * enough):
        method(total)
    method(epochs, 1e-3 if "lower" in lower else 0.0)
    strategy_of(settings(strategy="cwt", train__epochs=epochs, rewind__fraction=fraction))


@pytest.mark.slow
@pytest.mark.parametrize("base", BASES)
def test_without_a_fraction_it_is_the_base(base):
    plain, told, _ = run(federation(4), base, train__epochs=10)
    state, told_too, _ = rewound(base, rewind__fraction=0.0, num_server_rounds=4)
    assert told.events
    assert [(e.verb, e.hop, e.hospital, e.lineage, e.epochs) for e in told.events] == [
        (e.verb, e.hop, e.hospital, e.lineage, e.epochs) for e in told_too.events
    ]
    assert parcels_of(state) == parcels_of(plain)


@pytest.mark.slow
def test_rwt_goes_where_rwt_goes():
    routes = []
    for strategy in ("rwt", "fedrewind"):
        _, ledger, _ = run(federation(5), strategy, rewind__base="rwt", num_server_rounds=6)
        routes.append([(e.round, e.hospital, e.lineage) for e in ledger.of("hand-off")])
    assert sorted(routes[0]) == sorted(routes[1])


@pytest.mark.slow
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("partner", ["previous", "random"])
def test_nobody_rewinds_at_the_hospital_where_the_model_is(base, partner):
    state, ledger, _ = rewound(base, 5, rewind__partner=partner, num_server_rounds=8)
    for round_ in range(2, 9):
        legs = [e for e in ledger.events if e.round == round_ and e.verb.startswith("train")]
        assert len(legs) == 3 * 5
        assert all(sum(leg.hospital == f"h{k}" for leg in legs) == 3 for k in range(5))
    for parcel in parcels_of(state).values():
        visited = check_parcel(parcel).visited[1:] if base != "fedavg" else []
        for first, away, again in zip(*[iter(visited)] * 3, strict=True):
            assert first == again != away


@pytest.mark.slow
def test_random_partners_change_and_are_seldom_the_previous():
    """With 8 hospitals, 1 in 7 is the one where the model was before."""
    state, _, _ = rewound("cwt", 8, rewind__partner="random", num_server_rounds=20)
    previous = [
        visited[k + 1] == visited[k - 1]
        for visited in (check_parcel(parcel).visited for parcel in parcels_of(state).values())
        for k in range(1, len(visited), 3)
    ]
    assert 0 < sum(previous) < 0.3 * len(previous)


def test_with_fedavg_each_hospitals_copy_rewinds_elsewhere_before_the_average():
    """Copies of 3 visits each in round 2, weighted by the images of the hospital they return to."""
    state, _, grid = rewound("fedavg", 4, num_server_rounds=2)
    assert visits_of(parcels_of(state)["global"]) == 1 + 3
    sent = visits_in(grid, 2)
    assert {hop: sorted(place for _, place, _ in legs) for hop, legs in sent.items()} == {
        hop: ["h0", "h1", "h2", "h3"] for hop in (1, 2, 3)
    }
    copies = [
        check_parcel(message.content).visited
        for message in grid.sent
        if from_record(Order, message.content.config_records["order"]).hop == 3
        and message.metadata.message_type == "train"
    ]
    assert all(first != away for first, away in copies)


@pytest.fixture
def counted(monkeypatch):
    """The images with which each copy counts in an average, by round and hospital."""
    found: dict[int, dict[str, float]] = {}
    merge = FedAvg.merge

    def counting(self, state, trained):
        found[state.round] = {each.place: each.num_examples for each in trained}
        return merge(self, state, trained)

    monkeypatch.setattr(FedAvg, "merge", counting)
    return found


def averaged(base, fails):
    """Two rounds in which h0, h1 and h2 have 1, 10 and 100 images.

    `fails` has the failure of a hospital in an order, or None.
    """

    class Weighed(CountingHospital):
        def train(self, message, order):
            code = fails(order, check_parcel(message.content).visited)
            return failing(message, code) if code else super().train(message, order)

    handlers: dict[int, Any] = {100 + k: Weighed(f"h{k}", num_examples=10.0**k) for k in range(3)}
    return rewound(base, handlers=handlers, num_server_rounds=2)


AVERAGES = ["fedavg", "fedspace"]


@pytest.mark.parametrize("base", AVERAGES)
def test_a_copy_that_was_not_returned_counts_with_its_own_hospitals_images(base, counted):
    """In round 2 h0 fails at its third leg: the copy that another hospital rewound stays."""

    def fails(order, visited):
        last = (order.hospital, order.round, order.leg) == ("h0", 2, 3)
        return Failure.CRASHED if last else None

    averaged(base, fails)
    assert counted[2] == {"h0": 1, "h1": 10, "h2": 100}


@pytest.mark.parametrize("base", AVERAGES)
@pytest.mark.parametrize("legs", [(1,), (1, 3), (1, 2, 3)])
def test_a_copy_that_its_own_hospital_has_not_trained_counts_for_nobody(base, legs, counted):
    """h0 fails in round 2. Its copy is the average; no other hospital trains it."""

    def fails(order, visited):
        here = order.hospital == "h0" and order.round == 2 and order.leg in legs
        return Failure.CRASHED if here else None

    _, _, grid = averaged(base, fails)
    assert counted[2] == {"h1": 10, "h2": 100}
    assert [len(visits_in(grid, 2)[hop]) for hop in (1, 2, 3)] == [3, 2, 2]


@pytest.mark.parametrize("base", AVERAGES)
def test_a_copy_whose_first_leg_is_undone_counts_for_nobody(base, counted):
    """The partner refuses what h0 made of the average, and then gets the average itself."""

    def fails(order, visited):
        return Failure.USELESS if order.leg == 2 and visited == ["h0"] else None

    _, ledger, _ = averaged(base, fails)
    assert [event.hospital for event in ledger.of("undo")] == ["h0"]
    assert counted[2] == {"h1": 10, "h2": 100}


@pytest.mark.parametrize("base", AVERAGES)
def test_without_a_trained_copy_the_average_stays(base, counted):
    state, _, _ = averaged(base, lambda order, _: Failure.CRASHED if order.round == 2 else None)
    assert [*counted] == [1]
    assert state.models["global"].round == 1


def test_hospitals_of_fedavg_test_once_a_round_before_the_average():
    _, _, grid = rewound("fedavg", 3, num_server_rounds=2)
    orders = [
        from_record(Order, m.content.config_records["order"])
        for m in grid.sent
        if m.metadata.message_type.startswith("train")
    ]
    assert {(order.round, order.hop) for order in orders if order.test} == {(1, 1), (2, 3)}


@pytest.mark.slow
@given(
    base=st.sampled_from(BASES[:2]),
    partner=st.sampled_from(["previous", "random"]),
    count=st.integers(1, 5),
    seed=st.integers(0, 2**32),
    failure_share=st.floats(0, 1),
)
@hypothesis_settings(max_examples=40, deadline=None)
def test_no_parcel_is_lost_or_doubled(base, partner, count, seed, failure_share):
    state, ledger = run_unreliably(
        "fedrewind", count, seed, failure_share, rewind__base=base, rewind__partner=partner
    )
    assert sorted(held.lineage for held in state.models.values()) == [f"h{k}" for k in range(count)]
    for lineage, parcel in parcels_of(state).items():
        good = [
            e.hospital
            for e in ledger.events
            if e.verb.startswith("train") and e.lineage == lineage and e.outcome == "ok"
        ]
        assert visits_of(parcel) == len(good)
        assert check_parcel(parcel).visited == good


def test_a_model_whose_rewind_leg_fails_is_trained_on_as_it_is():
    def unwilling(message):
        if message.metadata.message_type == "train.rewind":
            return failing(message)
        return willing(message)

    handlers = federation(3)
    willing, handlers[100] = handlers[100], unwilling
    state, ledger, _ = rewound("cwt", handlers=handlers, num_server_rounds=2)
    assert check_parcel(parcels_of(state)["h0"]).visited == ["h0", "h1", "h1"]
    assert check_parcel(parcels_of(state)["h1"]).visited == ["h1", "h2", "h1", "h2"]
    (failure,) = [event for event in ledger.events if event.outcome != "ok"]
    assert (failure.verb, failure.hospital, failure.lineage) == ("train.rewind", "h0", "h0")
