"""The page of a run under way; its looks in a browser: test_pages_in_a_browser.py."""

import os
import shutil
from html import unescape
from time import monotonic

import pytest

from cli import main
from server_app import live, report
from server_app import results as module
from server_app.live import PAUSE, REPORT_SHARE
from server_app.results import Results
from server_app.watch import Followed
from strategies.engine.courier import Awaited
from strategies.engine.events import Event
from strategies.engine.shelf import Shelf
from strategies.engine.state import State
from tests.fakes import settings
from tests.server_app.fake_runs import HOSTILE, RUNS

RELOADS = '<meta http-equiv="refresh"'


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still; `took` is how many seconds a report is computed, `spent` all."""
    now = {"now": monotonic(), "took": 0.0, "spent": 0.0, "reports": 0}
    render = report.render

    def slowly(*values, **names):
        now["spent"] += now["took"]
        now["reports"] += 1
        return render(*values, **names)

    for place in (module, live):
        monkeypatch.setattr(place, "monotonic", lambda: now["now"])
    monkeypatch.setattr(live, "thread_time", lambda: now["spent"])
    monkeypatch.setattr(module, "render", slowly)
    return now


@pytest.fixture
def results(tmp_path, clock):
    return Results.open(settings(output_dir=str(tmp_path), num_server_rounds=2))[0]


def page_of(results):
    return unescape((results.path / "report.html").read_text("utf-8"))


@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_a_page_at_every_moment(name, tmp_path):
    """Also in the middle of a round, and before any hospital has answered."""
    run = RUNS[name]()
    results = Results.open(settings(strategy=run.summary.strategy, output_dir=str(tmp_path)))[0]
    moments = {len(run.events) * part // 6 for part in range(1, 7)}
    assert RELOADS in page_of(results)
    for count, (event, following) in enumerate(
        zip(run.events, [*run.events[1:], None], strict=True), 1
    ):
        results.record(event)
        if event.round and (following is None or following.round > event.round):
            results.round_finished(event.round)
        if count in moments:
            results._write_live_page()
            assert RELOADS in (results.path / "report.html").read_text("utf-8")


def test_the_page_has_what_watch_shows(results, events, clock):
    for event in events[:10]:
        results.record(event)
    results.round_finished(1)
    results.record(Event("train", 2, 1, HOSTILE[0], "A", "timeout", "No answer."))
    clock["now"] += PAUSE
    results.waits_for([Awaited("B", "train", clock["now"] - 90)])
    page, run = page_of(results), Followed(results.path)
    run.look()
    assert "1 of 2 rounds, 2 hospitals, 10 s left" in page  # as long as round 1
    assert run.now.progress in page
    assert "Waits for B to train (90 s)" in page
    failed = f"round 2: {HOSTILE[0]} failed to train (timeout): No answer."
    assert f"{failed} Give it more time with hop-timeout or prepare-timeout." in page
    assert "<script" not in (results.path / "report.html").read_text("utf-8")


def test_a_report_that_takes_long_is_made_less_often_and_the_state_is_not(results, events, clock):
    """A report of 0.1 s is made every 25 s, 0.4 % of the time; the state comes every 3 seconds."""
    clock["took"] = 0.1
    for event in events[:10]:
        results.record(event)
    results.round_finished(1)
    clock["now"] += PAUSE
    results.waits_for([])
    assert clock["reports"] == 2  # the first was that of an empty run
    results.record(Event("train", 2, 1, "A", "B", "gone", "It is away."))
    for seconds in range(3, 24, 3):
        clock["now"] += PAUSE
        results.waits_for([Awaited("B", "train", clock["now"] - seconds)])
        assert f"Waits for B to train ({seconds} s)" in page_of(results)
    assert clock["reports"] == 2
    clock["now"] += 0.1 / REPORT_SHARE - 21
    results.waits_for([])
    assert clock["reports"] == 3
    for _ in range(100):
        clock["now"] += PAUSE
        results.waits_for([])
    assert clock["reports"] == 3  # nothing has happened


def test_a_live_page_reads_no_file(results, events, monkeypatch, clock):
    """Its time does not grow with the rounds: the tests of finished rounds are not read again."""
    monkeypatch.setattr(module, "read_events", None)
    for event in events[:10]:
        results.record(event)
    results.round_finished(1)
    clock["now"] += PAUSE
    results.waits_for([])
    assert "1 of 2 rounds" in page_of(results)
    assert "0.700" in page_of(results)


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("command", ["watch", "compare"])
def test_a_command_that_reads_a_killed_run_mends_its_page(results, command, resume, capsys):
    """A killed server leaves its page, and no lock; this process has the lock of its own folder."""
    killed = shutil.copytree(results.path, results.path.parent / "killed")
    os.utime(killed, (0, 0))
    if not resume:
        shutil.rmtree(killed / "checkpoint")
    assert RELOADS in page_of(results)
    with pytest.raises(SystemExit):
        main([command, str(killed)])
    page = unescape((killed / "report.html").read_text("utf-8"))
    assert RELOADS not in page
    assert "The server has ended before the end of the run" in page
    assert "is under way" not in page
    assert '<p class="soft">run ' in page  # of hospitals, models, rounds and seconds none is known
    assert (f"--run-config '{killed}/checkpoint/resume.toml'" in page) == resume
    assert RELOADS in page_of(results)  # that of the run under way stays


@pytest.mark.parametrize("error", [None, RuntimeError("the power went")])
def test_the_page_of_an_ended_run_stays(results, error):
    assert RELOADS in page_of(results)
    state = State(Shelf(results.path / "checkpoint"), "run")
    results.fail(error, state) if error else results.finish(state)
    assert RELOADS not in page_of(results)
    assert "is under way" not in page_of(results)
