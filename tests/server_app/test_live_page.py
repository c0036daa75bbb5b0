"""The page of a run under way; its looks in a browser: test_pages_in_a_browser.py."""

from html import unescape
from time import monotonic

import pytest

from server_app import report
from server_app import results as module
from server_app.results import PAGE_PAUSE, PAGE_SHARE, Results
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
    """A clock that stands still; `took` is how many seconds a page is computed, `spent` all."""
    now = {"now": monotonic(), "took": 0.0, "spent": 0.0}
    render = report.render

    def slowly(*values, **names):
        now["spent"] += now["took"]
        return render(*values, **names)

    monkeypatch.setattr(module, "monotonic", lambda: now["now"])
    monkeypatch.setattr(module, "thread_time", lambda: now["spent"])
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
    clock["now"] += PAGE_PAUSE
    results.waits_for([Awaited("B", "train", clock["now"] - 90)])
    page, run = page_of(results), Followed.open(results.path)
    run.look()
    assert "1 of 2 rounds, 2 hospitals, 10 s left" in page  # as long as round 1
    assert [*run.headline()][1].removeprefix("under way: ").rpartition(",")[0] in page
    assert "waits for B to train (90 s)" in page
    assert f"round 2: {HOSTILE[0]} failed to train (timeout): No answer." in page
    assert "<script" not in (results.path / "report.html").read_text("utf-8")


def test_a_page_that_takes_long_is_written_less_often(results, clock):
    """The time of the pages is a share of the time of the run, also while nothing happens."""
    pages = []

    def written_after(seconds):
        clock["now"] += seconds
        results.waits_for([])
        pages.append(page_of(results))
        return len(pages) > 1 and pages[-1] != pages[-2]

    clock["took"] = 0.1
    written_after(0)
    results.record(Event("query.enrol", 0, 0, "A", "A", "gone", "first"))
    assert not written_after(PAGE_PAUSE - 1)
    assert written_after(1)
    results.record(Event("query.enrol", 0, 0, "A", "A", "gone", "second"))
    assert not written_after(0.1 / PAGE_SHARE - 1)
    assert written_after(1)
    assert f'content="{0.1 / PAGE_SHARE:.0f}"' in pages[-1]


@pytest.mark.parametrize("error", [None, RuntimeError("the power went")])
def test_the_page_of_an_ended_run_stays(results, error):
    assert RELOADS in page_of(results)
    state = State(Shelf(results.path / "checkpoint"), "run")
    results.fail(error, state) if error else results.finish(state)
    assert RELOADS not in page_of(results)
    assert "is under way" not in page_of(results)
