"""Another user of a hospital's machine: what he puts in its way, and what he can read."""

import json
import os
import pickle
from contextlib import suppress
from pathlib import Path
from socket import AF_UNIX, socket
from threading import Thread

import pytest
from flwr.app import Message, RecordDict

from client_app.app import app
from client_app.authority.ledger import path_of, read
from client_app.authority.node_config import NODE_CONFIG
from client_app.resident import place_of
from strategies.protocol.code import code_hash
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.records import to_record
from tests.fakes import deployed, run_config
from warm import process, resident


@pytest.fixture(autouse=True)
def _own_umask():
    """The guard sets it for the whole process."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def ask(place, verb="query.enrol"):
    code = code_hash() if verb == "query.enrol" else ""
    order = Order(0, 0, "", ["a", "b"], "feder", "1", code=code)
    return app(Message(RecordDict({"order": to_record(order)}), 1, verb, ttl=60.0), place)


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def listening(address: str, say: bytes) -> socket:
    """A process in the place of the resident one, which says something to whoever comes."""
    listener = socket(AF_UNIX)
    listener.bind(address)
    listener.listen()

    def answer():
        with suppress(OSError), listener.accept()[0] as caller:
            caller.sendall(say)
            caller.recv(2**20)

    Thread(target=answer, daemon=True).start()
    return listener


def test_nothing_that_comes_from_the_socket_is_unpickled(tmp_path):
    place = deployed(tmp_path, model="mlp")
    place.node_config["resident"] = True
    payload = pickle.dumps(Touch(tmp_path / "owned"))
    with (
        resident.address_of(*place_of(place.node_config)) as address,
        listening(address, b"!" + len(payload).to_bytes(4, "big") + payload),
    ):
        answer = ask(place)
    assert answer.error.code == Failure.CRASHED
    assert not (tmp_path / "owned").exists()


def test_another_user_s_process_is_neither_heard_nor_answered(tmp_path, monkeypatch):
    config = {"store-dir": str(tmp_path)}
    with resident.address_of(*place_of(config)) as address:
        me = os.geteuid()
        with listening(address, b"!"):
            monkeypatch.setattr(os, "geteuid", lambda: me + 1)
            assert resident.call(address, 5.0) is None
        Path(address).unlink()
        monkeypatch.setattr(process, "IDLE", 0.2)
        with socket(AF_UNIX) as listener, socket(AF_UNIX) as stranger:
            listener.bind(address)
            listener.listen()
            stranger.connect(address)
            process.serve(listener, app)
            assert stranger.recv(1) == b""


@pytest.mark.parametrize("what", ["a link", "open to others", "a file", "another user's"])
def test_a_folder_that_others_can_open_is_not_used(what, tmp_path, monkeypatch):
    place = deployed(tmp_path, model="mlp")
    place.node_config["resident"] = True
    folder = tmp_path / "store" / "resident"
    folder.parent.mkdir()
    if what == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    elif what == "a file":
        folder.touch()
    else:
        folder.mkdir(mode=0o700 if what == "another user's" else 0o750)
        me = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: me + (what == "another user's"))
    answer = ask(place)
    assert answer.error.code == Failure.SETTINGS
    assert "mode 0700" in answer.error.reason
    assert str(tmp_path) not in answer.error.reason


def test_a_store_may_lie_deeper_than_the_name_of_a_socket_is_long(tmp_path):
    config = {"store-dir": str(tmp_path / ("x" * 200) / ("y" * 200))}
    with resident.address_of(*place_of(config)) as address, listening(address, b"!"):
        connection = resident.call(address, 5.0)
    assert connection
    connection.close()


def test_a_forged_context_turns_off_neither_policy_nor_ledger(tmp_path, monkeypatch):
    """Flower's own interface on the loopback asks nobody who they are."""
    place = deployed(tmp_path, model="mlp")
    (tmp_path / "policy.toml").write_text("", "utf-8")
    monkeypatch.setenv(NODE_CONFIG, json.dumps(place.node_config))
    (tmp_path / "store" / "graz").mkdir(parents=True)  # as `hospital start` does
    place.node_config = {"partition-id": 0, "num-partitions": 1, "data-dir": "/etc"}
    place.node_config |= {"site": "../../etc", "store-dir": str(tmp_path / "forged")}
    answer = ask(place)  # an open run, which the default policy refuses
    assert answer.error.code == Failure.POLICY
    (line,) = read(path_of("graz", tmp_path / "store"))
    assert "runs.sealed-only" in line.entry["failure"]["rule"]
    assert not (tmp_path / "forged").exists()


@pytest.mark.slow
@pytest.mark.parametrize("value", [b"x", "", -1, 1.5, float("nan"), True], ids=repr)
def test_settings_of_a_wrong_type_are_typed_failures(value, tmp_path):
    place, usual = deployed(tmp_path), run_config(model="mlp")
    for key in ("strategy", "image-size", "num-server-rounds", "train.epochs", "release.quantile"):
        place.run_config = {**usual, key: value}
        answer = ask(place)
        if answer.has_error():
            assert answer.error.code in (Failure.SETTINGS, Failure.POLICY), key


def test_what_a_hospital_writes_only_its_user_reads(tmp_path):
    assert not ask(deployed(tmp_path, model="mlp")).has_error()
    assert not ask(deployed(tmp_path, model="mlp"), "query.prepare").has_error()
    paths = [tmp_path / "store", *(tmp_path / "store").rglob("*")]
    assert len(paths) > 3
    assert [path for path in paths if path.stat().st_mode & 0o077] == []
