"""Somebody changes a hospital's ledger, deletes what it remembers, or has its disk filled."""

import contextlib
import json
import random
import shutil
import sqlite3
from hashlib import sha256
from pathlib import Path

import pytest
from flwr.app import Context, Message, RecordDict

from cli import main
from client_app.app import app
from client_app.authority.ledger import append, path_of, read
from client_app.authority.ledger_index import BrokenLedger, index_of, open_index
from client_app.errors import LedgerError
from strategies.protocol.code import code_hash
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.records import to_record
from tests.fakes import deployed

MUTATIONS = 150  # each is a third of a second of a hospital
ALLOWED = 1_000_000  # bytes that the store may hold


def asked(place: Context, run: str, **order: object) -> Message:
    """The answer to a server that enrols the hospital in a run."""
    told = to_record(Order(0, 0, "graz", [], "plain", run, code=code_hash()))
    message = Message(RecordDict({"order": told}), 1, "query.enrol")
    message.content.config_records["order"].update(order)  # type: ignore[arg-type]
    message.metadata.__dict__["_message_id"] = f"m-{run}"
    return app(message, place)


def ledger_of(place: Context) -> Path:
    return path_of(str(place.node_config["site"]), Path(str(place.node_config["store-dir"])))


def size_of(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def changed(content: bytes, rng: random.Random) -> bytes:
    """A file with one to four bytes changed, taken out or put in, a line doubled, or an end cut."""
    text = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(text))
        match rng.randrange(5):
            case 0:
                text[place] = rng.randrange(256)
            case 1:
                del text[place : place + rng.randint(1, 40)]
            case 2:
                text[place:place] = rng.choice(
                    [b"{", b"]", b"\n", b'"', b"null", b"-1e999", b"\xff"]
                )
            case 3:
                text[place:place] = bytes(text[place : place + 200])
            case 4:
                del text[-rng.randint(1, 300) :]
        text = text or bytearray(b"x")
    return bytes(text)


def other_shape(value: object, rng: random.Random) -> object:
    """JSON of another shape, somewhere inside."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice([*value])
        if rng.random() < 0.2:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: other_shape(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        return [*value[:place], other_shape(value[place], rng), *value[place + 1 :]]
    return rng.choice([None, 7, -0.5, "", "x" * 300, [], {}, [None], {"a": []}, True, 10**400])


def rewritten(path: Path, change: random.Random) -> None:
    """One line has another shape, and the chain and its end fit, as if the hospital wrote them."""
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    place = change.randrange(len(entries))
    entries[place] = other_shape(entries[place], change)
    previous, text, start = sha256(b"").hexdigest(), b"", 0
    for entry in entries:
        if isinstance(entry, dict) and "previous" in entry:
            entry["previous"] = previous
        line = json.dumps(entry).encode()
        start, text = len(text), text + line + b"\n"
        previous = sha256(line).hexdigest()
    with open_index(path) as index:
        head = index.head()
        path.write_bytes(text)
        index.move(
            type(head)(len(entries), start, len(text), previous, head.kept, 0, head.counted, 1e12)
        )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A hospital with four lines: a run, one with malformed orders, a refused one."""
    place = deployed(tmp_path_factory.mktemp("ledger"), strategy="rwt")
    assert not asked(place, "1").has_error()
    assert asked(place, "2", round="x").has_error()
    assert asked(place, "3", learner="nothing").has_error()
    assert not asked(place, "1").has_error()
    return place


@pytest.mark.slow
@pytest.mark.parametrize("how", ["bytes", "shape", "head", "index"])
def test_a_mutated_ledger_is_broken_by_name_and_never_a_traceback(
    how, finished, tmp_path, monkeypatch
):
    source, rng = ledger_of(finished).parent, random.Random(how)
    store = tmp_path / "store"
    path = store / "graz" / "ledger.jsonl"
    page, found = tmp_path / "ledger.html", 0
    arguments = ["--site", "graz", "--store-dir", str(store), "--html", str(page)]
    for _ in range(MUTATIONS if how in ("bytes", "shape") else MUTATIONS // 5):
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(source, path.parent)
        if how == "shape":
            rewritten(path, rng)
        else:
            file = {"bytes": path, "head": path.with_suffix(".head"), "index": index_of(path)}[how]
            file.write_bytes(changed(file.read_bytes(), rng))
        whole: list[int] = []
        with contextlib.suppress(BrokenLedger):
            whole = [line.number for line in read(path)]
        found += not whole
        assert how in ("shape", "index") or len(whole) < 5
        with pytest.raises(SystemExit) as ended:
            main(["ledger", *arguments])
        assert ended.value.code in (0, 1)
        entry = {"time": "2026-01-01", "verb": "train", "left": []}
        with contextlib.suppress(LedgerError):
            append(path, entry)
    assert found > 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "order",
    [
        {},
        {"members": ["a " + "A" * 50_000] * 6},
        {"members": ["\x00" * 300_000]},
        {"learner": "x" * 600_000},
        {"round": "x" * 600_000},
        {"run": "x" * 600_000},
    ],
    ids=["plain", "members", "zeros", "learner", "malformed", "run"],
)
@pytest.mark.parametrize("settings", [{}, {"dataset": "x" * 600_000}, {"y" * 600_000: 1}])
def test_no_number_of_enrolments_fills_more_of_the_disk_than_the_policy_allows(
    order, settings, tmp_path
):
    place, order = deployed(tmp_path, strategy="rwt"), dict(order)
    policy = "runs.sealed-only = false\nimages.min-train-patients = 20\n"
    policy += f"machine.max-disk-gb = {ALLOWED / 1e9}\n"
    (tmp_path / "policy.toml").write_text(policy)
    place.run_config.update(settings)
    store, named = Path(str(place.node_config["store-dir"])), order.pop("run", "")
    for run in range(60):
        answer = asked(place, f"{run}{named}", **order)
        assert order or settings or named or run or not answer.has_error()
        if answer.has_error() and answer.error.code == Failure.LEDGER:
            break
        assert size_of(store) < ALLOWED + 200_000
    for run in range(100, 110):
        asked(place, f"{run}{named}", **order)
    assert size_of(store) < ALLOWED + 200_000


def test_a_store_that_has_room_again_takes_messages(tmp_path):
    place = deployed(tmp_path, strategy="rwt")
    (tmp_path / "policy.toml").write_text(
        "runs.sealed-only = false\nimages.min-train-patients = 20\nmachine.max-disk-gb = 0.001\n"
    )
    heap = Path(str(place.node_config["store-dir"])) / "graz" / "heap"
    heap.parent.mkdir(parents=True)
    heap.write_bytes(bytes(2_000_000))
    assert asked(place, "1").error.code in (Failure.POLICY, Failure.LEDGER)
    heap.unlink()
    assert not asked(place, "2").has_error()


DELETED = {
    "secret": "figures-secret",
    "run": "runs/1",
    "terms": "runs/1/terms.npz",
    "tested": "runs/1/tested",
    "buffers": "runs/1/buffers",
    "made": "runs/1/made",
    "account": "privacy.jsonl",
    "embeddings": "embeddings/left",
}


@pytest.mark.slow
@pytest.mark.parametrize("run", ["1", "2"])
@pytest.mark.parametrize("how", ["deleted", "emptied", "dangling"])
@pytest.mark.parametrize("file", DELETED.values(), ids=DELETED)
def test_what_the_hospital_remembers_is_missed_when_it_is_gone(file, how, run, tmp_path, caplog):
    """In the run itself, and in another one: a server may begin as many as it likes."""
    place = deployed(tmp_path, strategy="rwt")
    folder = ledger_of(place).parent
    assert not asked(place, "1").has_error()
    remembered = ("runs/1/tested", "runs/1/buffers", "runs/1/made")
    for name in (*remembered, "privacy.jsonl", "embeddings/left"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text('{"what": "x", "noise": 1.0}\n' if "privacy" in name else "x\n")
    assert not asked(place, "1").has_error()
    path = folder / file
    if path.is_dir():
        path.rename(folder / "away")
    elif how == "emptied":
        path.write_bytes(b"")
    else:
        path.unlink()
    if how == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    answer = asked(place, run)
    assert answer.error.code in (Failure.SETTINGS, Failure.LEDGER)
    assert str(tmp_path) not in str(answer.error.reason)
    assert str(path) in caplog.text
    assert "Restore it from a backup." in caplog.text
    assert not (tmp_path / "nowhere").exists()


def test_a_secret_that_others_can_read_does_not_count_as_a_broken_ledger(tmp_path, caplog):
    """The cure of a broken ledger begins a new one."""
    place = deployed(tmp_path, strategy="rwt")
    assert not asked(place, "1").has_error()
    secret = ledger_of(place).with_name("figures-secret")
    secret.chmod(0o640)
    answer = asked(place, "1")
    assert answer.error.code == Failure.SETTINGS
    assert str(tmp_path) not in str(answer.error.reason)
    assert f"Others can read or write {secret}: " in caplog.text
    assert "ledger.head" not in caplog.text
    secret.chmod(0o600)
    assert not asked(place, "1").has_error()


@pytest.mark.parametrize("time", ["9e999", "-9e999", "1e300", "'abc'"])
def test_a_damaged_time_in_the_index_is_no_traceback(time, tmp_path):
    path = tmp_path / "ledger.jsonl"
    visits = tmp_path / "runs" / "1" / "visits"
    visits.parent.mkdir(parents=True)
    visits.write_text("1\n")
    entry = {"time": "2026-01-01", "verb": "train", "run": "1", "left": []}
    append(path, entry)
    with contextlib.closing(sqlite3.connect(index_of(path))) as rows, rows:
        rows.execute(f"UPDATE kept SET time = {time}")
    append(path, entry)
    with contextlib.closing(sqlite3.connect(index_of(path))) as rows, rows:
        rows.execute(f"UPDATE kept SET time = {time}")
    visits.unlink()
    with open_index(path) as index:
        assert "visits was deleted or cut" in index.find_missing("1")


def test_whom_a_hospital_trusted_at_first_use_is_missed_when_it_is_gone(tmp_path):
    """Else it would trust whatever keys a server announces next. It may remove a member."""
    place = deployed(tmp_path, strategy="rwt")
    pins = ledger_of(place).parent / "members"
    assert not asked(place, "1").has_error()
    for text in ("a = 1\nb = 2\n", "a = 1\n"):
        pins.write_text(text)
        assert not asked(place, "1").has_error()
    pins.unlink()
    assert asked(place, "2").error.code == Failure.SETTINGS


def test_a_run_of_long_ago_may_be_deleted(tmp_path, monkeypatch):
    place = deployed(tmp_path, strategy="rwt")
    assert not asked(place, "1").has_error()
    with open_index(ledger_of(place)) as index:
        index.rows.execute("UPDATE kept SET time = time - 200000 WHERE file LIKE 'runs/%'")
    shutil.rmtree(ledger_of(place).parent / "runs" / "1")
    assert not asked(place, "2").has_error()
    assert asked(place, "1").error.code == Failure.SETTINGS
