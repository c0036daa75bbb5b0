"""The process that keeps torch and the images between two messages."""

import errno
import os
import signal
import threading
import time
from pathlib import Path
from socket import AF_UNIX, socket, socketpair
from typing import Any
from unittest.mock import Mock

import pytest
from flwr.app import Message, RecordDict

from client_app import resident as module
from client_app.app import app
from client_app.authority.ledger import path_of, read
from strategies.protocol.code import code_hash
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.records import to_record
from strategies.protocol.settings import SettingsError
from tests.fakes import deployed
from warm import process as warm_process
from warm import resident
from warm.wire import Wire

CONFIG: dict[str, Any] = {"strategy": "rwt", "model": "mlp", "train__epochs": 100_000}
RULES = """
runs.sealed-only = false
runs.max-epochs = 100000
images.min-train-patients = 20
figures.max-models = 10  # with more, 24 patients are too few for figures
"""


def order_of(verb, **changes):
    place = (int(verb == "train"),) * 2
    return to_record(Order(*place, "graz", ["a", "b"], "plain", "1", **changes))


@pytest.fixture
def place(tmp_path):
    place = deployed(tmp_path, **CONFIG)
    (tmp_path / "policy.toml").write_text(RULES, "utf-8")
    return place


@pytest.fixture
def ask(place, tmp_path):
    """Send hospital-0 a message; the processes that this has started are ended after the test."""

    def send(verb, parcel=None, lives=True, ttl=60.0, **changes):
        content = RecordDict({**(parcel or {}), "order": order_of(verb, **changes)})
        place.node_config["resident"] = lives
        return app(Message(content, 100, verb, ttl=ttl), place)

    yield send
    for process in residents(tmp_path):
        os.kill(process, signal.SIGKILL)


def residents(store):
    """The resident processes of the hospital with this store."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = path.read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # it has just ended
            continue
        program = path.with_name("cmdline").read_text().split("\0")
        if program[1:4] == ["-P", "-m", "warm"] and str(store) in environment:
            found.append(int(path.parent.name))
    return found


def parcel_of(answer):
    return {name: answer.content[name] for name in ("model", "manifest")}


def while_it_works(tmp_path, act):
    """Do something to the resident process as soon as it can be at work."""

    def wait():
        while not (found := residents(tmp_path)):
            time.sleep(0.05)
        time.sleep(1)
        act(found[0])

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.slow
def test_it_does_what_the_process_does_that_flower_starts(ask, tmp_path):
    answers = [ask("query.prepare", lives=lives) for lives in (False, True)]
    first = parcel_of(answers[0])
    assert parcel_of(answers[1]) == first
    (process,) = residents(tmp_path)
    assert (tmp_path / "store" / "resident").stat().st_mode & 0o777 == 0o700
    assert str(tmp_path) not in Path(f"/proc/{process}/cmdline").read_text()  # all see it
    visits = [ask("train", first, lives=lives, epochs=2) for lives in (False, True)]
    assert visits[0].content["manifest"] == visits[1].content["manifest"]  # with the hashes
    assert visits[0].content["metrics"]["train-loss"] == visits[1].content["metrics"]["train-loss"]
    assert residents(tmp_path) == [process]
    # Every answer is in the ledger once, written by the process that Flower has started.
    verbs = [line.entry["verb"] for line in read(path_of("graz", tmp_path / "store"))]
    assert verbs == ["query.prepare", "query.prepare", "train", "train"]


@pytest.mark.slow
def test_its_failures_arrive_with_their_text(ask):
    answer = ask("query.enrol", code="other")
    assert answer.error.code == Failure.SETTINGS
    assert answer.error.reason.startswith("The hospital runs other code than the server.")
    assert not ask("query.enrol", code=code_hash()).has_error()


@pytest.mark.slow
def test_one_that_is_killed_at_work_is_answered_for_and_replaced(ask, tmp_path):
    first = parcel_of(ask("query.prepare"))
    (process,) = residents(tmp_path)
    thread = while_it_works(tmp_path, lambda number: os.kill(number, signal.SIGKILL))
    answer = ask("train", first, epochs=100_000)
    thread.join()
    assert answer.error.code == Failure.CRASHED
    assert answer.error.reason.startswith("ConnectionError;")
    assert not ask("train", first, epochs=1).has_error()
    assert residents(tmp_path) != [process]


@pytest.mark.slow
def test_one_that_is_stuck_is_given_up_and_replaced(ask, tmp_path, monkeypatch):
    first = parcel_of(ask("query.prepare"))
    (process,) = residents(tmp_path)
    monkeypatch.setattr(module, "GRACE", 0.5)
    monkeypatch.setattr(resident, "HELLO", 1.0)
    os.kill(process, signal.SIGSTOP)
    assert not ask("train", first, epochs=1).has_error()  # by another one
    (other,) = set(residents(tmp_path)) - {process}
    thread = while_it_works(tmp_path, lambda _: os.kill(other, signal.SIGSTOP))
    answer = ask("train", first, ttl=3, epochs=100_000)
    thread.join()
    assert answer.error.code == Failure.TIMEOUT
    os.kill(process, signal.SIGKILL)


@pytest.mark.slow
def test_it_stops_working_when_nobody_waits_any_more(ask, place, tmp_path):
    """As when the process that Flower has started is killed."""
    first = parcel_of(ask("query.prepare"))
    (process,) = residents(tmp_path)
    content = RecordDict({**first, "order": order_of("train", epochs=100_000)})
    wire = Wire(module.call_resident(place.node_config))
    wire.ask(Message(content, 100, "train", ttl=60.0), {}, place.run_config)
    time.sleep(1)
    assert residents(tmp_path) == [process]
    wire.close()
    deadline = time.monotonic() + 60  # of a busy machine
    while residents(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_it_does_not_begin_a_message_whose_sender_has_ended(monkeypatch):
    """The hang-up came while the process was idle, which ended the watch for one."""
    monkeypatch.setattr(warm_process, "_end_with", lambda *_: None)
    ours, theirs = socketpair()
    wire, began = Wire(ours), Mock(spec=app)
    wire.ask(Message(RecordDict(), 100, "train", ttl=60.0), {}, {})
    wire.close()
    warm_process._answer(theirs, began)
    began.assert_not_called()


def test_it_ends_when_no_message_comes(tmp_path, monkeypatch):
    monkeypatch.setattr(warm_process, "IDLE", 0.1)
    with socket(AF_UNIX) as listener:
        listener.bind(str(tmp_path / "resident"))
        listener.listen()
        warm_process.serve(listener, app)


def test_it_makes_a_private_store(tmp_path, monkeypatch):
    store = tmp_path / "new" / "store"
    monkeypatch.setattr(resident, "call", lambda *_: True)  # it has answered
    assert module.call_resident({"store-dir": str(store)})
    for folder in (store.parent, store, store / "resident"):
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (errno.EOPNOTSUPP, SettingsError, "no place for a socket.*set 'resident' to false"),
        (errno.ENOSPC, OSError, "No space left"),
    ],
)
def test_a_store_that_cannot_have_a_socket_says_why(code, kind, words, tmp_path, monkeypatch):
    def bind(self, address):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(resident, "socket", type("", (socket,), {"bind": bind}))
    with pytest.raises(kind, match=words):
        module.call_resident({"store-dir": str(tmp_path)})


def test_another_hospital_has_another_one(tmp_path):
    names = set()
    for site in ({}, {"site": "graz"}, {"site": "wien"}):
        with resident.address_of(*module.place_of({"store-dir": str(tmp_path), **site})) as address:
            names.add(Path(address).name)
    assert len(names) == 3
