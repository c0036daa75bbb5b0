"""The engine, with hospitals that count visits instead of training."""

import shutil
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from client_app.authority.identity import Identity
from client_app.authority.members import announced_members
from client_app.store import Store
from strategies.engine import courier, enrolment, testing
from strategies.engine.courier import Courier, SimulationBroken
from strategies.engine.engine import Engine
from strategies.engine.enrolment import common_classes
from strategies.engine.presence import SCENARIOS, plan_table
from strategies.engine.run import Run
from strategies.engine.shelf import Shelf
from strategies.engine.state import State
from strategies.engine.strategy import RunError, Strategy
from strategies.fedavg import FedAvg
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.parcel import check_parcel, hash_arrays, pack, parcel_in
from strategies.protocol.records import ParcelError, from_record
from strategies.protocol.settings import SettingsError
from strategies.registry import STRATEGIES, strategy_of
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

PEER_TO_PEER = ["cwt", "feder", "rwt", "standalone"]


def run(handlers, strategy="rwt", rng=None, **overrides):
    grid, ledger = FakeGrid(handlers, rng), Ledger()
    defaults = {"num_server_rounds": 4, "min_hospitals": 1, "strategy": strategy}
    return go(settings(**{**defaults, **overrides}), grid, ledger), ledger, grid


def visits_of(parcel):
    return parcel.array_records["model"]["visits"].numpy()[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", PEER_TO_PEER)
def test_every_model_is_visited_once_a_round(name):
    state, ledger, _ = run(federation(5), name)
    assert sorted(parcels_of(state)) == [f"h{k}" for k in range(5)]
    assert [visits_of(parcel) for parcel in parcels_of(state).values()] == [4.0] * 5
    assert len(ledger.of("train")) == 4 * 5
    assert len(ledger.of("evaluate")) == 4 * 5 * 5
    assert ledger.rounds == [1, 2, 3, 4]


def test_cwt_goes_round_the_ring():
    """h0's model is trained at h0, h1, h2 and at h0 again."""
    state, _, _ = run(federation(3), "cwt")
    assert check_parcel(parcels_of(state)["h0"]).visited == ["h0", "h1", "h2", "h0"]


def test_standalone_stays_home():
    state, _, _ = run(federation(3), "standalone")
    assert check_parcel(parcels_of(state)["h1"]).visited == ["h1"] * 4


def test_rwt_never_stays():
    state, _, _ = run(federation(5), "rwt", num_server_rounds=20)
    for parcel in parcels_of(state).values():
        visited = check_parcel(parcel).visited
        assert all(here != there for here, there in pairwise(visited))


class Remembering(CountingHospital):
    """Its model says whose it is and where it was: no two models of a run are the same."""

    def __init__(self, name, answered):
        super().__init__(name)
        self.answered = answered  # content hash, by lineage and number of visits

    def parcel(self, visits, label):
        journey = np.frombuffer("/".join([label.lineage, *label.visited]).encode(), np.uint8)
        journey = np.pad(journey, (0, 200 - len(journey)))  # arrays keep their shapes
        arrays = {"visits": Array(np.array([visits], "f4")), "journey": Array(journey)}
        parcel = pack({"model": ArrayRecord(arrays)}, label)
        self.answered[label.lineage, len(label.visited)] = parcel["model"].object_id
        return parcel


@pytest.mark.parametrize("name", PEER_TO_PEER)
def test_parcels_are_relayed_bit_for_bit(name):
    """What a hospital is sent of a lineage is, byte by byte, what its last visit answered."""
    answered: dict[tuple[str, int], str] = {}
    hospitals = {100 + k: Remembering(f"h{k}", answered) for k in range(4)}
    state, _, grid = run(hospitals, name, feder__buffer_size=0)
    assert len(set(answered.values())) == 4 * 5
    sent = [m.content for m in grid.sent if m.metadata.message_type == "train"]
    assert len(sent) == 4 * 4
    for content in sent:
        label = check_parcel(parcel_in(content))
        assert content["model"].object_id == answered[label.lineage, len(label.visited)]
    for lineage, parcel in parcels_of(state).items():
        assert parcel["model"].object_id == answered[lineage, 4]


def test_the_schedule_does_not_depend_on_the_order_of_answers():
    runs = [run(federation(4), "rwt", np.random.default_rng(seed)) for seed in range(3)]
    visited = [
        {name: check_parcel(parcel).visited for name, parcel in parcels_of(state).items()}
        for state, _, _ in runs
    ]
    assert visited[0] == visited[1] == visited[2]


@pytest.mark.slow
@given(
    name=st.sampled_from(PEER_TO_PEER),
    count=st.integers(1, 6),
    seed=st.integers(0, 2**32),
    failure_share=st.floats(0, 1),
)
@hypothesis_settings(max_examples=60, deadline=None)
def test_no_parcel_is_lost_or_doubled(name, count, seed, failure_share):
    """Whatever fails, every lineage exists once, and has as many visits as succeeded."""
    state, ledger = run_unreliably(name, count, seed, failure_share)
    assert sorted(held.lineage for held in state.models.values()) == [f"h{k}" for k in range(count)]
    for lineage, parcel in parcels_of(state).items():
        good = [e for e in ledger.of("train") if e.lineage == lineage and e.outcome == "ok"]
        assert visits_of(parcel) == len(good)
        assert check_parcel(parcel).visited == [event.hospital for event in good]


def run_unreliably(name, count, seed, failure_share, **overrides):
    """Four rounds at hospitals that answer some visits badly."""
    rng = np.random.default_rng(seed)

    class Unreliable(CountingHospital):
        def train(self, message, order):
            if rng.random() < failure_share:
                return garbage(message, rng)
            return super().train(message, order)

    handlers = {100 + k: Unreliable(f"h{k}") for k in range(count)}
    ledger = Ledger()
    chosen = settings(strategy=name, num_server_rounds=4, min_hospitals=1, **overrides)
    kept: list[State] = []
    try:
        state = go(chosen, FakeGrid(handlers, rng), ledger, keep=kept.append)
    except RunError:  # nothing but failures
        state = kept[-1]
    return state, ledger


def garbage(message, rng):
    """One of the ways to answer badly."""
    parcel = CountingHospital("x").parcel(7.0, check_parcel(parcel_in(message.content)))
    kinds = [
        failing(message),
        failing(message, 8, "killed"),
        Message(RecordDict(), reply_to=message),
        Message(RecordDict({"images": ArrayRecord()}), reply_to=message),
        Message(RecordDict({**parcel, "metrics": MetricRecord()}), reply_to=message),
        Message(RecordDict({**parcel, "secret": ConfigRecord()}), reply_to=message),
        Message(
            RecordDict(
                {
                    **parcel,
                    "model": ArrayRecord({"visits": Array(np.zeros(3))}),
                    "metrics": MetricRecord({"num-examples": 1.0}),
                }
            ),
            reply_to=message,
        ),
    ]
    return kinds[rng.integers(len(kinds))]


def test_a_hospital_that_fails_is_named_with_its_hop():
    class Failing(CountingHospital):
        def train(self, message, order):
            return failing(message, Failure.CRASHED, "MemoryError")

    _, ledger, _ = run(federation(3, h1=Failing("h1")), "cwt")
    failures = [event for event in ledger.events if event.outcome != "ok"]
    assert {(e.hospital, e.outcome, e.reason) for e in failures} == {
        ("h1", "crashed", "MemoryError")
    }
    assert [(event.round, event.hop) for event in failures] == [(1, 1), (2, 1), (3, 1), (4, 1)]


def test_a_hospital_that_is_away_comes_back_under_another_node_id():
    """h2 is disconnected in round 2 and returns in round 3; its parcels move on meanwhile."""
    handlers = federation(3)
    hospital = handlers[102]

    class Watching(Ledger):
        def round_finished(self, server_round):
            super().round_finished(server_round)
            if server_round == 1:
                del grid.handlers[102]
            if server_round == 2:
                grid.handlers[202] = hospital

    grid, ledger = FakeGrid(handlers), Watching()
    state = go(settings(num_server_rounds=4, min_hospitals=2, strategy="cwt"), grid, ledger)
    assert [e.round for e in ledger.of("train") if e.outcome == "gone"] == [2]
    assert [e.round for e in ledger.of("train") if e.hospital == "h2" and e.outcome == "ok"] == [
        1,
        3,
        4,
    ]
    assert {name: visits_of(p) for name, p in parcels_of(state).items()} == {
        "h0": 4,
        "h1": 3,
        "h2": 4,
    }


class Announced(CountingHospital):
    """Takes part in sealed runs, and keeps the list of members in its store."""

    def __init__(self, name, store):
        super().__init__(name)
        self.store = store
        self.key = str(Identity.load(name, store / "identity").member)

    def __call__(self, message):
        order = from_record(Order, message.content.config_records["order"])
        try:
            announced_members(Store(self.store / "run"), order)
        except ParcelError as error:
            return failing(message, Failure.PARCEL, str(error))
        return super().__call__(message)

    def enrol(self, message, order):
        answer = super().enrol(message, order)
        answer.content.config_records["card"]["identity"] = self.key
        return answer

    def train(self, message, order):
        label = check_parcel(parcel_in(message.content)).advance(order)
        metrics = MetricRecord({"num-examples": 1.0})
        content = RecordDict({**self.parcel(0, label), "metrics": metrics})
        return Message(content, reply_to=message)

    def parcel(self, visits, label):
        return pack({"model": ArrayRecord({"sealed": Array(np.zeros(9, "u1"))})}, label)


@pytest.mark.parametrize(("strategy", "verb"), [("cwt", "train"), ("centralized", "evaluate")])
@pytest.mark.parametrize("node", [101, 201])
def test_a_hospital_that_has_lost_its_list_of_members_gets_it_again(tmp_path, strategy, verb, node):
    """A part of its store was lost, for example; h1 of centralized only tests."""
    handlers = {100 + k: Announced(f"h{k}", tmp_path / f"h{k}") for k in range(2)}

    class Watching(Ledger):
        def round_finished(self, server_round):
            super().round_finished(server_round)
            if server_round == 2:
                grid.handlers[node] = grid.handlers.pop(101)
                shutil.rmtree(tmp_path / "h1" / "run")

    grid, ledger = FakeGrid(handlers), Watching()
    grid.names = {100: "h0", 101: "h1", 201: "h1"}
    chosen = {"strategy": strategy, "sealed": True, "num_server_rounds": 5, "min_hospitals": 1}
    go(settings(**chosen), grid, ledger)
    done = {e.round for e in ledger.of(verb) if e.hospital == "h1" and e.outcome == "ok"}
    assert done >= {1, 2, 4, 5}
    assert (3 in done) == (node == 201)


def test_who_has_left_by_plan_may_be_gone_for_good(monkeypatch, tmp_path):
    """In round 2 h0 alone is active, and h1's machine is off, with min-hospitals = 2.

    So it is once more if the server is killed after round 1, and the run is resumed.
    """
    monkeypatch.setattr(enrolment, "PAUSE", 0.01)

    class Leaving(Ledger):
        def round_finished(self, server_round):
            super().round_finished(server_round)
            grid.handlers.pop(101, None)

    def check(ledger):
        assert [event for event in ledger.events if event.outcome != "ok"] == []
        assert [e.hospital for e in ledger.of("train") if e.round == 2] == ["h0"]

    def keep(state):
        state.shelf.write(state.parcels)
        kept[state.round, state.hop] = state.to_json()

    grid, ledger, again = FakeGrid(federation(2)), Leaving(), Ledger()
    plan = {"tasks": 2, "num_server_rounds": 2, "enrolment": "S2"}
    chosen = settings(strategy="fedavg", min_hospitals=2, hop_timeout=1, **plan)
    kept: dict[tuple[int, int], Any] = {}
    go(chosen, grid, ledger, tmp_path, keep)
    check(ledger)
    state = State.from_json(kept[2, 0], Shelf(tmp_path))
    Engine(Run(chosen, strategy_of(chosen), state, Courier(grid), again), lambda s: None).go()
    check(again)


def test_a_late_hospital_without_a_line_in_the_plan_is_refused_with_the_reason(tmp_path):
    plan = tmp_path / "plan.csv"
    plan.write_text("h0,active\nh1,active\n")

    class Watching(Ledger):
        def round_finished(self, server_round):
            super().round_finished(server_round)
            grid.handlers[102] = CountingHospital("h2")

    grid, ledger = FakeGrid(federation(2)), Watching()
    chosen = settings(strategy="fedavg", enrolment=str(plan), tasks=1, num_server_rounds=2)
    state = go(chosen, grid, ledger)
    assert (ledger.rounds, state.hospitals) == ([1, 2], ["h0", "h1"])
    (refused,) = [event for event in ledger.of("query.enrol") if event.outcome != "ok"]
    assert (refused.hospital, refused.outcome) == ("h2", "settings")
    assert "it has no line for 'h2'" in refused.reason


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_late_hospital_changes_no_scenario(scenario, tmp_path):
    """It comes after round 1; or when the server, killed after round 1, resumes the run.

    Its name is the first one, so that its number would move all others. A hospital of the plan may
    come back at another node.
    """

    class Watching(Ledger):
        def round_finished(self, server_round):
            super().round_finished(server_round)
            grid.handlers[99] = CountingHospital("a")
            if server_round == 1:
                grid.handlers[201] = grid.handlers.pop(101)

    def keep(state):
        state.shelf.write(state.parcels)
        kept[state.round, state.hop] = state.to_json()

    def check(ledger, rounds):
        plan = plan_table(chosen, ["h0", "h1"])
        for number in rounds:
            trained = {e.hospital for e in ledger.of("train") if e.round == number}
            assert trained == {h for h in plan if plan[h][(number - 1) // 2] == "active"}
        assert {e.hospital for e in ledger.of("query.prepare")} <= {*plan}
        refused = [event for event in ledger.of("query.enrol") if event.outcome != "ok"]
        assert {(each.hospital, each.outcome) for each in refused} == {("a", "settings")}
        reason = f"'enrolment' is '{scenario}': its plan is of the first hospitals, without 'a'."
        assert all(reason in each.reason for each in refused)

    grid, ledger, again = FakeGrid(federation(2)), Watching(), Ledger()
    chosen = settings(strategy="fedavg", enrolment=scenario, tasks=2, num_server_rounds=4)
    kept: dict[tuple[int, int], Any] = {}
    state = go(chosen, grid, ledger, tmp_path, keep)
    check(ledger, range(1, 5))
    assert state.hospitals == ["h0", "h1"]
    state = State.from_json(kept[2, 0], Shelf(tmp_path))
    Engine(Run(chosen, strategy_of(chosen), state, Courier(grid), again), lambda s: None).go()
    check(again, range(2, 5))


def test_a_hospital_that_sends_no_embeddings_is_known_to_have_been_asked(monkeypatch):
    class Asking(FedAvg):
        def visit(self, *where, **changes):
            return super().visit(*where, **changes, embeddings="sampled")

    monkeypatch.setitem(STRATEGIES, "fedavg", Asking)
    _, ledger, _ = run(federation(2), "fedavg", num_server_rounds=1)
    assert [e.facts for e in ledger.of("train")] == [{"embeddings": "sampled", "came": 0}] * 2


class Empty(CountingHospital):
    def enrol(self, message, order):
        return failing(message, Failure.DATA, f"{self.name} has no images.")


def test_data_that_cannot_be_used_end_a_simulation_with_the_hospitals_own_words(monkeypatch):
    monkeypatch.setattr(Courier, "simulates", True)
    with pytest.raises(SettingsError, match=r"h2 has no images\."):
        run(federation(3, h2=Empty("h2")))


def test_real_hospitals_do_without_one_that_cannot_use_its_data_if_they_are_enough():
    state, ledger, _ = run(federation(3, h2=Empty("h2")))
    assert state.hospitals == ["h0", "h1"]
    assert {e.reason for e in ledger.of("query.enrol") if e.outcome == "data"} == {
        "h2 has no images."
    }
    with pytest.raises(RunError, match=r"are ready: 1 of 2 .*\. h1 has no images\."):
        run(federation(2, h1=Empty("h1")), min_hospitals=2)


class Naming(CountingHospital):
    def __init__(self, name, *classes):
        super().__init__(name)
        self.classes = list(classes)


def test_one_order_of_the_classes_is_agreed_before_the_first_hop():
    """h1 misses one class, h2 another; a late h3 is told the classes, and does not change them."""

    class Watching(Ledger):
        def round_finished(self, server_round):
            super().round_finished(server_round)
            grid.handlers[103] = Naming("h3", "BCC")

    three = [Naming("h0", "NV", "MEL"), Naming("h1", "BKL"), Naming("h2", "MEL")]
    grid = FakeGrid(federation(3, **{each.name: each for each in three}))
    state = go(settings(num_server_rounds=2, strategy="cwt"), grid, Watching())
    names = ["BKL", "MEL", "NV"]
    assert {tuple(check_parcel(parcel).classes) for parcel in parcels_of(state).values()} == {
        tuple(names)
    }
    orders = [message.content["order"] for message in grid.sent]
    assert [order["classes"] for order in orders[:3]] == [[]] * 3
    assert all(order["classes"] == names for order in orders[3:])


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ([["b", "a"], ["b", "a"]], ["b", "a"]),  # as all have it
        ([["b", "a"], ["a", "b"]], ["a", "b"]),
        ([["10", "9"], ["1"]], ["1", "9", "10"]),
        ([["10", "9"], ["x"]], ["10", "9", "x"]),
        ([["10", "9"], ["nan"]], ["10", "9", "nan"]),
    ],
)
def test_classes_keep_their_order_where_all_agree_and_are_sorted_elsewhere(named, expected):
    assert common_classes({f"h{k}": names for k, names in enumerate(named)}) == expected


def test_classes_in_two_spellings_are_named_with_their_hospitals():
    named = {"graz": ["Melanoma", "nevus"], "linz": ["melanoma", "nevus"], "wien": ["melanoma"]}
    with pytest.raises(RunError, match=r"'Melanoma' \(graz\), 'melanoma' \(linz, wien\)\. Give"):
        common_classes(named)
    # One that has both tells them apart.
    assert common_classes({"graz": ["A", "a"], "linz": ["a"]}) == ["A", "a"]


def test_classes_that_the_settings_name_are_the_federation_s():
    state, _, _ = run(federation(2), classes="b, a ,c")
    assert state.classes == ["b", "a", "c"]


def test_a_federation_of_one_class_is_refused():
    with pytest.raises(RunError, match=r"fewer than two classes together: \['NV'\]"):
        run({k: Naming(f"h{k}", "NV") for k in range(2)})


def test_of_two_hospitals_of_one_name_neither_takes_part():
    """Nobody can tell which is which, unless they are registered."""
    with pytest.raises(RunError, match="Two hospitals are called 'h0'"):
        run(federation(2, h1=CountingHospital("h0")))
    state, _, _ = run(federation(4, h1=CountingHospital("h0")))
    assert state.hospitals == ["h2", "h3"]


def test_of_two_nodes_that_are_registered_under_one_name_neither_takes_part():
    """Nobody can tell which is the hospital."""
    grid, ledger = FakeGrid(federation(4, h1=CountingHospital("h0"))), Ledger()
    grid.names = {100: "h0", 101: "h0", 102: "h2", 103: "h3"}
    state = go(settings(strategy="rwt", num_server_rounds=3), grid, ledger)
    assert state.nodes == {"h2": 102, "h3": 103}
    reasons = {event.reason for event in ledger.events if event.hospital == "h0"}
    assert len(reasons) == 1
    assert "Two nodes are registered as 'h0'" in reasons.pop()


def test_a_second_node_that_is_registered_under_the_name_of_one_at_work_is_refused():
    class Watching(Ledger):
        def round_finished(self, server_round):
            super().round_finished(server_round)
            grid.handlers[102] = CountingHospital("h0")

    grid, ledger = FakeGrid(federation(2)), Watching()
    grid.names = {100: "h0", 101: "h1", 102: "h0"}
    state = go(settings(strategy="cwt", num_server_rounds=3), grid, ledger)
    assert state.nodes == {"h0": 100, "h1": 101}
    assert {m.metadata.message_type for m in grid.sent if m.metadata.dst_node_id == 102} == {
        "query.enrol"
    }


def test_too_few_hospitals_end_the_run(monkeypatch):
    monkeypatch.setattr(enrolment, "PAUSE", 0.01)
    with pytest.raises(RunError, match=r"have answered within .*: 1 of 2 \(min-hospitals\)"):
        run(federation(1), min_hospitals=2, hop_timeout=0.001)


def test_too_few_hospitals_that_are_ready_end_the_run():
    class Crashing(CountingHospital):
        def prepare(self, message, order):
            return failing(message)

    with pytest.raises(RunError, match=r"Hospitals that are ready: 1 of 2 \(min-hospitals\)\."):
        run(federation(2, h1=Crashing("h1")), min_hospitals=2)


class CutOff(CountingHospital):
    """It is cut off `times` times while it prepares."""

    def __init__(self, name, times):
        super().__init__(name)
        self.times = times

    def prepare(self, message, order):
        self.times -= 1
        return failing(message, 5, "off") if self.times >= 0 else super().prepare(message, order)


@pytest.mark.parametrize("strategy", ["cwt", "cwt-serial", "fedavg", "fil-ver"])
def test_hospitals_that_were_cut_off_while_they_prepared_are_asked_again(strategy):
    """A GAN takes hours, and min-hospitals are all of them. In the first attempt none is ready."""
    hospitals = federation(2, h0=CutOff("h0", 1), h1=CutOff("h1", 2))
    chosen = {"min_hospitals": 2, "num_server_rounds": 1, "filver__pretrain": "none"}
    state, ledger, _ = run(hospitals, strategy, **chosen)
    assert state.hospitals == ["h0", "h1"]
    assert [e.outcome for e in ledger.of("query.prepare") if e.hospital == "h1"] == [
        *("gone", "gone", "ok")
    ]
    assert ledger.of("train")


def test_offline_the_next_hospital_is_asked_if_one_fails():
    class Away(CountingHospital):
        def train(self, message, order):
            return failing(message) if order.round < 4 else super().train(message, order)

    hospitals = federation(3, h0=Away("h0"))
    chosen = {"num_server_rounds": 4, "filver__pretrain": "none", "filver__offline": True}
    _, ledger, _ = run(hospitals, "fil-ver", **chosen)
    visits = [(e.round, e.hospital, e.outcome) for e in ledger.of("train")]
    tried = [[(k, "h0", "crashed"), (k, "h1", "ok")] for k in (2, 3)]
    assert visits == [*tried[0], *tried[1], (4, "h0", "ok")]


def test_a_hospital_that_is_cut_off_whenever_it_prepares_ends_a_run_that_needs_it():
    with pytest.raises(RunError, match=r"are ready: 1 of 2 \(min-hospitals\)\. .*off"):
        run(federation(2, h1=CutOff("h1", 99)), min_hospitals=2)
    state, _, _ = run(federation(2, h1=CutOff("h1", 99)), min_hospitals=1)
    assert state.hospitals == ["h0"]


def test_the_registered_name_is_told_to_the_hospital():
    grid = FakeGrid(federation(2))
    grid.names = {100: "h0"}
    go(settings(num_server_rounds=1, strategy="cwt"), grid, Ledger())
    names = [
        m.content["order"]["hospital"]
        for m in grid.sent
        if m.metadata.message_type == "query.enrol"
    ]
    assert names == ["h0", ""]


def test_without_cross_evaluation_a_hospital_tests_the_models_it_holds():
    """On a ring of three, in round 1: its own, which it trained, and the one it receives next."""
    _, ledger, _ = run(federation(3), "cwt", num_server_rounds=1, evaluate__cross=False)
    pairs = {(event.hospital, event.lineage) for event in ledger.of("evaluate")}
    assert pairs == {
        ("h0", "h0"),
        ("h0", "h2"),
        ("h1", "h1"),
        ("h1", "h0"),
        ("h2", "h2"),
        ("h2", "h1"),
    }


def test_a_sample_has_each_model_tested_where_it_is_held_and_at_some_others():
    pairs: list[set[tuple[int, str, str]]] = []
    for seed in (1, 2):  # of the order in which answers come
        rng = np.random.default_rng(seed)
        _, ledger, _ = run(federation(6), rng=rng, num_server_rounds=2, evaluate__cross="sample:2")
        tested, held = (
            {(e.round, e.lineage, e.hospital) for e in ledger.of(verb)}
            for verb in ("evaluate", "hand-off")
        )
        assert held < tested
        drawn = Counter((round_, lineage) for round_, lineage, _ in tested - held)
        assert set(drawn.values()) == {2}
        assert len(drawn) == 12
        pairs.append(tested - held)
    assert pairs[0] == pairs[1]
    first, second = ({each[1:] for each in pairs[0] if each[0] == n} for n in (1, 2))
    assert first != second


def test_evaluation_every_other_round_and_after_the_last():
    _, ledger, _ = run(federation(2), num_server_rounds=5, evaluate__every=2)
    assert sorted({event.round for event in ledger.of("evaluate")}) == [2, 4, 5]
    assert ledger.rounds == [1, 2, 3, 4, 5]


def test_hand_off_tells_who_holds_what_for_the_next_round():
    _, ledger, _ = run(federation(3), "cwt", num_server_rounds=2)
    first = {e.hospital: e.lineage for e in ledger.of("hand-off") if e.round == 1}
    trained = {e.hospital: e.lineage for e in ledger.of("train") if e.round == 2}
    assert first == trained == {"h0": "h2", "h1": "h0", "h2": "h1"}


def test_many_models_are_sent_for_evaluation_in_several_messages(monkeypatch):
    monkeypatch.setattr(testing, "TEST_BYTES", 1)
    _, ledger, grid = run(federation(3), "cwt", num_server_rounds=1)
    assert sum(m.metadata.message_type == "evaluate" for m in grid.sent) == 3 * 3
    assert len(ledger.of("evaluate")) == 9


def test_a_broken_simulation_ends_the_run(monkeypatch):
    monkeypatch.setattr(Courier, "simulates", True)

    def dead(message):
        return failing(message, 0, "ActorDiedError")

    with pytest.raises(SimulationBroken):
        run({100: dead})


def test_a_silent_hospital_does_not_hold_up_the_run(monkeypatch):
    monkeypatch.setattr(courier, "GRACE", 0.0)

    class Silent(CountingHospital):
        def train(self, message, order):
            return None

    grid, ledger = FakeGrid(federation(3, h1=Silent("h1"))), Ledger()
    # A message that was given up has left the hospital: Flower's own time to live has passed.
    given_up = settings(strategy="cwt", num_server_rounds=1, hop_timeout=0.5, evaluate__cross=False)
    monkeypatch.setattr(grid, "push_messages", forgetful(grid))
    go(given_up, grid, ledger)
    assert [(e.hospital, e.outcome) for e in ledger.of("train") if e.outcome != "ok"] == [
        ("h1", "timeout")
    ]


def forgetful(grid):
    push = grid.push_messages

    def push_messages(messages):
        messages = list(messages)
        nodes = {message.metadata.dst_node_id for message in messages}
        grid.waiting = {
            k: m for k, m in grid.waiting.items() if m.metadata.dst_node_id not in nodes
        }
        return push(messages)

    return push_messages


def test_hashes_of_models_link_a_lineage():
    """The parent in a label is the hash of the model that the visit started from."""
    _, _, grid = run(federation(2), "cwt")
    models = {hash_arrays(m.content["model"]) for m in grid.sent if "model" in m.content}
    parents = {check_parcel(m.content).parent for m in grid.sent if "model" in m.content}
    assert parents - {""} <= models


def test_a_hospital_that_is_stuck_is_waited_for_once_and_then_passed_over(monkeypatch):
    """And takes part again when it answers again: here in the last round."""
    monkeypatch.setattr(courier, "GRACE", 0.0)
    monkeypatch.setattr(courier, "LIVE_TIMEOUT", 0.05)

    class Stuck(CountingHospital):
        def train(self, message, order):
            if order.round > 1:
                return super().train(message, order)
            grid.stuck = {101}
            return None

    class Freeing(CountingHospital):
        def train(self, message, order):
            if order.round == 2:
                grid.stuck = set()
            return super().train(message, order)

    grid, ledger = FakeGrid(federation(2, h0=Freeing("h0"), h1=Stuck("h1"))), Ledger()
    given = settings(
        strategy="cwt", num_server_rounds=3, hop_timeout=0.3, evaluate__cross=False, min_hospitals=1
    )
    go(given, grid, ledger)
    theirs = [event.outcome for event in ledger.of("train") if event.hospital == "h1"]
    assert theirs == ["timeout", "gone", "ok"]


def test_a_late_hospital_that_cannot_use_its_data_does_not_stop_the_run():
    class Watching(Ledger):
        def round_finished(self, server_round):
            super().round_finished(server_round)
            grid.handlers[102] = Empty("h2")

    grid, ledger = FakeGrid(federation(2)), Watching()
    go(settings(num_server_rounds=3, strategy="cwt"), grid, ledger)
    assert ledger.rounds == [1, 2, 3]
    assert [e.outcome for e in ledger.of("query.enrol")] == ["ok", "ok", "data", "data"]


@pytest.mark.parametrize("name", ["cwt", "fedavg"])
def test_a_hospital_that_joins_late_takes_part_from_the_next_round_on(name):
    class Watching(Ledger):
        def round_finished(self, server_round):
            super().round_finished(server_round)
            grid.handlers[102] = joining

    joining = CountingHospital("h2")
    grid, ledger = FakeGrid(federation(2)), Watching()
    go(settings(num_server_rounds=3, strategy=name), grid, ledger)
    visits = [event.round for event in ledger.of("train") if event.hospital == "h2"]
    assert visits == [2, 3]


@pytest.mark.parametrize("name", ["cwt", "fedavg"])
def test_a_run_of_failures_alone_is_no_success(name):
    class Failing(CountingHospital):
        def train(self, message, order):
            return failing(message)

    with pytest.raises(RunError, match="No hospital has trained any model"):
        run({k: Failing(f"h{k}") for k in range(2)}, name)


def test_a_hospital_that_cannot_enrol_is_known_by_its_registered_name():
    class Crashing(CountingHospital):
        def enrol(self, message, order):
            return failing(message)

    grid, ledger = FakeGrid(federation(3, h2=Crashing("h2"))), Ledger()
    grid.names = {102: "Graz"}
    go(settings(num_server_rounds=1, strategy="cwt"), grid, ledger)
    assert [e.hospital for e in ledger.of("query.enrol") if e.outcome != "ok"] == ["Graz"]


# The seam for methods that do not wait for all visits of a hop.


class Restless(Strategy):
    """Two models that go on, each as soon as it is back, to the hospital after the one it is at."""

    waits = False
    own_start = True

    def plan(self, state):
        busy = {visit.hospital for visit in state.under_way}
        moving = {visit.model for visit in state.under_way}
        visits = []
        for name in ("h0", "h1"):
            if name in moving or len(self.seen(state, name)) >= 6:
                continue
            places = state.hospitals
            after = places[(places.index(state.models[name].place) + 1) % len(places)]
            if after not in busy:
                busy.add(after)
                visits.append(self.visit(after, name))
        return visits

    def seen(self, state, name):
        return state.shelf.label(state.models[name].parcel).visited


def test_a_method_may_plan_again_after_each_delivery(monkeypatch):
    """h2 answers only every fifth pull; no model waits for the other one's visit there."""
    monkeypatch.setitem(STRATEGIES, "restless", Restless)
    kept = []

    class Slow(FakeGrid):
        pulls = 0

        def pull_messages(self, message_ids):
            self.pulls += 1
            slow = {k for k, m in self.waiting.items() if m.metadata.dst_node_id == 102}
            chosen = set(message_ids) - (slow if self.pulls % 5 else set())
            return super().pull_messages(chosen) if chosen else []

    ledger = Ledger()
    chosen = settings(strategy="restless", num_server_rounds=1)

    def keep(state):
        kept.append(sorted(len(state.shelf.label(m.parcel).visited) for m in state.models.values()))

    state = go(chosen, Slow(federation(4)), ledger, keep=keep)
    for name in ("h0", "h1"):
        visited = check_parcel(parcels_of(state)[name]).visited
        first = int(name[1])
        assert visited == [f"h{(first + 1 + k) % 4}" for k in range(6)]
    assert [e.outcome for e in ledger.of("train")] == ["ok"] * 12
    assert kept[0] == []
    assert [0, 0, 0, 1] in kept  # kept after the first delivery, before the second
    assert not state.under_way


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_plan_is_a_pure_function_of_the_state(name, monkeypatch):
    plan = STRATEGIES[name].plan
    planned = []

    def twice(self, state):
        before = state.to_json()
        visits = plan(self, state)
        assert plan(self, state) == visits
        assert state.to_json() == before
        planned.append((state.round, state.hop, len(visits)))
        return visits

    monkeypatch.setattr(STRATEGIES[name], "plan", twice)
    _, ledger, _ = run(federation(3), name, num_server_rounds=2)
    assert {event.outcome for event in ledger.events} == {"ok"}
    rounds = {round_ for round_, *_ in planned}
    assert rounds >= {1, 2}
    for round_ in (1, 2):  # a round is over when nothing is planned
        last = max(hop for each, hop, _ in planned if each == round_)
        assert (round_, last, 0) in planned


# Who cannot join.


class Shaped(CountingHospital):
    """Tells the shape of its images."""

    def __init__(self, name, *shape):
        super().__init__(name)
        self.shape = list(shape)

    def enrol(self, message, order):
        reply = super().enrol(message, order)
        reply.content.config_records["card"]["shape"] = self.shape
        return reply


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((1, 9, 8), r"1x8x8 at h0, 1x9x8 at h1: set image-size for the whole run"),
        ((3, 8, 8), r"3x8x8 at h1: set image-channels to 3 for the whole run"),
    ],
)
def test_images_of_several_shapes_end_the_run_before_the_first_hop(shape, words):
    hospitals = [Shaped("h0", 1, 8, 8), Shaped("h1", *shape)]
    grid = FakeGrid({100 + k: each for k, each in enumerate(hospitals)})
    with pytest.raises(RunError, match=words):
        go(settings(strategy="cwt"), grid, Ledger())
    assert {m.metadata.message_type for m in grid.sent} == {"query.enrol"}


def test_a_late_hospital_with_images_of_another_shape_is_refused_with_the_reason():
    class Watching(Ledger):
        def round_finished(self, server_round):
            super().round_finished(server_round)
            grid.handlers[102] = Shaped("h2", 1, 9, 9)

    grid, ledger = FakeGrid({100 + k: Shaped(f"h{k}", 1, 8, 8) for k in (0, 1)}), Watching()
    go(settings(strategy="cwt", num_server_rounds=2), grid, ledger)
    assert ledger.rounds == [1, 2]
    (refused,) = [event for event in ledger.of("query.enrol") if event.outcome != "ok"]
    assert (refused.hospital, refused.outcome) == ("h2", "settings")
    assert "1x9x9 at h2, 1x8x8 at the other hospitals: set image-size" in refused.reason


class Frozen(CountingHospital):
    """Tells the hash of its frozen weights."""

    def __init__(self, name, digit):
        super().__init__(name)
        self.frozen = digit * 64

    def enrol(self, message, order):
        reply = super().enrol(message, order)
        reply.content.config_records["card"]["frozen"] = self.frozen
        return reply


def test_different_frozen_weights_end_the_run_before_the_first_hop():
    grid = FakeGrid({100: Frozen("h0", "a"), 101: Frozen("h1", "b")})
    with pytest.raises(RunError, match=f"{'a' * 64} at h0, {'b' * 64} at h1: set 'model' alike"):
        go(settings(strategy="cwt"), grid, Ledger())
    assert {m.metadata.message_type for m in grid.sent} == {"query.enrol"}


def test_one_hospital_with_other_frozen_weights_is_refused_with_the_reason():
    grid = FakeGrid({100 + k: Frozen(f"h{k}", digit) for k, digit in enumerate("aba")})
    ledger = Ledger()
    go(settings(strategy="cwt", num_server_rounds=1), grid, ledger)
    (refused,) = [event for event in ledger.of("query.enrol") if event.outcome != "ok"]
    assert (refused.hospital, refused.outcome) == ("h1", "settings")
    assert f"{'b' * 64} at h1, {'a' * 64} at the other hospitals" in refused.reason


@pytest.mark.parametrize("also", [False, True])
def test_a_late_hospital_does_not_set_the_frozen_weights_of_a_run_without_any(also):
    """Alone it would be the most frequent; with an honest one beside it there would be a tie."""

    class Watching(Ledger):
        def round_finished(self, server_round):
            super().round_finished(server_round)
            grid.handlers[102] = Frozen("h2", "b")
            if also:
                grid.handlers[103] = CountingHospital("h3")

    grid, ledger = FakeGrid(federation(2)), Watching()
    state = go(settings(strategy="cwt", num_server_rounds=3), grid, ledger)
    refused = [event.hospital for event in ledger.of("query.enrol") if event.outcome != "ok"]
    assert {*refused} == {"h2"}
    assert state.hospitals == ["h0", "h1", *(["h3"] if also else [])]


@pytest.mark.parametrize("name", ["global", "../h2", "h 2", ""])
def test_a_hospital_that_gives_itself_a_name_that_misleads_is_refused(name):
    """Names become lineages, files and parts of messages."""
    state, ledger, _ = run(federation(3, h2=CountingHospital(name)), num_server_rounds=1)
    assert state.hospitals == ["h0", "h1"]
    (refused,) = [event for event in ledger.of("query.enrol") if event.outcome != "ok"]
    assert refused.outcome == "undeclared"


def test_a_card_that_makes_no_sense_does_not_end_the_run():
    class Odd(CountingHospital):
        def enrol(self, message, order):
            reply = super().enrol(message, order)
            reply.content.config_records["card"].update({"classes": 7, "shape": "wide"})
            return reply

    state, _, _ = run(federation(2, h1=Odd("h1")), num_server_rounds=1)
    assert state.hospitals == ["h0"]


def test_a_run_in_tasks_that_is_killed_after_its_last_round_can_be_resumed():
    state, _, _ = run(federation(3), "cwt", num_server_rounds=2, tasks=2, task_cut="permuted")
    assert state.round == 3
    chosen = settings(strategy="cwt", num_server_rounds=2, tasks=2, task_cut="permuted")
    again = Run(chosen, strategy_of(chosen), state, Courier(FakeGrid(federation(3))), Ledger())
    Engine(again, lambda state: None).go()
    assert state.ready == 3
