"""Simulated hospitals in warm processes of this machine."""

import os
import re
import signal
from contextlib import nullcontext
from io import BytesIO
from socket import socketpair
from threading import Timer
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Message, RecordDict

from server_app import app as module
from server_app.app import app as server_app
from server_app.runs import find
from server_app.workers import WorkersGrid
from strategies.engine.courier import Courier, Letter
from strategies.protocol.may_leave import Failure
from strategies.protocol.settings import Settings, complete
from tests.fakes import context, metrics_of, models_of, run_config, run_here
from warm import workers as warm_workers
from warm.workers import Workers


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """Two processes."""
    data = str(tmp_path_factory.mktemp("data"))
    with Workers(2, {"XDG_DATA_HOME": data, "OMP_NUM_THREADS": "1"}) as running:
        yield running


def live(courier):
    """What becomes of the question whether hospitals 1 to 5 are there."""
    letters = [Letter(node, "query.live", node, RecordDict, 60, "") for node in range(1, 6)]
    return {each.letter.about: each.failure for each in courier.exchange(letters)}


@pytest.mark.slow
def test_every_hospital_answers_and_one_that_is_unknown_is_gone(workers):
    courier = Courier(WorkersGrid(workers, 4, complete({})))
    assert courier.simulates
    assert courier.find_reachable() == {1, 2, 3, 4}
    assert live(courier) == {1: None, 2: None, 3: None, 4: None, 5: Failure.GONE}


class SlowWorker:
    """One process that takes half a second for each message, in place of `Workers`."""

    def __init__(self, connection, end):
        self.message: Any = None
        self.done: list[int] = []
        self.wire, self.end = SimpleNamespace(connection=connection), end

    def rest(self):
        pass

    def busy(self):
        return [self] if self.message else []

    def idle(self, node):
        return None if self.message else self

    def send(self, worker, message, hospitals, config):
        self.message = message
        Timer(0.5, self.end.send, [b"!"]).start()

    def receive(self, worker):
        self.wire.connection.recv(1)
        message, self.message = self.message, None
        self.done.append(message.metadata.dst_node_id)
        return Message(RecordDict(), reply_to=message)


def test_the_wait_for_a_process_does_not_count_for_the_time_limit(monkeypatch):
    """Of five messages with a limit of 1.2 s the last one waits for two seconds."""
    monkeypatch.setattr("strategies.engine.courier.GRACE", 0.0)
    connection, end = socketpair()
    with connection, end:
        worker: Any = SlowWorker(connection, end)
        courier = Courier(WorkersGrid(worker, 5, {}))
        letters = [Letter(node, "query.live", node, RecordDict, 1.2, "") for node in range(1, 6)]
        assert [each.failure for each in courier.exchange(letters)] == [None] * 5
    assert worker.done == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_a_process_that_dies_costs_one_message(workers):
    grid = WorkersGrid(workers, 4, complete({}))
    live(Courier(grid))
    for worker in workers.workers:
        os.kill(worker.process, signal.SIGKILL)
    became = live(Courier(grid))
    assert sorted(map(str, became.values())).count(str(Failure.CRASHED)) == 2
    assert set(live(Courier(grid)).values()) == {None, Failure.GONE}


@pytest.mark.slow
def test_what_a_run_has_left_under_way_is_no_answer_to_the_next(workers):
    grid = WorkersGrid(workers, 4, complete({}))
    live(Courier(grid))
    before = {worker.process for worker in workers.workers}
    grid.push_messages([Message(RecordDict(), 1, "query.live")])
    again = WorkersGrid(workers, 4, complete({}))
    assert not workers.busy()
    assert set(live(Courier(again)).values()) == {None, Failure.GONE}
    assert len(before & {worker.process for worker in workers.workers}) == 1


@pytest.mark.slow
def test_the_processes_end_with_their_context():
    with Workers(1) as running:
        live(Courier(WorkersGrid(running, 1, complete({}))))
        (worker,) = running.workers
        os.kill(worker.process, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(worker.process, 0)


@pytest.mark.slow
def test_processes_that_the_kernel_has_ended_cost_no_error_at_the_end():
    with Workers(2) as running:
        live(Courier(WorkersGrid(running, 2, complete({}))))
        stem, processes = running._stem.process, [each.process for each in running.workers]
        for process in (*processes, stem.pid):
            os.kill(process, signal.SIGKILL)
    assert stem.poll() == -signal.SIGKILL


def test_processes_that_cannot_start_say_where_the_reason_is(capfd):
    with (
        Workers(1, {"PYTHONHASHSEED": "no number"}) as running,
        pytest.raises(ConnectionError, match="see its log"),
    ):
        live(Courier(WorkersGrid(running, 1, complete({}))))
    assert "PYTHONHASHSEED" in capfd.readouterr().out  # all of it is printed before the end


def test_what_a_process_prints_is_printed_by_the_one_that_started_it(capsys):
    warm_workers._print(BytesIO("ε = 1\n".encode() + b"\xff\n"))
    assert capsys.readouterr().out == "ε = 1\n\ufffd\n"


@pytest.mark.parametrize(
    ("simulates", "address", "cores", "processes"),
    [
        (True, "local", 2, [2]),
        (True, "local", 8, [3]),  # as many as there are hospitals
        (True, "10.0.0.1:6379", 8, []),  # a Ray cluster: Flower's engine
        (False, "local", 8, []),
    ],
)
def test_by_default_each_core_computes_for_a_hospital(
    simulates, address, cores, processes, monkeypatch
):
    started = []

    class Grid:
        def __init__(self, *_):
            pass

        def get_node_ids(self):
            return [1, 2, 3]

    monkeypatch.setattr(Courier, "simulates", simulates)
    monkeypatch.setattr("os.cpu_count", lambda: cores)

    def workers(count):
        started.append(count)
        return nullcontext()

    monkeypatch.setattr(module, "Workers", workers)
    monkeypatch.setattr(module, "WorkersGrid", type("Warm", (Grid,), {}))
    monkeypatch.setenv("RAY_ADDRESS", address)
    chosen = Settings.parse(complete({}))
    given: Any = Grid()
    with module._engine(given, chosen, context(0, 3, {})) as used:
        assert (used is given) == (not processes)
    assert started == processes


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["rwt", "fedbn"])
def test_a_run_in_warm_processes_is_that_of_one_process(strategy, workers, tmp_path):
    settings = {"strategy": strategy, "num_server_rounds": 2, "model": "cnn", "train__epochs": 1}
    alone = run_config(output_dir=str(tmp_path / "alone"), **settings)
    store = {"store-dir": str(tmp_path / "store")}
    one, _ = run_here([context(index, 3, alone, **store) for index in range(3)])
    config = run_config(output_dir=str(tmp_path / "warm"), **settings)
    server_app(WorkersGrid(workers, 3, config), context(0, 3, config))
    (other,) = (tmp_path / "warm").iterdir()
    assert metrics_of(other) == metrics_of(one)
    assert models_of(other) == models_of(one)


@pytest.mark.slow
def test_a_simulation_is_compared_with_the_same_run_without_hand_off(workers, tmp_path, capsys):
    settings = {"num_server_rounds": 2, "model": "mlp", "train__epochs": 1, "mlp__hidden": "16"}

    def run(name, **more):
        config = run_config(output_dir=str(tmp_path / name), **{**settings, **more})
        server_app(WorkersGrid(workers, 3, config), context(0, 3, config))
        (result,) = (tmp_path / name).iterdir()
        return result

    result = run("with", strategy="cwt", baseline="standalone")
    (baseline,) = result.glob("*-standalone")
    told = " ".join(capsys.readouterr().out.split())
    assert re.search(r"At home .* standalone, .* Everywhere .* standalone, ", told)
    assert told.endswith((result / "report.html").as_uri())
    assert metrics_of(result) == metrics_of(run("without", strategy="cwt"))
    assert metrics_of(baseline) == metrics_of(run("alone", strategy="standalone"))
    assert "standalone, where each hospital trains" in (result / "report.html").read_text("utf-8")
    assert [run.path for run in find([tmp_path / "with"])[0]] == [result]

    sums = {"strategy": "sums", "num_server_rounds": 1, "train__freeze": "body"}
    result = run("sums", **sums, baseline="standalone", sums__ridge=0.1)
    assert [*result.glob("*-standalone")] == []  # hospitals test the classifier of their own sums
    assert "than the hospitals' own models" in " ".join(capsys.readouterr().out.split())
