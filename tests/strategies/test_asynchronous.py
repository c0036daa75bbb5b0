"""Asynchronous hand-off: queues in the place of rounds."""

import hashlib
import json
import os
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from server_app.results import Results
from strategies.engine import courier
from strategies.engine.courier import Courier
from strategies.engine.engine import Engine
from strategies.engine.enrolment import preparations
from strategies.engine.run import Run
from strategies.engine.shelf import Shelf
from strategies.engine.state import AWAY, FirstOrder, Model, State
from strategies.engine.strategy import HandsOn, RunError
from strategies.protocol.may_leave import Failure
from strategies.protocol.parcel import Manifest, check_parcel, hash_arrays, pack, unbundle
from strategies.protocol.settings import SettingsError
from strategies.registry import STRATEGIES, strategy_of
from tests.adversary.test_garbage import Fussy
from tests.fakes import (
    CountingHospital,
    FakeGrid,
    Ledger,
    Sealing,
    failing,
    federation,
    go,
    parcels_of,
)
from tests.fakes import settings as any_settings

settings = partial(any_settings, strategy="rwt", asynchronous=True)


@pytest.fixture(autouse=True, scope="module")
def _no_waiting():
    """Nothing here waits for a disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def done(chosen, grid=None, hospitals=5, keep=lambda state: None):
    """A run: where it stands at its end, and its journal."""
    ledger = Ledger()
    return go(chosen, grid or FakeGrid(federation(hospitals)), ledger, keep=keep), ledger


def paths(state):
    """Where each model has been."""
    return {name: check_parcel(parcel).visited for name, parcel in parcels_of(state).items()}


def busy(ledger):
    """The share of the time, until the last visit began, that each hospital spent on visits."""
    visits = ledger.of("train")
    last = max(each.began for each in visits)
    spent = Counter({each.hospital: 0.0 for each in visits})
    for each in visits:
        spent[each.hospital] += min(each.time, last) - each.began
    return {hospital: seconds / last for hospital, seconds in spent.items()}


@pytest.mark.parametrize("asynchronous", [True, False])
def test_orders_say_whether_visits_are_counted(asynchronous):
    """The baseline of an asynchronous run is ordered by rounds."""
    told = set()

    class Listening(CountingHospital):
        def train(self, message, order):
            told.add(order.asynchronous)
            return super().train(message, order)

    handlers = {100 + k: Listening(f"h{k}") for k in range(3)}
    done(settings(asynchronous=asynchronous), FakeGrid(handlers))
    assert told == {asynchronous}


# Who gets which model.


def test_nobody_waits_for_a_hospital_that_is_twenty_times_slower():
    """In the 20 s of a visit of the slow one the four others make 80; in rounds it is 400 s."""
    state, ledger = done(
        settings(async__seconds="1,1,1,1,20", num_server_rounds=20, evaluate__every=20)
    )
    visits = Counter(event.hospital for event in ledger.of("train"))
    assert sum(visits.values()) == 100
    assert visits["h4"] == 2
    assert state.clock <= 41
    shares = busy(ledger)
    assert min(shares[f"h{k}"] for k in range(4)) > 0.9


def test_with_uniform_all_wait_for_the_slow_one():
    """A fifth of the visits are there, one after the other: as long as in rounds."""
    chosen = settings(async__seconds="1,1,1,1,20", async__choose="uniform", num_server_rounds=9)
    state, ledger = done(chosen)
    there = sum(event.hospital == "h4" for event in ledger.of("train"))
    assert state.clock == pytest.approx(20 * there, abs=20)
    assert busy(ledger)["h0"] < 0.2


def test_a_synchronous_method_takes_its_virtual_time_too():
    chosen = settings(asynchronous=False, async__seconds="1,1,20", num_server_rounds=3)
    _, ledger = done(chosen, hospitals=3)
    times = {(each.round, each.time) for each in ledger.of("evaluate")}
    assert times == {(1, 20.0), (2, 40.0), (3, 60.0)}
    ends = [(each.hospital, each.began, each.time) for each in ledger.of("train")[-3:]]
    assert sorted(ends) == [("h0", 40.0, 41.0), ("h1", 40.0, 41.0), ("h2", 40.0, 60.0)]


def test_with_uniform_a_lineage_goes_the_same_way_whoever_is_fast():
    ways = []
    for seconds in ("1", "1,2,3,4,5", "9,1,1,1,4"):
        chosen = settings(async__seconds=seconds, async__choose="uniform", num_server_rounds=10)
        ways.append(paths(done(chosen)[0]))
    for name in ways[0]:
        shortest = min(len(way[name]) for way in ways)
        assert shortest > 2
        assert len({tuple(way[name][:shortest]) for way in ways}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("choose", ["shortest", "uniform"])
def test_no_model_trains_twice_in_a_row_at_one_hospital(choose):
    ways = paths(done(settings(async__choose=choose, num_server_rounds=20))[0])
    for way in ways.values():
        assert all(here != there for here, there in pairwise(way))


def test_models_move_in_virtual_time_as_they_did_before():
    chosen = settings(async__seconds="1,2,3", num_server_rounds=10)
    runs = [
        done(chosen, FakeGrid(federation(4), np.random.default_rng(seed)))[0] for seed in range(3)
    ]
    assert paths(runs[0]) == paths(runs[1]) == paths(runs[2])


@pytest.mark.parametrize("variant", ["full", "buffer-only", "synthetic-only"])
def test_feder_replays_the_buffer_of_the_hospital_that_hands_on(variant):
    chosen = settings(strategy="feder", feder__variant=variant, num_server_rounds=6)
    hospitals = federation(3)
    state, ledger = done(chosen, FakeGrid(hospitals))
    for name, hospital in zip("012", hospitals.values(), strict=True):
        own = [f"h{name}"] if variant == "synthetic-only" else []
        visits = [each for each in ledger.of("train") if each.hospital == f"h{name}"]
        assert len(visits) == len(hospital.replayed)
        way = paths(state)
        for visit, replayed in zip(visits, hospital.replayed, strict=True):
            before = way[visit.lineage][: visit.hop - 1]
            if variant == "buffer-only":
                assert visit.lineage == visit.hospital
                assert len(replayed) == (visit.hop > 1)
                assert visit.hospital not in replayed
            else:
                assert replayed == own + [each for each in before[-1:] if each != visit.hospital]


def test_a_visit_from_before_a_kill_replays_the_same_buffer_though_a_hospital_has_joined(tmp_path):
    method = strategy_of(settings(strategy="feder", feder__variant="buffer-only"))
    state = State(Shelf(tmp_path), "run", queues={name: [name] for name in ("h0", "h1")})
    state.models = {name: Model(name, name, "", turns=1) for name in state.queues}
    state.buffers = dict.fromkeys(("h0", "h1", "h2"), "buffer")
    first = {visit.key: visit for visit in method.plan(state)}
    state.ordered = {key: FirstOrder(1, 0.0, [*visit.replay], "") for key, visit in first.items()}
    for late in range(2, 12):
        state.queues[f"h{late}"] = []
    assert {visit.key: visit for visit in method.plan(state)} == first


def test_a_round_is_as_many_visits_as_there_are_models():
    _, ledger = done(settings(num_server_rounds=7))
    assert Counter(event.round for event in ledger.of("train")) == dict.fromkeys(range(1, 8), 5)
    assert ledger.rounds == [*range(1, 8)]


@pytest.mark.parametrize("name", [n for n, s in STRATEGIES.items() if not issubclass(s, HandsOn)])
def test_other_methods_are_refused_with_the_reason(name):
    with pytest.raises(SettingsError, match=f"'asynchronous' is true; .* '{name}': [a-z ]+") as no:
        strategy_of(settings(strategy=name))
    assert STRATEGIES[name].needs_rounds in str(no.value)


def test_tests_do_not_wait_for_an_idle_hospital_if_none_is_ever_idle():
    with pytest.raises(SettingsError, match=r"'async\.tests' is 'idle'; it must be next if models"):
        strategy_of(settings(strategy="feder", feder__variant="buffer-only", async__tests="idle"))


@pytest.mark.parametrize("wrong", ["0", "1,", "a", "-1", "inf", "nan"])
def test_seconds_that_cannot_be_are_refused(wrong):
    with pytest.raises(SettingsError, match=r"'async.seconds' is .* numbers above 0"):
        strategy_of(settings(async__seconds=wrong))


# No model is lost, doubled, or starved.


class Watched:
    """Looks at the state whenever it is kept."""

    def __init__(self, lineages=()):
        self.lineages = set(lineages)

    def __call__(self, state):
        waiting = [name for queue in state.queues.values() for name in queue]
        assert sorted(waiting) == sorted(state.models)
        assert self.lineages <= set(state.models)
        self.lineages = set(state.models)
        at = [visit.hospital for visit in state.under_way]
        assert len(at) == len(set(at))
        for visit in state.under_way:
            assert state.queues[visit.hospital][0] == visit.model


class Moody(CountingHospital):
    """Fails at some visits."""

    def __init__(self, name, fails):
        super().__init__(name)
        self.fails = list(fails)

    def train(self, message, order):
        if self.fails and self.fails.pop(0):
            return failing(message)
        return super().train(message, order)


@pytest.mark.slow
@given(
    method=st.sampled_from(["rwt", "feder", "buffer-only"]),
    choose=st.sampled_from(["shortest", "uniform"]),
    tests=st.sampled_from(["next", "idle"]),
    seconds=st.lists(st.integers(1, 30), max_size=5),
    fails=st.lists(st.lists(st.booleans(), max_size=12), min_size=1, max_size=6),
    late=st.integers(0, 40),
    seed=st.integers(0, 2**32 - 1),
)
@hypothesis_settings(max_examples=12, deadline=None)
def test_no_model_is_lost_doubled_or_starved(method, choose, tests, seconds, fails, late, seed):
    """With any speeds, failures, order of answers, and a hospital that joins; none always fails."""
    changes = {"strategy": "feder", "feder__variant": method} if method == "buffer-only" else {}
    tests = "next" if method == "buffer-only" else tests
    chosen = settings(
        **{"strategy": method, **changes},
        min_hospitals=1,
        num_server_rounds=8,
        async__choose=choose,
        async__tests=tests,
        async__seconds="" if late else ",".join(map(str, seconds)),
        evaluate__every=2,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(courier, "LOOK_ROUND", 0.0)
        hospitals = {100 + k: Moody(f"h{k}", each) for k, each in enumerate(fails)}
        grid = FakeGrid(hospitals, np.random.default_rng(seed))
        joining, watched = Moody("new", fails[0]), Watched()

        def keep(state):
            watched(state)
            if late and len(grid.sent) >= late:
                grid.handlers[99] = joining

        state, ledger = done(chosen, grid, keep=keep)
    good = [each for each in ledger.of("train") if each.outcome == "ok"]
    way = paths(state)
    for name, parcel in parcels_of(state).items():
        mine = [each for each in good if each.lineage == name]
        assert [each.hospital for each in mine] == way[name]
        assert parcel.array_records["model"]["visits"].numpy()[0] == len(mine)
        numbers = [each.hop for each in ledger.of("train") if each.lineage == name]
        assert numbers == [*range(1, len(numbers) + 1)]
    counts = Counter(each.round for each in good)
    assert all(count <= len(state.models) for count in counts.values())
    assert ledger.rounds == [*range(1, 9)]
    if not any(map(any, fails)) and not late:
        assert len(good) == 8 * len(fails)
        assert all(way.values())


def test_if_nobody_can_train_the_run_fails_after_its_rounds():
    hospitals = {100 + k: Moody(f"h{k}", [True] * 99) for k in range(3)}
    with pytest.raises(RunError, match="No hospital has trained any model"):
        done(settings(num_server_rounds=4), FakeGrid(hospitals))


def test_a_hospital_that_always_fails_is_asked_once_more_in_a_round_and_holds_nobody_up():
    hospitals = federation(4, h3=Moody("h3", [True] * 99))
    state, ledger = done(settings(num_server_rounds=6), FakeGrid(hospitals), keep=Watched())
    outcomes = Counter((each.hospital, each.outcome) for each in ledger.of("train"))
    assert outcomes["h3", "crashed"] <= 1 + 6
    assert sum(count for (_, how), count in outcomes.items() if how == "ok") == 24
    assert all(paths(state).values())


def test_quick_hospitals_that_fail_once_do_not_leave_all_models_to_a_slow_one():
    """Each fails its second visit; if they rested, the slow one had 20 s before the next visit."""
    moody = {f"h{k}": Moody(f"h{k}", [False, True]) for k in range(4)}
    chosen = settings(async__seconds="1,1,1,1,20", num_server_rounds=8, evaluate__every=8)
    _, ledger = done(chosen, FakeGrid(federation(5, **moody)))
    assert {each.outcome for each in ledger.of("train")} == {"ok", "crashed"}
    assert min(busy(ledger)[name] for name in moody) > 0.9


# Hospitals that leave, and come.


@pytest.fixture
def _quick(monkeypatch):
    monkeypatch.setattr(courier, "LOOK_ROUND", 0.0)
    monkeypatch.setattr(courier, "GRACE", 0.0)


class Silent(CountingHospital):
    """Never answers its second visit."""

    def __init__(self, name):
        super().__init__(name)
        self.visits = []

    def __call__(self, message):
        if message.metadata.message_type == "train":
            self.visits = [*dict.fromkeys([*self.visits, message.metadata.message_id])]
            if message.metadata.message_id in self.visits[1:2]:
                return None
        return super().__call__(message)


@pytest.mark.slow
@pytest.mark.usefixtures("_quick")
def test_one_that_never_answers_loses_its_model_to_the_last_good_copy():
    grid, ledger = FakeGrid(federation(3, h2=Silent("h2"))), Ledger()
    state = go(settings(num_server_rounds=20, hop_timeout=2.0), grid, ledger, keep=Watched())
    lost = next(event for event in ledger.of("train") if event.outcome == "timeout")
    way = paths(state)[lost.lineage]
    theirs = [each for each in ledger.of("train") if each.lineage == lost.lineage]
    after = theirs[theirs.index(lost) + 1]
    assert (after.hop, after.hospital == lost.hospital) == (lost.hop + 1, False)
    assert [each.hospital for each in theirs if each.outcome == "ok"] == way
    assert sum(map(len, paths(state).values())) == 60


@pytest.mark.usefixtures("_quick")
def test_one_that_leaves_gives_its_queue_back_and_one_that_returns_gets_work_at_once():
    grid = FakeGrid(federation(4))
    gone = {}

    class Watching(Ledger):
        def record(self, event):
            super().record(event)
            visits = len(self.of("train"))
            if visits == 10 and not any(
                m.metadata.dst_node_id == 103 for m in grid.waiting.values()
            ):
                gone.update({103: grid.handlers.pop(103)} if 103 in grid.handlers else {})
            if visits == 30 and gone:
                grid.handlers.update(gone)

    ledger = Watching()
    chosen = settings(num_server_rounds=40, min_hospitals=1, evaluate__every=40)
    state = go(chosen, grid, ledger, keep=Watched())
    visits = ledger.of("train")
    theirs = [index for index, each in enumerate(visits) if each.hospital == "h3"]
    missed = [index for index in theirs if visits[index].outcome == "gone"]
    if gone:
        assert missed
        assert visits[theirs[-1]].outcome == "ok"
        assert [each for each in theirs if 30 < each < 40]
    good = sum(each.outcome == "ok" for each in visits)
    assert good == 160 == sum(map(len, paths(state).values()))


@pytest.mark.usefixtures("_quick")
def test_one_that_joins_brings_a_lineage_and_nobody_waits_while_it_prepares():
    joining = CountingHospital("new")

    class Grid(FakeGrid):
        def pull_messages(self, message_ids):
            """It prepares for as long as fifteen visits."""
            done = sum(m.metadata.message_type == "train" for m in self.sent)
            chosen = [
                k for k in message_ids if done > 25 or self.waiting[k].metadata.dst_node_id != 99
            ]
            return super().pull_messages(chosen) if chosen else []

    grid = Grid(federation(3))

    def keep(state):
        if len(grid.sent) > 16:
            grid.handlers[99] = joining

    state, ledger = done(settings(num_server_rounds=20), grid, keep=keep)
    assert sorted(state.models) == ["h0", "h1", "h2", "new"]
    assert paths(state)["new"][0] == "new"
    order = [(each.verb, each.hospital) for each in ledger.events]
    asked = order.index(("query.enrol", "new"))
    there = order.index(("query.prepare", "new"))
    assert ("train", "h0") in order[asked - 5 : there]
    assert Counter(each.round for each in ledger.of("train"))[20] == 4


# Tests without a barrier.


class Slow(FakeGrid):
    """Hospital h2 answers its visits only at every 40th look at the mailbox."""

    pulls = 0

    def pull_messages(self, message_ids):
        self.pulls += 1
        slow = {k for k, m in self.waiting.items() if m.metadata.dst_node_id == 102}
        ready = self.pulls % 40 == 0
        chosen = [k for k in message_ids if ready or k not in slow or not self.is_visit(k)]
        return super().pull_messages(chosen) if chosen else []

    def is_visit(self, message_id):
        return self.waiting[message_id].metadata.message_type == "train"


@pytest.mark.slow
@pytest.mark.parametrize("tests", ["next", "idle"])
def test_hospitals_test_when_they_have_time_and_the_last_models_are_tested_by_all(
    tests, monkeypatch
):
    monkeypatch.setattr(courier, "LONGEST_PAUSE", 0.01)
    chosen = settings(num_server_rounds=12, async__tests=tests)
    state, ledger = done(chosen, Slow(federation(4)))
    tested: dict[int, set[str]] = {}
    for event in ledger.of("evaluate"):
        tested.setdefault(event.round, set()).add(event.hospital)
    assert tested[12] == {"h0", "h1", "h2", "h3"}
    versions = {event.lineage: event.hop for event in ledger.of("evaluate") if event.round == 12}
    assert versions == {name: model.turns for name, model in state.models.items()}
    without = [number for number in range(1, 12) if "h2" not in tested.get(number, set())]
    assert len(without) > 4  # it was at a visit
    if tests == "next":
        assert all({"h0", "h1"} & tested[number] for number in range(1, 12))
    assert ledger.rounds == [*range(1, 13)]
    first_late = next(k for k, e in enumerate(ledger.events) if e.verb == "train" and e.round == 2)
    if tests == "next":
        assert any(e.verb == "evaluate" and e.round == 1 for e in ledger.events[first_late:])


class Late(FakeGrid):
    """Hospital h2 answers its tests only after `visits` visits."""

    visits = 0

    def pull_messages(self, message_ids):
        chosen = [k for k in message_ids if self.is_due(self.waiting[k].metadata)]
        return super().pull_messages(chosen) if chosen else []

    def is_due(self, message):
        done = sum(m.metadata.message_type == "train" for m in self.sent)
        return done >= self.visits or (message.dst_node_id, message.message_type) != (
            102,
            "evaluate",
        )


def test_an_answer_about_a_round_that_is_over_is_not_recorded():
    """A resumed run would count it, and a run that goes on does not."""

    class Closed(Ledger):
        def record(self, event):
            super().record(event)
            assert event.verb != "evaluate" or event.round not in self.rounds

    grid, ledger = Late(federation(3)), Closed()
    grid.visits = 12  # of 15
    go(settings(num_server_rounds=5), grid, ledger)
    tested = {event.round for event in ledger.of("evaluate") if event.hospital == "h2"}
    assert 1 not in tested
    assert 5 in tested


def test_a_round_is_closed_if_its_tests_undo_a_model_in_the_last_round(tmp_path):
    chosen, ledger = settings(num_server_rounds=2), Ledger()
    state, counting = State(Shelf(tmp_path), "run", round=2), CountingHospital("h0")
    good, bad = (
        state.shelf.put(counting.parcel(k, Manifest("h0", "net", ["a", "b"], k, 1, 1, ["h1"] * k)))
        for k in (0, 1)
    )
    state.models["h0"] = Model("h0", "h1", bad, good=good, round=1)
    state.test_round, state.judgements = 1, {bad: {"h0": True}}
    Engine(
        Run(chosen, strategy_of(chosen), state, Courier(FakeGrid({})), ledger), print
    )._close_tests()
    assert state.models["h0"].parcel == good
    assert (ledger.rounds, state.test_round) == ([1], 0)


@pytest.mark.slow
@pytest.mark.parametrize("tests", ["next", "idle"])
def test_nobody_is_asked_about_a_model_that_was_there_in_a_newer_version(tests, tmp_path):
    """A hospital that waits with its tests has newer models until then."""
    hospitals = {100 + k: Sealing(f"h{k}", tmp_path) for k in range(5)}
    chosen = settings(num_server_rounds=20, async__tests=tests)
    _, ledger = done(chosen, Slow(hospitals))
    assert len(ledger.of("evaluate")) > 5 * 5


class Critic(CountingHospital):
    """Finds a model useless, or not, when it is tested, by chance: the same for each copy."""

    def parcel(self, visits, label):
        way = json.dumps([label.lineage, label.visited, label.hop, label.round, float(visits)])
        arrays = np.frombuffer(hashlib.sha256(way.encode()).digest(), np.uint8)
        model = ArrayRecord({"visits": Array(np.array([visits], "f4")), "way": Array(arrays)})
        return pack({"model": model}, label)

    def evaluate(self, message, order):
        reply = super().evaluate(message, order)
        for name, parcel in unbundle(message.content).items():
            copy = hash_arrays(parcel.array_records["model"])
            if int(hashlib.sha256(f"{self.name} {copy}".encode()).hexdigest(), 16) % 3 == 0:
                metrics = reply.content.metric_records["metrics"]
                del metrics[f"{name}/accuracy"]
                metrics[f"{name}/refused"] = float(Failure.USELESS)
        return reply


CRITICS = {100 + k: Critic(f"h{k}") for k in range(4)}  # they keep what they have been sent
UNDONE = partial(settings, async__seconds="1,3,2,7", num_server_rounds=6)


@pytest.mark.parametrize("changes", [{}, {"strategy": "feder", "feder__variant": "buffer-only"}])
def test_a_visit_from_a_copy_that_is_undone_meanwhile_leaves_no_model(changes, tmp_path):
    """Also if the server is killed at any time: models and events are those of a whole run."""

    def result(state, ledger):
        events = ((e.verb, e.round, e.hop, e.hospital, e.lineage, e.outcome) for e in ledger.events)
        return state.models, sorted(events)

    chosen, kept = UNDONE(**changes), []
    made: dict[tuple[str, int, int], Manifest] = {}

    def keep(state):
        state.shelf.write(state.parcels)
        kept.append((json.dumps(state.to_json()), len(ledger.events)))
        labels = [state.shelf.label(model.parcel) for model in state.models.values()]
        made.update({(each.lineage, each.round, each.hop): each for each in labels})

    ledger = Ledger()
    whole = go(chosen, FakeGrid(CRITICS), ledger, tmp_path, keep)
    dropped = [e for e in ledger.of("train") if "refused the copy that it trained" in e.reason]
    assert dropped
    undone = {made[e.lineage, e.round, e.hop].hash_of["model"] for e in ledger.of("undo")}
    assert not undone & {label.parent for label in made.values()}
    for text, told in kept:
        again = Ledger()
        again.events = ledger.events[:told]
        state = State.from_json(json.loads(text), Shelf(tmp_path))
        run = Run(chosen, strategy_of(chosen), state, Courier(FakeGrid(CRITICS)), again)
        Engine(run, lambda _: None).go()
        assert result(state, again) == result(whole, ledger)


def test_a_run_with_a_dropped_model_is_replayed(tmp_path):
    path, way = recorded(tmp_path / "a", UNDONE(), FakeGrid(CRITICS))
    assert "parcel" in {each[-1] for each in in_order(path)}
    again = settings(num_server_rounds=6, async__replay=str(path))
    replayed, same = recorded(tmp_path / "b", again, FakeGrid(CRITICS))
    assert (in_order(replayed), same) == (in_order(path), way)


# The order of a run, replayed.


class Killed(Results):
    """The server is killed in the third round."""

    def keep(self, state):
        super().keep(state)
        if state.round == 3:
            raise InterruptedError

    def _claim(self):
        """Its lock goes with its process."""


def recorded(folder, chosen, grid, kind=Results):
    """A run whose result directory is kept."""
    chosen = replace(chosen, output_dir=str(folder))
    results, state = kind.open(chosen)
    run = Run(chosen, strategy_of(chosen), state, Courier(grid), results)
    Engine(run, results.keep).go()
    return results.path, paths(state)


def in_order(path):
    lines = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
    return [
        (each["hospital"], each["lineage"], each["hop"], each["round"], each["outcome"])
        for each in lines
        if each["verb"] == "train"
    ]


def test_a_recorded_order_is_replayed_with_its_failures(tmp_path):
    fails = [[False, True], [], [False] * 5 + [True], []]
    first = {100 + k: Moody(f"h{k}", each) for k, each in enumerate(fails)}
    chosen = settings(num_server_rounds=10)
    path, way = recorded(tmp_path / "a", chosen, FakeGrid(first))
    assert {outcome for *_, outcome in in_order(path)} == {"ok", "crashed"}
    again = settings(num_server_rounds=10, async__replay=str(path))
    replayed, same = recorded(tmp_path / "b", again, FakeGrid(federation(4)))
    assert in_order(replayed) == in_order(path)
    assert same == way


@pytest.mark.parametrize("refused", [["h1"], ["h0", "h1", "h2", "h3"]])
def test_a_replay_has_the_models_of_a_run_with_refused_models(refused, tmp_path):
    """A hospital that refuses all models refuses the copy before, too: its visit ends there."""

    def hospitals():
        return FakeGrid(federation(4, h2=Fussy("h2", *refused)))

    path, way = recorded(tmp_path / "a", settings(num_server_rounds=8), hospitals())
    assert (("h2", "useless") in {(each[0], each[-1]) for each in in_order(path)}) == (
        len(refused) == 4
    )
    again = settings(num_server_rounds=8, async__replay=str(path))
    replayed, same = recorded(tmp_path / "b", again, hospitals())
    assert in_order(replayed) == in_order(path)
    assert same == way


def test_a_replay_without_a_hospital_of_the_record_is_refused(tmp_path):
    """Without the slow h2 it ended after 4 of the 6 visits."""
    chosen = settings(num_server_rounds=2, async__seconds="1,1,20")
    path, _ = recorded(tmp_path, chosen, FakeGrid(federation(3)))
    assert "h2" not in [hospital for hospital, *_ in in_order(path)[:4]]
    again = settings(num_server_rounds=2, min_hospitals=2, async__replay=str(path))
    with pytest.raises(RunError, match="not ready here: h2"):
        done(again, hospitals=2)


def test_a_return_after_a_kill_is_recorded_for_a_replay(tmp_path):
    """The hospital rested and was away when the run was resumed."""
    chosen = settings(num_server_rounds=2)
    grid, ledger = FakeGrid(federation(3)), Ledger()
    state = go(chosen, grid, Ledger(), tmp_path)
    state.nodes["h1"], state.resting = AWAY, ["h1"]
    engine = Engine(
        Run(chosen, strategy_of(chosen), state, Courier(grid), ledger), lambda state: None
    )
    engine.exchange.post(preparations(engine.run, {"h1": 101}))
    engine._take()
    assert state.resting == []
    assert [(each.verb, each.hospital) for each in ledger.events] == [("query.prepare", "h1")]


def test_a_record_that_does_not_fit_is_refused(tmp_path):
    path, _ = recorded(tmp_path, settings(num_server_rounds=3), FakeGrid(federation(3)))
    for changes, words in (
        ({"seed": 5, "async__choose": "uniform"}, "here it does not"),
        ({"num_server_rounds": 4}, "has ended, and the run has not"),
    ):
        chosen = settings(**{"num_server_rounds": 3, "async__replay": str(path), **changes})
        with pytest.raises(RunError, match=words):
            done(chosen, hospitals=3)
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(SettingsError, match=r"'async.replay' is .* result directory"):
            done(settings(async__replay=str(place)))
    text = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text(text.replace('"ok"', '"nice"'))
    with pytest.raises(SettingsError, match=r"'async.replay' is .* outcome 'nice'"):
        done(settings(num_server_rounds=3, async__replay=str(path)))
    lines = text.splitlines()
    joined = next(line for line in lines if '"query.prepare"' in line).replace("h0", "h9")
    first = next(k for k, line in enumerate(lines) if '"train"' in line)
    lines.insert(first + 1, joined)
    (path / "metrics.jsonl").write_text("\n".join(lines))
    with pytest.raises(RunError, match="not ready here: h9"):
        done(settings(num_server_rounds=3, async__replay=str(path)), hospitals=3)


@pytest.mark.slow
@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("kill", [False, True])
def test_a_hospital_that_joined_midway_joins_again_when_its_turn_has_come(kill, tmp_path):
    """Though it is there from the start this time; also if the server is killed before."""
    grid = FakeGrid(federation(3))

    class Watching(Results):
        def record(self, event):
            super().record(event)
            if event.verb == "train" and event.round == 4:
                grid.handlers[99] = CountingHospital("new")

    path, way = recorded(tmp_path / "a", settings(num_server_rounds=12), grid, Watching)
    assert len(way["new"]) > 3
    again = FakeGrid({99: CountingHospital("new"), **federation(3)})
    chosen = settings(num_server_rounds=12, async__replay=str(path))
    if kill:
        with pytest.raises(InterruptedError):
            recorded(tmp_path / "b", chosen, again, Killed)
        (there,) = (tmp_path / "b").iterdir()
        chosen = replace(chosen, resume=str(there))
    replayed, same = recorded(tmp_path / "b", chosen, again)
    assert in_order(replayed) == in_order(path)
    assert same == way
