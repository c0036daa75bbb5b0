"""Runs whose server is killed, wherever it may be, and that go on: as if nothing had happened.

The server is killed by an exception that nothing catches, or its files are copied as a kill would
leave them. What it had in memory is lost. The hospitals live on, and have done what was asked last.
"""

import copy
import json
import os
import shutil
import time
import zipfile
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.common.config import parse_config_args
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from client_app.app import app as hospital_app
from server_app import live, results
from server_app.results import Results as RealResults
from strategies.engine import checkpoint
from strategies.engine.checkpoint import CheckpointError
from strategies.engine.courier import Courier
from strategies.engine.engine import Engine
from strategies.engine.run import Run as EngineRun
from strategies.engine.shelf import Shelf
from strategies.engine.state import FirstOrder, Model, State
from strategies.engine.strategy import RunError
from strategies.engine.visit import Visit
from strategies.protocol import files, shapes
from strategies.protocol.order import Order
from strategies.protocol.parcel import Manifest, check_parcel, pack
from strategies.protocol.parcel import save as save_parcel
from strategies.protocol.settings import Settings, SettingsError
from strategies.registry import STRATEGIES, strategy_of
from tests.fakes import (
    CountingHospital,
    FakeGrid,
    Ledger,
    Sealing,
    Withholding,
    context,
    failing,
    go,
    parcels_of,
    run_config,
    settings,
)

HOSPITALS = 3


class Killed(BaseException):
    """The server is gone."""


class Clock:
    """Counts what the server does, and kills it at one count, or does something at each."""

    def __init__(self, end=None, at=lambda now: None):
        self.now = 0
        self.end = end
        self.at = at

    def tick(self):
        if self.now == self.end:
            raise Killed
        self.at(self.now)
        self.now += 1


class MortalGrid(FakeGrid):
    """The server may be killed before and after it sends, and before it takes answers in."""

    clock = Clock()

    def push_messages(self, messages):
        self.clock.tick()
        sent = super().push_messages(messages)
        self.clock.tick()
        return sent

    def pull_messages(self, message_ids):
        if answers := super().pull_messages(message_ids):
            self.clock.tick()
        return answers


class Results(RealResults):
    """The server may be killed before it takes note; its process, and so its lock, goes with it."""

    clock = Clock()

    def record(self, event):
        self.clock.tick()
        super().record(event)

    def round_finished(self, server_round):
        self.clock.tick()
        super().round_finished(server_round)

    def keep(self, state):
        self.clock.tick()
        super().keep(state)

    def _claim(self):
        pass


class Run:
    """A run of a strategy at counting hospitals, in parts."""

    def __init__(self, folder, strategy, hospitals=None, seed=0, **overrides):
        self.folder, self.strategy, self.seed = folder, strategy, seed
        self.hospitals = hospitals or [CountingHospital(f"h{k}", k + 1) for k in range(HOSPITALS)]
        self.settings = settings(
            **{
                "strategy": strategy,
                "num_server_rounds": 2,
                "min_hospitals": 1,
                "output_dir": str(folder),
                "evaluate__epochs": False,
                **overrides,
            }
        )
        self.parts = 0

    def part(self, end=None, away=(), at=lambda now: None):
        """Begin or go on, up to a kill at a count; whether the run came to its end."""
        self.parts += 1
        node = 1000 * self.parts
        handlers = {
            node + k: each for k, each in enumerate(self.hospitals) if each.name not in away
        }
        grid = MortalGrid(handlers, np.random.default_rng([self.seed, self.parts]))
        grid.clock = clock = Clock(end, at)
        found = list(self.folder.glob("*"))
        resume = str(found[0]) if found else ""
        self.results, self.state = Results.open(replace(self.settings, resume=resume))
        self.results.clock = clock
        self.grid = grid
        strategy = strategy_of(self.settings)
        run = EngineRun(self.settings, strategy, self.state, Courier(grid), self.results)
        try:
            Engine(run, self.results.keep).go()
        except Killed:
            return False
        self.ticks = clock.now
        return True

    def killed(self, folder):
        """What a kill in this moment would leave: the files, and the hospitals."""
        shutil.copytree(self.folder, folder)
        run = Run(folder, self.strategy, copy.deepcopy(self.hospitals), self.seed)
        run.settings, run.parts = replace(self.settings, output_dir=str(folder)), self.parts
        return run

    @property
    def outcome(self):
        """All that a run is judged by, without how long it took."""
        events = sorted(
            (*place, e.outcome, e.epochs, e.bytes_sent, e.bytes_received, sorted(e.metrics.items()))
            for e in self.results._events
            for place in [(e.round, e.hop, e.verb, e.hospital, e.lineage)]
        )
        parcels = {
            lineage: (
                dict(parcel["manifest"]),
                {n: {k: a.data for k, a in r.items()} for n, r in parcel.array_records.items()},
            )
            for lineage, parcel in parcels_of(self.state).items()
        }
        lines = len((self.results.path / "metrics.jsonl").read_text().splitlines())
        return events, parcels, lines, [r.figures["train_loss"] for r in self.results._rounds]


@pytest.fixture
def _no_waiting(monkeypatch):
    """Nothing here waits for a disk or between looks into the mailbox, which changes at each look.

    Nobody reads the pages of a thousand runs.
    """
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(results, "render", lambda *_, **__: "")
    monkeypatch.setattr(live.LivePage, "write", lambda *_: None)


CASES: dict[str, tuple[str, dict[str, object]]] = {name: (name, {}) for name in STRATEGIES}
CASES["fedrewind of fedavg"] = ("fedrewind", {"rewind__base": "fedavg"})
CASES["centralized synthetic"] = ("centralized", {"centralized__data": "synthetic"})
QUICK = ("cwc",)  # the other cases are slow
CASES["without evaluation"] = ("cwc", {"evaluate__every": 2})
IN_VIRTUAL_TIME = {"asynchronous": True, "async__seconds": "1,2,5"}
CASES["fedavg in tasks"] = ("fedavg", {"tasks": 2, "task_cut": "permuted"})
CASES["rwt asynchronous"] = ("rwt", IN_VIRTUAL_TIME)
CASES["feder asynchronous"] = ("feder", {**IN_VIRTUAL_TIME, "async__choose": "uniform"})


def quick_or_slow(cases):
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in cases]


@pytest.mark.slow
@pytest.mark.usefixtures("_no_waiting")
@pytest.mark.parametrize("case", quick_or_slow(CASES))
def test_a_run_killed_anywhere_ends_as_if_it_had_not_been(case, tmp_path):
    """At each count one run leaves what it would have left if it had been killed there."""
    strategy, overrides = CASES[case]
    unbroken = Run(tmp_path / "unbroken", strategy, **overrides)
    killed: list[Run] = []
    assert unbroken.part(at=lambda now: killed.append(unbroken.killed(tmp_path / str(now))))
    assert len(killed) == unbroken.ticks
    expected = unbroken.outcome
    for run in killed[1:]:  # at 0 there is no run yet
        assert run.part()
        assert run.results._resumed == 1
        assert run.outcome == expected


class Unreliable(CountingHospital):
    """Fails at some visits; at which, follows from their places."""

    def train(self, message, order):
        place = sum(map(ord, f"{order.round}/{order.hop}/{self.name}"))
        return failing(message) if place % 3 == 0 else super().train(message, order)


@pytest.mark.slow
@pytest.mark.usefixtures("_no_waiting")
@given(
    strategy=st.sampled_from(sorted(STRATEGIES)),
    ends=st.lists(st.integers(1, 90), max_size=5),
    seed=st.integers(0, 2**32),
)
@hypothesis_settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_run_may_be_killed_several_times(strategy, ends, seed, tmp_path_factory):
    """With hospitals that fail, and answer in another order each time."""
    runs = []
    for kills in (list[int](), ends):
        hospitals = [Unreliable(f"h{k}", k + 1) for k in range(HOSPITALS)]
        run = Run(tmp_path_factory.mktemp("run"), strategy, hospitals, seed)
        assert any(run.part(end) for end in [*kills, None])
        runs.append(run)
    assert runs[0].outcome == runs[1].outcome
    assert runs[1].results._resumed == runs[1].parts - 1


@pytest.mark.slow
@pytest.mark.usefixtures("_no_waiting")
@pytest.mark.parametrize("end", range(50, 95, 5))
def test_parcels_of_a_hospital_that_does_not_come_back_go_on_elsewhere(end, tmp_path):
    run = Run(tmp_path, "cwt", num_server_rounds=4)
    assert not run.part(end)
    assert run.part(away=["h1"])
    assert sorted(run.state.models) == ["h0", "h1", "h2"]
    for lineage, parcel in parcels_of(run.state).items():
        visits = [e for e in run.results._events if e.verb == "train" and e.outcome == "ok"]
        theirs = [e.hospital for e in visits if e.lineage == lineage]
        assert check_parcel(parcel).visited == theirs
    gone = [e for e in run.results._events if e.verb == "train" and e.outcome == "gone"]
    assert {e.hospital for e in gone} == {"h1"}


@pytest.mark.slow
@pytest.mark.usefixtures("_no_waiting")
@pytest.mark.parametrize("end", [55, 75, 90])
def test_without_rounds_no_model_looks_older_after_a_kill(end, tmp_path):
    """A hospital that is away when the run goes on has lost the visit that it had been sent."""
    hospitals = [Sealing(f"h{k}", tmp_path / "stores") for k in range(HOSPITALS)]
    run = Run(tmp_path / "runs", "rwt", hospitals, asynchronous=True, num_server_rounds=12)
    assert not run.part(end)
    assert not run.part(end, away=["h1"])
    assert run.part()


@pytest.mark.slow
@pytest.mark.usefixtures("_no_waiting")
@pytest.mark.parametrize("strategy", quick_or_slow(["cwt", "cwc", "fedavg"]))
def test_a_hospital_that_is_new_after_a_kill_takes_part_from_the_next_round_on(strategy, tmp_path):
    unbroken = Run(tmp_path / "unbroken", strategy, num_server_rounds=3)
    assert unbroken.part(away=["h0"])
    for end in range(20, unbroken.ticks):
        run = Run(tmp_path / str(end), strategy, num_server_rounds=3)
        assert not run.part(end, away=["h0"])
        begun = max(e.round for e in run.results._events)
        assert run.part()
        visited = {e.round for e in run.results._events if e.verb == "train"}
        assert visited == {1, 2, 3}
        theirs = {e.round for e in run.results._events if e.hospital == "h0" and e.verb == "train"}
        assert set(range(begun + 1, 4)) <= theirs <= set(range(begun, 4))
        for round_ in visited:  # nobody twice in a hop, nor in a serial round
            hops = [
                ("" if strategy == "cwc" else e.hop, e.hospital)
                for e in run.results._events
                if e.verb == "train" and e.round == round_
            ]
            assert len(hops) == len(set(hops))


def test_orders_name_the_same_run_before_and_after_and_another_in_another(tmp_path):
    run, other = Run(tmp_path / "a", "cwt"), Run(tmp_path / "b", "cwt")
    identities = []
    for each, end in ((run, 40), (run, None), (other, None)):
        each.part(end)
        (identity,) = {message.content["order"]["run"] for message in each.grid.sent}
        identities.append(identity)
    assert identities[0] == identities[1] != identities[2]


def test_orders_are_for_the_same_tasks_before_and_after(tmp_path):
    """Also those to prepare: the first task's images are there, whenever a hospital comes back."""
    run = Run(tmp_path, "rwt", tasks=2, task_cut="permuted", num_server_rounds=4)
    tasks: dict[str, set[tuple[int, int]]] = {}
    for end in (45, None):
        run.part(end)
        for message in run.grid.sent:
            order = Order.read(message.content)
            of_verb = tasks.setdefault(message.metadata.message_type, set())
            of_verb.add((order.round, order.task))
    assert run.parts == 2
    assert {each.round for each in run.results._events if each.round} == {1, 2, 3, 4}
    visits = {(1, 1), (2, 1), (3, 2), (4, 2)}
    assert tasks == {
        "query.enrol": {(0, 0)},
        "query.prepare": {(0, 1)},
        "train": visits,
        "evaluate": visits,
    }


# Kills between the operations on files.


@pytest.fixture
def file_clock(monkeypatch):
    """Counts what is done to files, and kills at one count; a text is then written by half."""
    clock = Clock()

    def counted(real):
        def tick(*args, **kwargs):
            clock.tick()
            return real(*args, **kwargs)

        return tick

    for name in ("fsync", "replace", "unlink", "open", "truncate", "mkdir", "rmdir"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    write, add = Path.write_text, zipfile.ZipFile.writestr

    def write_half(path, text, **kwargs):
        if clock.now == clock.end:
            write(path, text[: len(text) // 2], **kwargs)
        clock.tick()
        return write(path, text, **kwargs)

    def count_entry(*args):
        clock.tick()
        add(*args)

    monkeypatch.setattr(Path, "write_text", write_half)
    monkeypatch.setattr(zipfile.ZipFile, "writestr", count_entry)
    return clock


@pytest.mark.slow
def test_a_kill_at_any_operation_on_a_file_leaves_a_run_that_goes_on(
    tmp_path, file_clock, monkeypatch
):
    """Also while its results are written at the end."""
    monkeypatch.setattr(results, "render", lambda *_, **__: "")
    hospitals = [CountingHospital(f"h{k}") for k in range(2)]

    def lived(folder):
        run = Run(folder, "feder", hospitals, num_server_rounds=2, evaluate__cross=False)
        run.part()
        outcome = run.outcome  # the parcels go with the checkpoint
        run.results.finish(run.state)
        return run, outcome

    file_clock.end = None
    before = file_clock.now
    _, expected = lived(tmp_path / "unbroken")
    operations = file_clock.now - before
    assert operations > 100
    for k in range(operations):
        folder = tmp_path / str(k)
        file_clock.now, file_clock.end = 0, k
        with pytest.raises(Killed):
            lived(folder)
        file_clock.end = None
        [*found] = folder.glob("*")
        if not any((path / "metrics.jsonl").read_text() for path in found if list(path.glob("m*"))):
            continue  # nothing had been asked of anybody
        if not (found[0] / "checkpoint" / "state.json").exists():
            assert json.loads((found[0] / "summary.json").read_text())["status"] == "completed"
            assert (found[0] / "report.html").exists()
            continue
        run, outcome = lived(folder)
        assert outcome == expected
        assert not (run.results.path / "checkpoint").exists()


def test_only_a_deployment_waits_for_the_disk(tmp_path, monkeypatch):
    waits: list[int] = []
    monkeypatch.setattr(os, "fsync", waits.append)
    assert Run(tmp_path / "deployed", "rwt").part()
    assert waits
    waits.clear()
    monkeypatch.setattr(Courier, "simulates", True)
    assert Run(tmp_path / "simulated", "rwt").part()
    assert not waits


def a_parcel(value, lineage="a"):
    model = ArrayRecord({"w": Array(np.full(3, value, "f4"))})
    return pack({"model": model}, Manifest(lineage, "counter", ["a", "b"], round=value))


def test_a_parcel_that_stays_is_not_written_again_and_an_old_one_is_deleted(tmp_path):
    folder = tmp_path / "checkpoint"
    state = State(Shelf(folder), "run")
    parcels = {"x": a_parcel(1), "y": a_parcel(2, "b..c")}
    for name, parcel in parcels.items():
        state.models[name] = Model(name, "h0", state.shelf.put(parcel))
    checkpoint.save(state, {})
    first = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.npz")}
    (folder / ".half.npz.1.part").write_bytes(b"what a kill has left")
    parcels["x"] = a_parcel(3)
    for name, parcel in parcels.items():
        state.models[name] = Model(name, "h0", state.shelf.put(parcel))
    checkpoint.save(state, {"seconds": 2})
    second = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert {f"{name}.npz" for name in state.shelf._newest} == second.keys() - {"state.json"}
    assert len(first) == len(second) - 1 == 2  # and state.json
    assert len(first.items() & second.items()) == 1
    loaded, notes = checkpoint.load(folder, dict[str, object])
    assert notes == {"seconds": 2}
    for name, parcel in parcels.items():
        read = loaded.shelf.get(loaded.models[name].parcel)
        assert read.config_records == parcel.config_records
        assert read.array_records == parcel.array_records


def test_a_checkpoint_is_the_whole_state(tmp_path):
    """Of every attribute; hospitals have to enrol once more, and visits are ordered once more."""
    state = State(Shelf(tmp_path), "run", round=3, hop=2, classes=["a", "b"], shape=[1, 8, 8])
    state.outputs, state.frozen = ["a", "b"], "weights"
    state.nodes = {"h0": 7}
    state.withheld = {"h1": 8}
    state.keys = {"h0": "key"}
    parcel = state.shelf.put(a_parcel(1))
    state.models = {"a": Model("a", "h0", parcel, "h1", parcel, 2, 5, 3)}
    state.after_visits = {"hop-1-visit": parcel}
    state.buffers = {"h0": parcel}
    state.encoder, state.embeddings = parcel, {"1 h0": parcel}
    state.prototypes = {"h1": parcel}
    state.delivered = {("h0", "hash")}
    state.under_way = {Visit("h0", "a", "plain", 1)}
    state.queues, state.failed, state.resting = {"h0": ["a"]}, ["h0"], ["h1"]
    state.last_trained = {"h1": "a"}
    state.ordered, state.clock = {"h0 a": FirstOrder(3, 7.5, ["h1"], parcel)}, 6.5
    state.under_test, state.test_round, state.answers_due = {"a": parcel}, 2, {"h0": 1}
    state.sampled, state.judgements = {"h0": ["a"]}, {parcel: {"h0": False}}
    state.finished = state.replayed = 1
    assert all(vars(state).values())  # nothing is forgotten here
    checkpoint.save(state, {})
    loaded, _ = checkpoint.load(tmp_path, dict[str, object])
    state.nodes, state.withheld, state.under_way = {"h0": 0}, {"h1": 0}, set()
    loaded.shelf = state.shelf
    assert loaded == state


def test_a_checkpoint_has_room_for_each_pair_of_hospitals(tmp_path, monkeypatch):
    state = State(Shelf(tmp_path), "run")
    names = [f"h{k}" for k in range(20)]
    state.delivered = set(product(names, names))
    checkpoint.save(state, {})
    text = (tmp_path / "state.json").read_text()
    monkeypatch.setattr(files, "MOST", len(text) // 10)
    monkeypatch.setattr(shapes, "MOST_VALUES", sum(map(text.count, ",[{")) // 10)
    loaded, _ = checkpoint.load(tmp_path, dict[str, object])
    assert loaded.delivered == state.delivered


def test_a_model_under_way_is_kept_although_its_lineage_goes_on_from_another_copy(tmp_path):
    """Its hospital still answers: the answer is compared with what was sent."""
    state = State(Shelf(tmp_path), "run", classes=["a", "b"], shape=[1, 8, 8])
    sent, good, dropped = (state.shelf.put(a_parcel(k)) for k in range(3))
    state.models = {"a": Model("a", "h0", good)}
    state.ordered = {"h0 a": FirstOrder(1, 0.0, [], sent)}
    checkpoint.save(state, {})
    names = [state.shelf.path(name).exists() for name in (sent, good, dropped)]
    assert names == [True, True, False]


def test_a_parcel_has_a_file_if_a_checkpoint_names_it_or_memory_is_full(tmp_path, monkeypatch):
    """Of three parcels one is named. With no place for a second one, the older one is written."""
    state = State(Shelf(tmp_path), "run", classes=["a", "b"], shape=[1, 8, 8])
    names = [state.shelf.put(a_parcel(k)) for k in range(3)]
    assert not list(tmp_path.iterdir())
    state.models = {"a": Model("a", "h0", names[0])}
    checkpoint.save(state, {})
    assert [state.shelf.path(name).exists() for name in names] == [True, False, False]
    monkeypatch.setattr("strategies.engine.shelf.IN_MEMORY", 1)
    old, new = (state.shelf.put(a_parcel(k)) for k in (4, 5))
    assert [state.shelf.path(name).exists() for name in (old, new)] == [True, False]
    assert state.shelf.get(old).array_records == a_parcel(4).array_records
    assert state.shelf.path(new).exists()


@pytest.mark.parametrize(("variant", "takes_part"), [("full", True), ("synthetic-only", False)])
def test_a_buffer_that_may_not_leave_is_not_asked_for_again_after_a_kill(
    tmp_path, variant, takes_part
):
    hospitals = [CountingHospital("h0"), CountingHospital("h1"), Withholding("h2")]
    run = Run(tmp_path, "feder", hospitals, feder__variant=variant, num_server_rounds=3)
    assert not run.part(55)
    assert run.part()
    asked = [m for m in run.grid.sent if m.metadata.message_type == "query.prepare"]
    sizes = {m.content["order"]["hospital"]: m.content["order"]["buffer_size"] for m in asked}
    own = run.settings.run_config["feder.buffer-size"]
    assert sizes == {"h0": own, "h1": own} | ({"h2": 0} if takes_part else {})
    assert ("h2" in run.state.nodes) == takes_part


def test_a_damaged_checkpoint_is_named(tmp_path):
    state = State(Shelf(tmp_path), "run")
    state.models["x"] = Model("x", "h0", state.shelf.put(a_parcel(1)))
    checkpoint.save(state, {})
    (path,) = tmp_path.glob("*.npz")
    save_parcel(a_parcel(2), tmp_path / "other")
    for damage in (path.read_bytes()[:50], (tmp_path / "other").read_bytes()[:-30]):
        path.write_bytes(damage)
        with pytest.raises(CheckpointError, match="its checkpoint is damaged"):
            checkpoint.load(tmp_path, dict[str, object])


# What cannot be resumed.


@pytest.fixture
def killed(tmp_path):
    run = Run(tmp_path, "cwt")
    assert not run.part(50)
    return run


def refused(run, **changes):
    with pytest.raises(SettingsError) as error:
        Results.open(replace(run.settings, **{"resume": str(run.results.path), **changes}))
    return str(error.value)


def test_other_settings_are_refused_with_both_values(killed):
    words = refused(killed, train=replace(killed.settings.train, epochs=7))
    assert words.startswith("The setting 'train.epochs' is 7, but the run to resume has 3: resume")
    assert "checkpoint/resume.toml" in words
    words = refused(killed, strategy="rwt")
    assert "'strategy' is 'rwt', but the run to resume has 'cwt'" in words


def test_some_settings_may_change(killed):
    changed = {"hop_timeout": 1.0, "prepare_timeout": 2.0, "min_hospitals": 2, "output_dir": "/x"}
    resume = str(killed.results.path)
    Results.open(replace(killed.settings, resume=resume, **changed))


def test_resume_toml_has_the_settings_to_go_on_with(killed):
    path = killed.results.path
    chosen = Settings.parse(parse_config_args([str(path / "checkpoint" / "resume.toml")]))
    assert chosen == replace(killed.settings, resume=str(path))
    Results.open(chosen)


def test_a_directory_without_a_run_is_refused(killed, tmp_path):
    for resume in (tmp_path, tmp_path / "nowhere", "~nobody-of-this-name/runs"):
        words = refused(killed, resume=str(resume))
        assert "must be the result directory of a run that has not completed" in words


def test_a_run_that_still_goes_on_is_refused(tmp_path):
    chosen = settings(output_dir=str(tmp_path))
    running, state = RealResults.open(chosen)
    running.keep(state)
    with pytest.raises(SettingsError, match="its server still runs"):
        RealResults.open(replace(chosen, resume=str(running.path)))


def test_a_run_that_completes_while_it_is_waited_for_is_refused(tmp_path, monkeypatch):
    chosen = settings(output_dir=str(tmp_path))
    running, state = RealResults.open(chosen)
    running.keep(state)
    monkeypatch.setattr(results, "render", lambda *_, **__: "")
    monkeypatch.setattr(results, "lock_once", lambda _: running.finish(state))
    with pytest.raises(SettingsError, match="has not completed"):
        RealResults.open(replace(chosen, resume=str(running.path)))
    assert (running.path / "summary.json").exists()


def test_a_run_that_has_completed_is_refused(killed, monkeypatch):
    monkeypatch.setattr(results, "render", lambda *_, **__: "")
    assert killed.part()
    killed.results.finish(killed.state)
    assert "has not completed (there is no" in refused(killed)


def test_a_checkpoint_of_another_format_is_refused(killed):
    state = killed.results.path / "checkpoint" / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "format": 99}))
    assert "its checkpoint has format 99, this is format 3" in refused(killed)


def test_metrics_that_were_cut_are_noticed(killed):
    (killed.results.path / "metrics.jsonl").write_text("")
    assert "metrics.jsonl is shorter than it was" in refused(killed)


def test_a_run_that_failed_goes_on(tmp_path):
    """Nobody can take part for a while."""

    class Broken(CountingHospital):
        def enrol(self, message, order):
            return failing(message)

    run = Run(tmp_path / "killed", "cwt")
    assert not run.part(60)
    well, run.hospitals = run.hospitals, [Broken(f"h{k}") for k in range(HOSPITALS)]
    with pytest.raises(RunError, match=r"0 of 1 \(min-hospitals\)"):
        run.part()
    run.results.fail(RuntimeError("nobody"), run.state)
    run.hospitals = well
    assert run.part()
    unbroken = Run(tmp_path / "unbroken", "cwt")
    assert unbroken.part()
    assert run.outcome == unbroken.outcome


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_run_that_is_resumed_after_its_last_round_needs_no_hospital(asynchronous, tmp_path):
    kept = []

    def keep(state):
        state.shelf.write(state.parcels)
        kept.append(json.dumps(state.to_json()))

    chosen = settings(
        strategy="rwt", asynchronous=asynchronous, num_server_rounds=2, hop_timeout=1.0
    )
    hospitals = FakeGrid({100 + k: CountingHospital(f"h{k}") for k in range(3)})
    whole = go(chosen, hospitals, Ledger(), tmp_path, keep)
    state = State.from_json(json.loads(kept[-1]), Shelf(tmp_path))
    run = EngineRun(chosen, strategy_of(chosen), state, Courier(FakeGrid({})), Ledger())
    Engine(run, lambda _: None).go()
    assert (state.models, state.round) == (whole.models, 3)


def test_a_resumed_run_says_so(tmp_path):
    run = Run(tmp_path, "cwt")
    assert not run.part(50)
    spent = json.loads((run.results.path / "checkpoint" / "state.json").read_text())
    assert not run.part(50)
    assert run.part()
    run.results.finish(run.state)
    summary = json.loads((run.results.path / "summary.json").read_text())
    assert summary["resumed"] == 2
    assert summary["wall_seconds"] > spent["notes"]["seconds"] > 0
    assert "interrupted and resumed: 2" in (run.results.path / "report.html").read_text()


# Real hospitals.


class RealHospital:
    """A hospital on digits; every part of a run is another run to Flower."""

    def __init__(self, index, config, store):
        self.name = f"hospital-{index}"
        trusted = {"members": "first-use"} if config["sealed"] else {}
        self.place = context(index, HOSPITALS, config, **{"store-dir": str(store), **trusted})

    def __call__(self, message):
        return hospital_app(message, replace(self.place, run_id=message.metadata.dst_node_id))


REAL: dict[str, dict[str, object]] = {
    "feder": {},
    "fedrewind": {"train__epochs": 3},
    "fedrewind of fedavg": {
        "strategy": "fedrewind",
        "train__epochs": 3,
        "model": "cnn",
        "rewind__base": "fedavg",
        "rewind__batch_norm": "reference",
    },
    "cwc": {"evaluate__epochs": True, "train__epochs": 2, "cwc__strength": 0.1},
    "fedbn": {"model": "cnn"},
    "fedavg": {},
    "feder, sealed": {"strategy": "feder", "sealed": True},
    "feder asynchronous, sealed": {"strategy": "feder", "sealed": True, **IN_VIRTUAL_TIME},
    "rwt asynchronous": {"strategy": "rwt", **IN_VIRTUAL_TIME},
}


@pytest.mark.slow
@pytest.mark.usefixtures("_quick_buffers", "_no_waiting")
@pytest.mark.parametrize("case", quick_or_slow(REAL))
def test_models_and_figures_are_bit_for_bit_those_of_a_run_without_kills(
    case, tmp_path, monkeypatch
):
    monkeypatch.setattr(results, "render", lambda *_, **__: "")
    chosen = {
        "strategy": case,
        "num_server_rounds": 3,
        "model": "mlp",
        "mlp__hidden": "16",
        "train__epochs": 1,
        "feder__buffer_size": 60,
        **REAL[case],
    }
    summaries, runs = [], []
    for name in ("unbroken", "killed"):
        folder = tmp_path / name
        config = run_config(**chosen)
        hospitals = [RealHospital(k, config, folder / "stores") for k in range(HOSPITALS)]
        run = Run(folder / "runs", hospitals=hospitals, **chosen)
        ends = range(24, 70, 4) if name == "killed" else []
        assert any(run.part(end) for end in [*ends, None])
        run.results.finish(run.state)
        summary = json.loads((run.results.path / "summary.json").read_text())
        for key in ("wall_seconds", "seconds", "resumed", "began", "ended"):
            del summary[key]
        del summary["history"]["seconds"]
        summaries.append(summary)
        runs.append(run)
    assert runs[1].results._resumed > 4
    if "sealed" in case:  # what is sealed is never the same bytes twice
        assert summaries[1]["failures"] == []
        figures = ("accuracy_matrix", "history", "train_loss", "ensemble_accuracy")
        summaries = [{key: each[key] for key in figures if key in each} for each in summaries]
    else:
        assert runs[0].outcome[1] == runs[1].outcome[1]
    assert summaries[0] == summaries[1]
