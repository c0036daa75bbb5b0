"""Figures over time, each derived by hand."""

import re
from dataclasses import replace
from math import nan

import pytest

from server_app.report import render
from server_app.summary import Record, measure_round, summarise
from server_app.timing import measure
from strategies.engine.events import Event
from tests.server_app.test_report import bare


def visit(hospital, lineage, began, time, outcome="ok", round_=1):
    return Event("train", round_, 1, hospital, lineage, outcome, began=began, time=time)


def test_a_hospital_is_busy_up_to_when_the_last_visit_began():
    """A: 0 to 4 and 5 to 6 of 0 to 8, then the last visit begins; B: 2 to 12, which counts to 8.

    The visit of A from 5 to 6 failed: it was at work all the same.
    """
    events = [visit("A", "a", 0, 4), visit("A", "b", 5, 6, "crashed"), visit("B", "b", 2, 12)]
    figures = measure([*events, visit("A", "a", 8, 9)], [])
    assert figures["busy"] == {"A": pytest.approx(5 / 8), "B": pytest.approx(6 / 8)}


def test_staleness_counts_the_visits_since_a_model_was_last_at_a_hospital():
    """Of a: A, B, A; a failed visit to C is none.

    After each: A 0 1 0, B 1 0 1, C 1 2 3; means 2/3, 1, 4/3.
    """
    path = [
        visit("A", "a", 0, 1),
        visit("B", "a", 1, 2),
        visit("C", "a", 2, 3, "timeout"),
        visit("A", "a", 3, 4),
    ]
    path = [replace(event, hop=hop) for hop, event in enumerate(path, 1)]
    found = measure(path, [])["staleness"]["a"]
    assert found["mean"] == pytest.approx(1.0)
    assert found["at"] == pytest.approx({"A": 0, "B": 1, "C": nan}, nan_ok=True)


def test_the_visits_for_an_average_have_no_order():
    """A and B train in round 1, and B alone in round 2. Means 0 and 1/2."""
    path = [visit("A", "global", 0, 1), visit("B", "global", 0, 2)]
    path += [visit("B", "global", 2, 3, round_=2)]
    for events in (path, [path[1], path[0], path[2]]):
        found = measure(events, [])["staleness"]["global"]
        assert found == {"mean": pytest.approx(0.25), "at": {"A": 1, "B": 0}}


def test_the_late_refusal_of_a_model_is_no_visit():
    """The round is over at 4 and A has a visit from 0 to 4, until the last visit begins at 5."""
    events = [visit("A", "a", 0, 4), visit("B", "a", 5, 6, round_=2)]
    late = replace(visit("A", "a", 9, 9, "useless"), verb="undo")
    assert measure([*events, late], [1, 2]) == measure(events, [1, 2])


def test_a_round_is_over_when_its_last_visit_is():
    """Its tests may come in later."""
    test = replace(visit("A", "a", 9, 9), verb="evaluate")
    events = [visit("A", "a", 0, 4), visit("B", "b", 0, 3), test, visit("A", "b", 4, 7, round_=2)]
    assert measure(events, [1, 2, 3])["time"] == pytest.approx([4, 7, nan], nan_ok=True)


def test_the_report_shows_them_for_runs_that_have_them():
    names = ("A", "<B>")
    events = [visit(h, h, k, k + 2) for k, h in enumerate(names)]
    events += [
        Event("evaluate", 1, 1, h, model, metrics={"accuracy": 0.5, "num-examples": 4})
        for h in names
        for model in names
    ]
    events += [Event("hand-off", 1, 1, h, h) for h in names]
    rounds = [measure_round(1, events, cross=True)]
    pages = [
        render("run", summarise(Record("rwt", events, rounds, 1.0, "", timed=timed)), events, "")
        for timed in (True, False)
    ]
    assert ["Figures over time" in page for page in pages] == [True, False]
    assert 'id="figures-over-time"' in pages[0]  # where the table of contents leads
    assert "<td>&lt;B&gt;</td><td>1</td><td>0%</td>" in bare(pages[0])
    assert "<B>" not in pages[0]


@pytest.mark.parametrize("round_", [1, 2])
def test_the_report_has_no_number_for_what_is_unknown(round_):
    """All visits begin at one time, and the first evaluated round may have none."""
    events = [visit(h, h, 1, 3, round_=round_) for h in "AB"]
    events += [
        Event("evaluate", number, 1, h, h, metrics={"accuracy": 0.5, "balanced-accuracy": 0.5})
        for number in (1, 2)
        for h in "AB"
    ]
    rounds = [measure_round(n, [e for e in events if e.round == n], cross=True) for n in (1, 2)]
    summary = summarise(Record("rwt", events, rounds, 1.0, "", timed=True))
    page = render("run", summary, events, "")
    assert "<td>A</td><td>1</td><td>–</td>" in bare(page)
    assert "Balanced accuracy over time" in page
    assert "nan" not in re.sub('base64,[^"]*', "", page)
