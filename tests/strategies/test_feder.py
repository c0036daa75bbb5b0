"""Who gets whose model and buffer, with hospitals that count visits instead of training."""

from dataclasses import replace

import pytest

from strategies.engine.strategy import RunError
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.parcel import check_parcel, load, parcel_in, save
from strategies.protocol.records import ParcelError, from_record
from tests.fakes import (
    CountingHospital,
    FakeGrid,
    Ledger,
    Withholding,
    failing,
    federation,
    go,
    parcels_of,
    settings,
)
from tests.strategies import test_engine as engine


def run(handlers, strategy="feder", rounds=6, **overrides):
    return engine.run(handlers, strategy, num_server_rounds=rounds, **overrides)


def visits(grid):
    """Round, hospital, the hospital that the model was at before, and the message."""
    for message in grid.sent:
        if message.metadata.message_type == "train":
            visited = check_parcel(parcel_in(message.content)).visited
            order = message.content["order"]
            yield order["round"], order["hospital"], [None, *visited][-1], message


def test_a_model_comes_with_the_buffer_of_the_hospital_that_it_comes_from():
    """Round 1 is at home, without replay; a ring of four moves every model from then on."""
    handlers = federation(4)
    _, _, grid = run(handlers)
    hospitals = {hospital.name: hospital for hospital in handlers.values()}
    for round_, hospital, source, _ in visits(grid):
        expected = [] if round_ == 1 else [source]
        assert hospitals[hospital].replayed[round_ - 1] == expected
        assert source != hospital


@pytest.mark.slow
def test_rings_are_drawn_anew_and_go_through_all_hospitals():
    _, _, grid = run(federation(5), rounds=12)
    rings: dict[int, dict[str, str]] = {}
    for round_, hospital, source, _ in visits(grid):
        rings.setdefault(round_, {})[source] = hospital
    for round_ in range(2, 13):
        place, seen = "h0", set()
        while place not in seen:
            seen.add(place)
            place = rings[round_][place]
        assert len(seen) == 5
    assert len({tuple(sorted(ring.items())) for round_, ring in rings.items() if round_ > 1}) > 5


def test_a_buffer_is_sent_to_a_hospital_once_and_named_by_its_hash_afterwards():
    handlers = federation(3)
    _, _, grid = run(handlers, rounds=10)
    assert all(len(hospital.buffers) == 3 for hospital in handlers.values())
    attached = [name for *_, m in visits(grid) for name in m.content if name.endswith("/buffer")]
    assert len(attached) == 3 * 2


def test_a_hospital_that_fails_is_sent_the_buffer_again():
    class Forgetful(CountingHospital):
        def train(self, message, order):
            if order.round == 3:
                self.buffers.clear()
                return failing(message, Failure.PARCEL, "The buffer is missing.")
            return super().train(message, order)

    hospital = Forgetful("h1")
    _, ledger, _ = run(federation(2, h1=hospital), rounds=5)
    assert [e.round for e in ledger.of("train") if e.outcome != "ok"] == [3]
    assert hospital.replayed == [[], ["h0"], ["h0"], ["h0"]]


def test_a_buffer_that_one_hospital_cannot_use_still_goes_to_the_others():
    """h1 trains without any buffer. The word of one hospital takes no buffer from the others."""

    class Choosy(CountingHospital):
        def train(self, message, order):
            reply = super().train(message, order.without_buffers(order.hash_of))
            told = {f"buffer-unused-{place}": 1.0 for place, _ in enumerate(order.replay)}
            assert reply
            reply.content.metric_records["metrics"].update(told)
            return reply

    handlers = federation(3, h1=Choosy("h1"))
    state, ledger, grid = run(handlers)
    assert {e.outcome for e in ledger.of("train")} == {"ok"}
    unused = [e for e in ledger.of("query.prepare") if e.outcome != "ok"]
    sources = [source for _, hospital, source, _ in visits(grid) if hospital == "h1"][1:]
    assert [(e.round, e.hospital, e.outcome) for e in unused] == [
        (round_, source, "parcel") for round_, source in enumerate(sources, 2)
    ]
    assert all("'h1' could not use the buffer of" in event.reason for event in unused)
    assert all(len(each) == 1 for name in (100, 102) for each in handlers[name].replayed[1:])
    for parcel in parcels_of(state).values():
        label = check_parcel(parcel)
        places = {
            place for place, name in enumerate(label.visited, 1) if place > 1 and name != "h1"
        }
        assert {int(each.partition("=")[0]) for each in label.replayed} == places


def test_buffer_only_keeps_models_home_and_moves_buffers():
    handlers = federation(3)
    state, _, _ = run(handlers, feder__variant="buffer-only")
    for name, parcel in parcels_of(state).items():
        assert set(check_parcel(parcel).visited) == {name}
    for hospital in handlers.values():
        assert hospital.replayed[0] == []
        assert all(len(r) == 1 and r[0] != hospital.name for r in hospital.replayed[1:])


def test_synthetic_only_has_the_own_buffer_in_the_place_of_the_images():
    handlers = federation(3)
    run(handlers, feder__variant="synthetic-only")
    for hospital in handlers.values():
        assert hospital.replayed[0] == [hospital.name]
        assert all(r[0] == hospital.name and len(r) == 2 for r in hospital.replayed[1:])


def test_without_buffers_nobody_makes_any():
    handlers = federation(3)
    _, _, grid = run(handlers, feder__buffer_size=0)
    assert all(hospital.buffers == {} for hospital in handlers.values())
    assert not any("buffer" in name for m in grid.sent for name in m.content)


def test_a_first_parcel_without_a_buffer_is_refused():
    class Mean(CountingHospital):
        def prepare(self, message, order):
            return super().prepare(message, type(order)(**{**vars(order), "buffer_size": 0}))

    _, ledger, _ = run(federation(3, h2=Mean("h2")), rounds=1)
    assert {e.hospital: e.reason for e in ledger.of("query.prepare") if e.outcome != "ok"} == {
        "h2": "The hospital's first parcel has no buffer."
    }


class Generous(CountingHospital):
    """Sends a buffer that nobody has ordered."""

    def prepare(self, message, order):
        return super().prepare(message, replace(order, buffer_size=4))


def test_a_buffer_that_was_not_ordered_is_refused_and_the_run_goes_on():
    state, ledger, _ = run(federation(3, h2=Generous("h2")), feder__buffer_size=0)
    refused = {e.hospital: e.reason for e in ledger.of("query.prepare") if e.outcome != "ok"}
    assert refused == {"h2": "The hospital's first parcel has a buffer that was not ordered."}
    assert sorted(parcels_of(state)) == ["h0", "h1"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_hospital_whose_buffer_may_not_leave_hands_on_its_model_alone(asynchronous):
    hospital = Withholding("h2")
    state, ledger, grid = run(federation(3, h2=hospital), asynchronous=asynchronous)
    assert sorted(parcels_of(state)) == ["h0", "h1", "h2"]
    prepared = [e.outcome for e in ledger.of("query.prepare") if e.hospital == "h2"]
    assert prepared == ["release", "ok"]
    for *_, source, message in visits(grid):
        order = message.content["order"]
        own = source in (None, order["hospital"])
        assert len(order["replay"]) == (source != "h2" and not own)
    assert ["h0"] in hospital.replayed


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_hospital_that_would_train_on_its_buffer_takes_no_part_without_one(asynchronous):
    changes = {"feder__variant": "synthetic-only", "asynchronous": asynchronous}
    state, ledger, _ = run(federation(3, h2=Withholding("h2")), rounds=3, **changes)
    assert sorted(parcels_of(state)) == ["h0", "h1"]
    assert [e.outcome for e in ledger.of("query.prepare")].count("release") == 1


@pytest.mark.parametrize("strategy", ["feder", "centralized"])
def test_buffers_of_which_none_may_leave_end_the_run(strategy):
    handlers = federation(2, h0=Withholding("h0"), h1=Withholding("h1"))
    with pytest.raises(RunError, match=r"No hospital has synthetic images .* Image 3 is too near"):
        run(handlers, strategy, centralized__data="synthetic")


def test_training_in_one_place_takes_the_buffers_that_left():
    handlers = federation(3, h0=Withholding("h0"))
    run(handlers, "centralized", rounds=1, centralized__data="synthetic")
    assert handlers[100].replayed == [["h1", "h2"]]


def test_a_hospital_that_failed_to_prepare_without_a_buffer_is_asked_again():
    failures = [Failure.CRASHED]

    class Late(Withholding):
        def prepare(self, message, order):
            if failures and not order.buffer_size:
                return failing(message, failures.pop(), "Later.")
            return super().prepare(message, order)

    hospital = Late("h2")
    _, ledger, _ = run(federation(3, h2=hospital), rounds=2)
    prepared = [e.outcome for e in ledger.of("query.prepare") if e.hospital == "h2"]
    assert prepared == ["release", "crashed", "ok"]
    assert len(hospital.replayed) == 1


class Stricter(Withholding):
    """Has a stricter policy from some time on: for its buffer, or for the whole run."""

    strict = ""

    def enrol(self, message, order):
        if self.strict == "run":
            return failing(message, Failure.POLICY, "The run is not allowed [release].")
        return super().enrol(message, order)

    def prepare(self, message, order):
        kind = Withholding if self.strict == "buffer" else CountingHospital
        return kind.prepare(self, message, order)


@pytest.mark.parametrize("variant", ["full", "synthetic-only"])
@pytest.mark.parametrize("strict", ["buffer", "run"])
def test_a_hospital_that_returns_with_a_stricter_policy_has_its_buffer_no_longer_sent_on(
    strict, variant
):
    """It returns under another node after round 3, and under its first one after round 5."""
    hospital = Stricter("h2")

    class Watching(Ledger):
        def round_finished(self, server_round):
            super().round_finished(server_round)
            if server_round in (2, 5):
                grid.handlers.pop(102 if server_round == 2 else 202)
            if server_round == 3:
                hospital.strict = strict
                grid.handlers[202] = hospital
            if server_round == 5:
                grid.handlers[102] = hospital

    grid, ledger = FakeGrid(federation(3, h2=hospital)), Watching()
    grid.names = {102: "h2", 202: "h2"}
    chosen = {"feder__variant": variant, "num_server_rounds": 9, "min_hospitals": 2}
    state = go(settings(strategy="feder", **chosen), grid, ledger)
    assert sorted(state.buffers) == ["h0", "h1"]
    makers = {
        (message.content["order"]["round"] > 3, each.partition("=")[0])
        for *_, message in visits(grid)
        for each in message.content["order"]["replay"]
    }
    assert (True, "h2") not in makers
    assert (True, "h0") in makers
    trained = {e.round for e in ledger.of("train") if e.hospital == "h2" and e.outcome == "ok"}
    assert max(trained) == (9 if variant == "full" else 2)


@pytest.mark.parametrize(("data", "replayed"), [("real", []), ("both", ["h0", "h1", "h2"])])
def test_centralized_trains_one_model_at_the_first_hospital(data, replayed):
    handlers = federation(3)
    state, ledger, _ = run(handlers, "centralized", rounds=2, centralized__data=data)
    assert list(parcels_of(state)) == ["h0"]
    assert [e.hospital for e in ledger.of("train")] == ["h0", "h0"]
    assert {e.hospital for e in ledger.of("evaluate")} == {"h0", "h1", "h2"}
    assert {(e.hospital, e.lineage) for e in ledger.of("hand-off")} == {
        (f"h{k}", "h0") for k in range(3)
    }
    assert handlers[100].replayed == [replayed, replayed]


def test_a_parcel_without_its_buffer_can_be_saved_and_read(tmp_path):
    state, _, _ = run(federation(2), rounds=1)
    save(parcels_of(state)["h0"], tmp_path / "h0.npz")
    assert check_parcel(load(tmp_path / "h0.npz")).lineage == "h0"


def test_the_ensemble_is_asked_for_after_the_last_round_alone():
    class Testing(CountingHospital):
        def evaluate(self, message, order):
            reply = super().evaluate(message, order)
            if order.ensemble:
                reply.content.metric_records["metrics"]["ensemble/accuracy"] = 0.75
            return reply

    handlers = {100 + k: Testing(f"h{k}") for k in range(3)}
    _, ledger, _ = run(handlers, rounds=2)
    assert [(e.round, e.metrics) for e in ledger.of("ensemble")] == [(2, {"accuracy": 0.75})] * 3
    _, ledger, _ = run(handlers, rounds=2, evaluate__ensemble=False)
    assert ledger.of("ensemble") == []


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["full", "buffer-only", "synthetic-only"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_label_says_whose_synthetic_images_a_model_was_trained_on(variant, asynchronous):
    state, _, grid = run(federation(3), feder__variant=variant, asynchronous=asynchronous)
    expected: dict[str, list[str]] = {}
    for *_, message in visits(grid):
        label = check_parcel(parcel_in(message.content))
        order = from_record(Order, message.content.config_records["order"])
        seen = [f"{len(label.visited) + 1}={whose}" for whose in order.hash_of]
        expected.setdefault(label.lineage, []).extend(seen)
    assert any(expected.values())
    for name, parcel in parcels_of(state).items():
        label = check_parcel(parcel)
        assert label.replayed == expected[name]
        count = len(label.visited) if variant == "synthetic-only" else 0
        assert label.not_own == [f"{place}=none" for place in range(1, count + 1)]


def test_a_label_names_no_visit_that_was_not():
    handlers = federation(2)
    state, _, _ = run(handlers, rounds=2)
    parcel = parcels_of(state)["h0"]
    label = parcel.config_records["manifest"]
    label["not_own"] = ["1=all"]
    with pytest.raises(ParcelError, match="'not_own' of the manifest"):
        check_parcel(parcel)
    label["not_own"] = list[str]()
    for wrong in (["3=h1"], ["0=h1"], ["x=h1"], ["1=../h1"], ["1"]):
        label["replayed"] = wrong
        with pytest.raises(ParcelError, match="'replayed' of the manifest"):
            check_parcel(parcel)
