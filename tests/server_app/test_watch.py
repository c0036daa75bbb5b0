"""Following a run: one that ends, fails, is killed, is about to begin; in a pipe and a terminal."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from threading import Thread
from time import monotonic

import pytest
from rich.console import Console

from cli import main
from server_app import live, watch
from server_app.results import Results
from server_app.watch import BLOCKS, PLAIN, Followed, curve, follow, picture
from strategies.engine.courier import Awaited
from strategies.engine.events import Event
from strategies.engine.shelf import Shelf
from strategies.engine.state import State
from tests.deploy.test_deploy import wait_until
from tests.fakes import settings


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(live, "PAUSE", 0.0)
    monkeypatch.setattr(live, "STATE_SHARE", 1e9)
    monkeypatch.setattr(watch, "LOOK", 0.01)
    monkeypatch.setattr(watch, "START_UP", 0.0)


@pytest.fixture
def begin(tmp_path):
    """Begin a run of two rounds in a folder."""

    def begun(folder="runs"):
        chosen = settings(output_dir=str(tmp_path / folder), num_server_rounds=2)
        return Results.open(chosen)[0]

    return begun


def do(results, events, rounds=(0, 1, 2)):
    for number in rounds:
        for event in events:
            if event.round == number:
                results.record(event)
        if number:
            results.round_finished(number)


def balanced(events):
    """The same events with balanced accuracies."""
    for event in events:
        figures = dict(event.metrics)
        if "accuracy" in figures:
            figures["balanced-accuracy"] = figures["accuracy"] / 2
        yield replace(event, metrics=figures)


def end(results, error=None):
    state = State(Shelf(results.path / "checkpoint"), "run")
    if error:
        results.fail(error, state)
    else:
        results.finish(state)


def shown(place, terminal=False):
    output = io.StringIO()
    console = Console(file=output, width=80, force_terminal=terminal, highlight=False)
    return follow(place, console), output.getvalue().splitlines()


def test_a_finished_run_is_a_line_a_round_with_its_directory_last(begin, events):
    results = begin()
    do(results, [*balanced(events)])
    end(results)
    status, lines = shown(results.path)
    assert status == 0
    assert lines[0] == f"feder, 2 rounds: {results.path}"
    assert [re.sub(r"  \d+ s left", "", line) for line in lines[1:-4]] == [
        *("A is ready (5 s)", "B is ready (5 s)"),
        "round 1/2  held 0.275 (lowest 0.250 at B)"
        "  balanced accuracy 0.350 (lowest 0.250, 'A' at B)",
        "round 2: B failed to train (timeout): No answer.",
        "round 2/2  held 0.325 (lowest 0.250 at B)"
        "  balanced accuracy 0.300 (lowest 0.200, 'A' at B)  1 of 2 hospitals",
    ]
    worth = json.loads((results.path / "summary.json").read_text())["worth"]
    assert lines[-4:-2] == [each["text"] for each in worth]
    assert re.fullmatch(r"The run has completed with failures, after \d+ s\.", lines[-2])
    assert lines[-1] == str(results.path)


def test_lines_of_earlier_rounds_do_not_know_what_came_later(begin, events):
    """Hospital C joins after round 1, without training: then 1 of 3 train, before it 2 of 2.

    A hospital prepares in round 0, whenever it joins. D is only seen when both rounds are over; and
    then a copy of round 1 is undone.
    """
    results = begin()
    do(results, events, rounds=(0, 1))
    results.record(Event("query.prepare", 0, 0, "C", "C"))
    do(results, events, rounds=(2,))
    results.record(Event("query.prepare", 0, 0, "D", "D"))
    results.record(Event("undo", 1, 1, "A", "A", "useless", "It is useless."))
    end(results)
    first, second = (line for line in shown(results.path)[1] if re.match(r"round \d/2 ", line))
    assert re.search(r"'A' at B\)  \d+ s left$", first)
    assert second.endswith("1 of 3 hospitals")


def test_a_run_is_followed_from_before_it_begins_to_its_end(begin, events, tmp_path, monkeypatch):
    """An older one in the folder, which has ended, is passed over. Locks end with a process."""
    monkeypatch.setattr(watch, "is_locked", lambda path: not (path / "summary.json").exists())
    older = begin()
    end(older)
    status: list[int] = []
    output = io.StringIO()
    console = Console(file=output, highlight=False)
    place = tmp_path / "runs"
    follower = Thread(target=lambda: status.append(follow(place, console)), daemon=True)
    follower.start()
    wait_until(lambda: f"No run is under way in {place}. Waiting for one.\n" in output.getvalue())
    newer = begin()
    do(newer, events, rounds=(0, 1))
    wait_until(lambda: "round 1/2" in output.getvalue())
    assert follower.is_alive()
    do(newer, events, rounds=(2,))
    end(newer)
    follower.join(60)
    assert status == [0]
    lines = output.getvalue().splitlines()
    assert lines[-1] == str(newer.path)
    assert sum(line.startswith("round 2/2") for line in lines) == 1


def test_a_run_that_is_resumed_in_the_folder_is_followed(begin, tmp_path, monkeypatch):
    """While its server reads the checkpoint, the summary of the failure is still there."""
    at_work: list[bool] = []
    monkeypatch.setattr(watch, "is_locked", lambda path: bool(at_work))
    results, output = begin(), io.StringIO()
    end(results, RuntimeError("the power went"))
    console = Console(file=output, highlight=False)
    found: list[Path] = []
    place = tmp_path / "runs"
    finder = Thread(target=lambda: found.append(watch._find_run(place, console)), daemon=True)
    finder.start()
    wait_until(lambda: "Waiting for one." in output.getvalue())
    at_work.append(True)
    finder.join(0.1)
    assert finder.is_alive()
    (results.path / "summary.json").unlink()
    finder.join(60)
    assert found == [results.path]


def test_a_failed_run_says_why_and_has_another_exit_status(begin, events):
    results = begin()
    do(results, events, rounds=(0, 1))
    end(results, RuntimeError("the power went"))
    status, lines = shown(results.path)
    assert status == 1
    assert lines[-2:] == ["The run failed: RuntimeError: the power went", str(results.path)]


def test_a_run_whose_server_was_killed_says_how_to_go_on(begin, events, monkeypatch):
    monkeypatch.setattr(Results, "_claim", lambda results: None)  # the lock goes with the process
    results = begin()
    do(results, events, rounds=(0, 1))
    status, lines = shown(results.path)
    assert status == 1
    assert lines[-3:] == [
        "The run has stopped before its end, or continues on another machine.",
        f"Resume it with --run-config '{results.path}/checkpoint/resume.toml'",
        str(results.path),
    ]


def test_a_terminal_shows_curves_waits_and_failures_within_its_width(begin, events):
    results = begin()
    do(results, [*balanced(events)], rounds=(0, 1))
    results.record(Event("train", 2, 1, "B", "A", "timeout", "No answer."))
    results.waits_for([Awaited("A", "train", monotonic() - 90)])
    run = Followed(results.path)
    run.look()
    output = io.StringIO()
    console = Console(file=output, width=80, highlight=False)
    console.print(picture(run, console))
    lines = output.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert re.fullmatch(r"under way: 1 of 2 rounds, 2 hospitals, \d+ s left *", lines[-6])
    assert lines[-5].startswith("held               0.275  |▂|")
    assert re.fullmatch(r"waits for A to train \(9\d s\)", lines[-3].rstrip())
    failure = " ".join(each.strip() for each in lines[-2:])
    assert failure == (
        "round 2: B failed to train (timeout): No answer. Give it more time with hop-timeout or "
        "prepare-timeout."
    )


def test_a_line_that_is_being_written_is_read_when_it_is_whole(begin):
    results = begin()
    run = Followed(results.path)
    assert run.look() == [f"feder, 2 rounds: {results.path}"]
    for part, expected in (("A is \xa0rea", []), ("dy\nB", ["A is \xa0ready"]), ("\n", ["B"])):
        with (results.path / "log.txt").open("a") as file:
            file.write(part)
        assert run.look() == expected


def test_the_curves_of_a_run_that_has_ended_are_those_of_all_its_rounds(begin, events):
    results = begin()
    do(results, [*balanced(events)])
    end(results)
    lines = [line.strip() for line in shown(results.path, terminal=True)[1]]
    assert any("completed with failures: 2 of 2 rounds, 2 hospitals\x1b" in line for line in lines)
    held = next(re.sub(r"\x1b\[[\d;]*m", "", line) for line in lines if "held" in line)
    assert re.fullmatch(r"held\s+0.325  \|▂▃\|", held)


def test_a_curve_is_on_one_scale_and_as_wide_as_there_is_room():
    assert curve([0.0, 0.5, 1.0], 10) == "| ▄█|"
    assert curve([0.0, 1.0, 0.5, 0.5], 2, PLAIN) == "|==|"
    assert len(curve([0.5] * 1000, 30)) == 32
    assert len(BLOCKS) == len(PLAIN)


def test_verdicts_without_a_text_are_named(begin, capsys):
    results = begin()
    end(results)
    summary = results.path / "summary.json"
    summary.write_text(summary.read_text().replace('"text"', '"texts"'))
    with pytest.raises(SystemExit):
        main(["watch", str(results.path)])
    assert "cannot be read as a result directory: KeyError: 'text'" in capsys.readouterr().err


def test_what_is_no_result_directory_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(SystemExit):
        main(["watch", str(tmp_path)])
    assert "cannot be read as a result directory: FileNotFound" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["watch", str(tmp_path / "metrics.jsonl")])
    assert "metrics.jsonl is not a folder: name a result directory." in capsys.readouterr().err
