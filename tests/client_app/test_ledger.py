"""The ledger: what was asked and what left is written down before it leaves."""

import errno
import json
import os
import resource
import subprocess
import sys
import tracemalloc
from collections import deque
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from cli import main
from client_app.app import app
from client_app.authority import ledger_view
from client_app.authority.ledger import append, path_of, read
from client_app.authority.ledger_index import LONGEST, BrokenLedger, Index, open_index
from client_app.authority.policy import PolicyError
from client_app.errors import LedgerError
from client_app.release.guard import Terminated, guard
from strategies.protocol.code import code_hash
from strategies.protocol.may_leave import Failure
from strategies.protocol.parcel import Manifest, hash_arrays, pack
from strategies.protocol.settings import Settings
from tests.fakes import FakeGrid, Ledger, deployed, go, run_config
from warm.process import Handed

HOSTILE = "\x1b[2J<script>alert(1)</script>\u202e\n"


def ledger_of(place: Context) -> Path:
    return path_of(str(place.node_config["site"]), Path(str(place.node_config["store-dir"])))


def answered(place: Context, handler, verb="train", content=None) -> Message:
    """A message's answer as it leaves, with a handler in the place of the app's."""
    return guard(Message(content or RecordDict(), 1, verb), place, handler)


def figures(message: Message, place: Context) -> Message:
    metrics = MetricRecord({"accuracy": 0.5})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def line(number: int) -> dict[str, Any]:
    return {"time": "2026-01-01T10:00:00+00:00", "verb": "train", "round": number, "left": []}


def written(path: Path, count: int) -> list[bytes]:
    for number in range(count):
        append(path, line(number))
    return path.read_bytes().splitlines(keepends=True)


def rounds(path: Path) -> list[int]:
    return [each.entry["round"] for each in read(path)]


@pytest.mark.usefixtures("_quick_buffers")
@pytest.mark.parametrize(
    ("strategy", "verb"), [("feder", "evaluate"), ("fedrewind", "train.rewind")]
)
def test_all_that_leaves_a_hospital_in_a_run_is_in_it(strategy, verb, tmp_path):
    config = {"strategy": strategy, "num_server_rounds": 2, "model": "mlp", "image_size": 8}
    config |= {"train__epochs": 3, "feder__buffer_size": 4, "mlp__hidden": "4"}
    places = [deployed(tmp_path / site, site, **config) for site in ("graz", "wien")]
    answers: dict[Any, list[Message]] = {"graz": [], "wien": []}

    def hospital(place):
        def answer(message):
            answers[place.node_config["site"]].append(app(message, place))
            return answers[place.node_config["site"]][-1]

        return answer

    grid = FakeGrid({100 + k: hospital(place) for k, place in enumerate(places)})
    go(Settings.parse(run_config(**config)), grid, Ledger())
    for place in places:
        hospital(place)(Message(RecordDict(), 1, "query.live"))
        lines, left = list(read(ledger_of(place))), answers[place.node_config["site"]]
        verbs = [line.entry["verb"] for line in lines]
        assert verbs == [answer.metadata.message_type for answer in left]
        assert {"query.enrol", "query.prepare", "train", verb, "query.live"} <= {*verbs}
        for line, answer in zip(lines, left, strict=True):
            assert [record["name"] for record in line.entry["left"]] == list(answer.content)
            for record in line.entry["left"]:
                there = answer.content[record["name"]]
                if isinstance(there, ArrayRecord):
                    assert record["bytes"] == sum(len(array.data) for array in there.values())
                    assert record["sha256"] == hash_arrays(there)
                else:
                    assert record["values"] == dict(there)
        joined = lines[0].entry
        assert joined["settings"] == place.run_config
        assert joined["code"] == code_hash()
        assert not any("settings" in line.entry for line in lines[1:])
        assert {line.entry.get("terms") for line in lines[:-1]} == {joined["terms"]}
        trained = lines[verbs.index("train")].entry
        assert (trained["round"], trained["hop"]) == (1, 1)
        assert trained["run"] == joined["run"]


@pytest.mark.parametrize("verb", ["query.enrol", "query.prepare", "train", "evaluate"])
def test_a_run_s_settings_are_in_its_first_line_whatever_it_begins_with(verb, tmp_path):
    """And once more if they change, or in another run."""
    place = deployed(tmp_path)

    def asked(run, **changes):
        place.run_config.update(changes)
        content = RecordDict({"order": ConfigRecord({"run": run})})
        answered(place, figures, "train" if changes else verb, content)
        return dict(place.run_config)

    settings = [asked("1"), asked("1", seed=2), asked("1", seed=2), asked("2", seed=2)]
    lines = [line.entry for line in read(ledger_of(place))]
    assert [line.get("settings") for line in lines] == [*settings[:2], None, settings[3]]
    assert len({line["terms"] for line in lines}) == 3
    page = ledger_view.page("graz", [*read(ledger_of(place))], "", whole=True)
    assert "\nsealed = false\n" in page


def test_it_says_which_embeddings_were_asked_for(tmp_path):
    place = deployed(tmp_path)
    order = ConfigRecord({"run": "9", "embeddings": "sampled"})
    answered(place, figures, "train", RecordDict({"order": order}))
    assert "train embeddings sampled" in ledger_view.text([*read(ledger_of(place))], "")


def test_a_line_has_all_that_an_order_says_to_do(tmp_path):
    place = deployed(tmp_path)
    told: dict[str, Any] = {
        "leg": 2,
        "arrived": [1, 3],
        "own_start": True,
        "ensemble": True,
        "final": True,
    }
    answered(place, figures, "evaluate", RecordDict({"order": ConfigRecord({"run": "9", **told})}))
    (line,) = read(ledger_of(place))
    assert {key: line.entry.get(key) for key in told} == told


def test_a_terminal_shows_the_first_of_many_figures_and_the_page_shows_all(tmp_path):
    place = deployed(tmp_path)
    values = {f"m{n}": n / 7 for n in range(400)}
    append(ledger_of(place), {**line(1), "left": [{"name": "metrics", "values": values}]})
    lines = [*read(ledger_of(place))]
    text = ledger_view.text(lines, "")
    assert f"m{ledger_view.MOST - 1} " in text
    assert f"and {400 - ledger_view.MOST} more" in text
    assert max(map(len, text.splitlines())) < 300
    assert "m399 57.000" in ledger_view.page("graz", lines, "", whole=True)


def test_a_server_that_only_asks_who_is_there_does_not_fill_it(tmp_path):
    """A line a day, unless something is asked or left with it."""
    place, nothing = deployed(tmp_path), lambda m, c: Message(RecordDict(), reply_to=m)
    for _ in range(3):
        answered(place, nothing, "query.live")
    answered(place, nothing, "query.live", RecordDict({"order": ConfigRecord({"run": "9"})}))
    for _ in range(2):
        answered(place, lambda message, context: 1 / 0, "query.live")
    lines = [line.entry for line in read(ledger_of(place))]
    assert [line.get("failure", {}).get("class") for line in lines] == [None, None, "crashed"]
    assert [line.get("run") for line in lines] == [None, "9", None]
    assert {line["time"] for line in lines} == {str(datetime.now(UTC).date())}
    append(ledger_of(place), {"time": "2026-01-01", "verb": "query.live", "left": []})
    assert len(list(read(ledger_of(place)))) == 4


def test_a_server_that_only_asks_who_is_there_fills_no_disk(tmp_path):
    """Eight orders of 0.5 MB each differ, so that each has a line; the policy allows 3 MB."""
    place = deployed(tmp_path)
    with (tmp_path / "policy.toml").open("a") as policy:
        policy.write("\nmachine.max-disk-gb = 0.003\n")
    answers = []
    for number in range(8):
        order = RecordDict({"order": ConfigRecord({"replay": ["x" * 500_000, str(number)]})})
        here = answered(place, lambda m, c: Message(RecordDict(), reply_to=m), "query.live", order)
        answers.append(here)
    assert not answers[0].has_error()
    assert answers[-1].error.code == Failure.LEDGER
    assert ledger_of(place).stat().st_size < 3e6


def test_a_refusal_is_in_it_with_the_rule_that_the_server_does_not_learn(tmp_path):
    def refuse(message, context):
        raise PolicyError("release.min-quantile", 0, "0.01 or more")

    place = deployed(tmp_path)
    answer = answered(place, refuse)
    (line,) = read(ledger_of(place))
    assert line.entry["failure"] == {
        "class": "policy",
        "reason": answer.error.reason,
        "rule": "Refused by the policy: release.min-quantile allows 0.01 or more; the value is 0.",
    }
    assert "quantile" not in str(answer.error.reason)


def test_a_line_names_the_policy_that_judged_the_request(tmp_path):
    place = deployed(tmp_path)
    policy = tmp_path / "policy.toml"
    judged = sha256(policy.read_bytes()).hexdigest()

    def tighten(message, context):
        policy.write_text("strategies = ['feder']\n", "utf-8")
        return figures(message, context)

    answered(place, tighten)
    answered(place, figures)
    policies = [line.entry["policy"] for line in read(ledger_of(place))]
    assert policies == [judged, sha256(policy.read_bytes()).hexdigest()]


def test_a_failure_is_in_it(tmp_path):
    place = deployed(tmp_path)
    answered(place, lambda message, context: 1 / 0)
    (line,) = read(ledger_of(place))
    assert line.entry["failure"]["class"] == "crashed"
    assert line.entry["failure"]["reason"].startswith("ZeroDivisionError;")


@pytest.mark.parametrize("obstacle", ["folder", "link", "too long"])
def test_what_cannot_be_written_does_not_leave(obstacle, tmp_path, caplog):
    place = deployed(tmp_path)
    path = ledger_of(place)
    path.parent.mkdir(parents=True)
    content = RecordDict()
    if obstacle == "folder":
        path.mkdir()
    elif obstacle == "link":
        path.symlink_to("/dev/full")
    else:
        content["order"] = ConfigRecord({"learner": "x" * LONGEST})
    answer = answered(place, figures, content=content)
    assert answer.error.code == Failure.LEDGER
    assert str(tmp_path) not in str(answer.error.reason)
    assert str(path) in caplog.text


def test_each_line_that_is_written_can_be_read(tmp_path):
    """A server chose the text: afterwards the hospital could not start."""
    append(tmp_path / "ledger.jsonl", line(0) | {"learner": "," * (LONGEST - 1000)})
    assert rounds(tmp_path / "ledger.jsonl") == [0]


def test_a_long_ledger_takes_no_more_memory_than_a_line(tmp_path):
    """A server can fill it up to machine.max-disk-gb, and the hospital reads it at its start."""
    path = tmp_path / "ledger.jsonl"
    for number in range(30):
        append(path, line(number) | {"learner": "x" * 10**6})
    tracemalloc.start()
    try:
        assert deque(read(path), maxlen=1)[0].number == 30
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()


def test_the_resident_process_leaves_it_to_the_one_that_it_answers(tmp_path):
    place = deployed(tmp_path)
    place = Handed(**vars(place))
    assert not answered(place, figures).has_error()
    assert not ledger_of(place).exists()


def test_a_simulation_has_none(tmp_path):
    place = deployed(tmp_path)
    place.node_config["partition-id"] = 0
    assert not answered(place, figures).has_error()
    assert not ledger_of(place).exists()


def test_only_the_hospital_can_read_it(tmp_path):
    written(tmp_path / "graz" / "ledger.jsonl", 1)
    assert (tmp_path / "graz" / "ledger.jsonl").stat().st_mode & 0o777 == 0o600


def test_the_hash_on_a_label_is_used_again(tmp_path):
    """The label's, which the server checks: no record is hashed for the ledger alone."""
    model = ArrayRecord({"weight": Array(np.zeros(3))})
    parcel = pack({"model": model}, Manifest("graz", "{}", ["a"]))
    parcel.config_records["manifest"]["hashes"] = ["model=from-the-label"]
    place = deployed(tmp_path)
    answered(place, lambda m, c: Message(RecordDict({**parcel}), reply_to=m))
    (line,) = read(ledger_of(place))
    assert line.entry["left"][0]["sha256"] == "from-the-label"


@pytest.mark.parametrize(
    ("change", "number"),
    [
        (lambda lines: [lines[0], lines[1].replace(b": 1,", b": 9,"), *lines[2:]], 3),
        (lambda lines: [*lines[:3], lines[3].replace(b": 3,", b": 9,")], 4),
        (lambda lines: lines[:3], 4),
        (lambda lines: [*lines, added(lines[3])], 5),
        (lambda lines: [*lines[:1], *lines[2:]], 2),
        (lambda lines: lines[1:], 1),
        (lambda lines: [lines[0], lines[2], lines[1], lines[3]], 2),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], 3),
        (lambda lines: [*lines[:2], b"{}\n", *lines[2:]], 3),
        (lambda lines: [], 4),
        (lambda lines: [*lines[:2], b"\xff\n", *lines[2:]], 3),
        (lambda lines: [*lines[:3], lines[3][:-5]], 4),
    ],
    ids=[
        *("changed", "last changed", "last removed", "last added", "removed", "beginning"),
        *("swapped", "doubled", "added", "all removed", "bytes", "cut"),
    ],
)
def test_tampering_is_found(change, number, tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"".join(change(written(path, 4))))
    with pytest.raises(BrokenLedger, match=f"^Line {number} "):
        list(read(path))


def added(line: bytes) -> bytes:
    """A line that follows another one, as somebody writes it who knows how."""
    return (
        json.dumps({**json.loads(line), "previous": sha256(line[:-1]).hexdigest()}).encode() + b"\n"
    )


@pytest.mark.parametrize(
    "end", ["changed", "removed", "two added", "head", "head 0", "index", "secret"]
)
def test_no_line_is_written_behind_an_end_that_was_tampered_with(end, tmp_path, caplog):
    path = tmp_path / "ledger.jsonl"
    *before, last = written(path, 3)
    match end:
        case "changed":
            path.write_bytes(b"".join([*before, last.replace(b"train", b"tried")]))
        case "removed":
            path.write_bytes(b"".join(before))
        case "two added":
            path.write_bytes(path.read_bytes() + added(last) + added(added(last)))
        case "head":
            path.with_suffix(".head").unlink()
        case "head 0":
            path.with_suffix(".head").write_bytes(b"")
        case "index":
            path.with_suffix(".sqlite").write_bytes(b"")
        case "secret":
            path.with_name("figures-secret").write_bytes(bytes(32))
    tampered = path.read_bytes()
    for _ in range(2):
        with pytest.raises(LedgerError):
            append(path, line(3))
    assert path.read_bytes() == tampered
    assert "from a backup" in caplog.text or "not written by the hospital" in caplog.text
    with pytest.raises(BrokenLedger):
        list(read(path))


def test_a_message_reads_nothing_of_a_long_ledger_but_its_last_line(tmp_path):
    def reading() -> int:
        append(path, line(1), {"settings": {}, "code": "", "policy": ""})
        return int(Path("/proc/self/io").read_text().split()[1])

    path = tmp_path / "ledger.jsonl"
    written(path, 2)
    with open_index(path) as index:
        head, more = index.head(), path.read_bytes().splitlines(keepends=True)[-1] * 20_000
        index.file.write(more)
        lines, start, size = head.lines + 20_000, head.start + len(more), head.size + len(more)
        index.move(replace(head, lines=lines, start=start, size=size))
    reading()
    begun = reading()
    assert reading() - begun < 100_000 < path.stat().st_size


def test_a_line_that_was_never_finished_is_removed_and_the_chain_goes_on(tmp_path):
    path = tmp_path / "ledger.jsonl"
    written(path, 2)
    with path.open("ab") as file:
        file.write(b'{"previous": ')
    append(path, line(2))
    assert rounds(path) == [0, 1, 2]


def test_a_disk_that_is_full_at_the_first_line_breaks_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "ledger.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(LedgerError):
            append(path, line(0))
    append(path, line(1))
    append(path, line(2))
    assert rounds(path) == [1, 2]
    assert path.with_suffix(".head").stat().st_mode & 0o777 == 0o600


def test_a_line_whose_answer_never_left_is_removed(tmp_path):
    """The process was ended before it had noted that the line is there."""
    path = tmp_path / "ledger.jsonl"
    last = written(path, 2)[-1]
    path.write_bytes(path.read_bytes() + added(last))
    append(path, line(2))
    assert rounds(path) == [0, 1, 2]


def test_a_process_that_ends_before_its_index_is_on_the_disk_breaks_nothing(tmp_path, monkeypatch):
    """SIGTERM comes after the new end of the ledger, and before the rows of new files."""

    def ended(self, head):
        move(self, head)
        raise Terminated

    path, move = tmp_path / "ledger.jsonl", Index.move
    written(path, 1)
    path.with_name("privacy.jsonl").touch()
    with monkeypatch.context() as patch:
        patch.setattr(Index, "move", ended)
        with pytest.raises(Terminated):
            append(path, line(1))
    append(path, line(2))
    assert rounds(path) == [0, 1, 2]
    with open_index(path) as index:
        assert index.find_missing("") == ""
        path.with_name("privacy.jsonl").unlink()
        assert "privacy.jsonl was deleted" in index.find_missing("")


def test_a_file_that_was_cut_is_missed_also_after_the_server_asked_for_a_sign_of_life(tmp_path):
    path = tmp_path / "ledger.jsonl"
    account = path.with_name("privacy.jsonl")
    account.write_text("x\n")
    written(path, 1)
    with open_index(path) as index:
        index.rows.execute("UPDATE kept SET time = time - 4000")  # an hour is 3600 s
    account.write_text("")
    append(path, {**line(1), "verb": "query.live"})
    with open_index(path) as index:
        assert "privacy.jsonl was deleted or cut" in index.find_missing("")


@pytest.mark.parametrize("terms", [{}, {"settings": {}}], ids=["files", "terms"])
def test_a_ledger_that_is_gone_with_its_head_is_missed(terms, tmp_path):
    """The index has files that were kept, or settings that were said."""
    path = tmp_path / "ledger.jsonl"
    for number in range(1 if terms else 2):
        append(path, line(number), terms)
    path.unlink()
    path.with_suffix(".head").unlink()
    with pytest.raises(LedgerError):
        append(path, line(3))
    with pytest.raises(BrokenLedger, match="was changed or deleted"):
        list(read(path))
    for file in path.parent.glob("ledger.*"):
        file.unlink()
    append(path, line(3))
    assert rounds(path) == [3]


@pytest.mark.slow
def test_processes_write_one_after_the_other(tmp_path):
    path = tmp_path / "ledger.jsonl"
    code = "import sys; from pathlib import Path; from client_app.authority.ledger import append\n"
    code += "for line in __import__('json').loads(sys.argv[2]): append(Path(sys.argv[1]), line)"
    command = [sys.executable, "-c", code, str(path), json.dumps([*map(line, range(50))])]
    writers = [subprocess.Popen(command, cwd=Path(__file__).parents[2]) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert sorted(rounds(path)) == sorted([*range(50)] * 3)


def test_on_a_full_disk_nothing_leaves_and_the_chain_holds(tmp_path):
    path = tmp_path / "ledger.jsonl"
    written(path, 2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, before[1]))
    try:
        with pytest.raises(LedgerError, match="nothing leaves"):
            append(path, line(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    append(path, line(3))
    assert rounds(path) == [0, 1, 3]


def command(monkeypatch, *arguments):
    with pytest.raises(SystemExit) as end:
        main(["ledger", *map(str, arguments)])
    return end.value.code


def test_what_a_server_chose_reaches_neither_terminal_nor_page(tmp_path, monkeypatch, capsys):
    place = deployed(tmp_path)
    place.run_config["strategy"] = HOSTILE
    order = ConfigRecord({"run": HOSTILE, "learner": HOSTILE, "round": b"\x1b", "hop": [HOSTILE]})
    answered(place, figures, "query.enrol", RecordDict({"order": order}))
    store, html = place.node_config["store-dir"], tmp_path / "ledger.html"
    assert command(monkeypatch, "--site", "graz", "--store-dir", store, "--html", html) == 0
    text, page = capsys.readouterr().out, html.read_text("utf-8")
    assert "The chain is intact. Valid lines: 1." in text
    for shown in (text, page):
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert "alert(1)" in shown
    assert "<script" not in page


def test_the_command_names_a_broken_line_and_shows_those_before_it(tmp_path, monkeypatch, capsys):
    place = deployed(tmp_path)
    for _ in range(3):
        answered(place, figures, "evaluate")
    path = ledger_of(place)
    first, second, third = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text(first + second.replace("0.5", "0.9") + third, "utf-8")
    assert command(monkeypatch, "--site", "graz", "--store-dir", path.parents[1]) == 1
    text = capsys.readouterr().out
    assert "Line 3 does not follow from the line before it" in text
    assert "Valid lines: 1." in text
    assert "evaluate" in text


def test_the_list_says_what_left(tmp_path):
    place = deployed(tmp_path)
    answered(place, figures, "evaluate")
    (line,) = read(ledger_of(place))
    text = ledger_view.text([line], "")
    assert "metrics: accuracy 0.500" in text
    assert line.hash[:12] in text
    assert json.loads(ledger_of(place).read_text())["verb"] == "evaluate"
