"""What is said of embeddings that left hospitals."""

from dataclasses import replace

import pytest

from client_app.authority.policy import DEFAULTS, Policy
from server_app.embeddings import embeddings_of
from server_app.report.embeddings import LIMITS, OPEN
from strategies.engine.events import Event
from tests.server_app.fake_runs import SENT, by_plan, fake_run, one_average
from tests.server_app.test_report import text_of


def test_they_are_told_by_hospital_and_task():
    """Linz was asked in rounds 1 and 2, both of task 1; round 3 is the first of task 2."""
    rows = by_plan().summary.embeddings
    assert [(row["hospital"], row["task"], row["count"]) for row in rows] == [
        ("graz", 1, 48),
        ("graz", 2, 48),
        ("linz", 1, 0),
        ("wien", 2, 20),
    ]
    assert {row["kind"] for row in rows} == {"sampled"}
    assert rows[0]["figures"] == SENT["graz", 1][1]
    assert rows[3]["figures"] == {}


def test_without_tasks_they_are_of_the_first():
    event = Event("train", 2, 1, "graz", facts={"embeddings": "ebr", "came": 3})
    assert [row["task"] for row in embeddings_of([event], (0, 0))] == [1]


def test_the_report_says_what_left_and_whether_it_is_within_the_usual_limits():
    text = text_of(by_plan().page())
    assert "Embeddings that came: 116, from 2 of the hospitals." in text
    assert "Hospitals that were asked and sent none: linz." in text
    assert "graz 1 48 sampled 2.0%: within 3.0%: within 16, most 33: within" in text
    assert "graz 2 48 sampled 30.0%: above 3.0%: within 16: within" in text
    assert "linz 1 none: kept – – –" in text
    assert "wien 2 20 sampled – – –" in text
    assert "reveal more" not in text
    assert "nan" not in text
    assert "Released embeddings" not in text_of(one_average().page())


@pytest.mark.parametrize("kind", ["stats", "ebr"])
def test_kinds_that_reveal_more_are_marked(kind):
    text = text_of(by_plan(kind).page())
    assert "These embeddings reveal more than sampled ones. " in text
    assert f"They are of the kind {kind}: " in text
    assert f"graz 1 48 {kind}: reveals more" in text


def test_what_was_kept_reveals_nothing():
    events = [
        replace(event, facts={**event.facts, "came": 0}) if event.facts.get("came") else event
        for event in by_plan("stats").events
    ]
    text = text_of(fake_run(events, "fil-ver", tasks=(1, 1, 2, 2)).page())
    assert "Embeddings that came: 0, from 0 of the hospitals." in text
    assert "reveal more" not in text


def test_of_one_image_the_most_decides():
    told = {"embedding-bits-median": 16.0, "embedding-bits-most": 70.0}
    facts = {"embeddings": "sampled", "came": 3}
    page = fake_run([Event("train", 1, 1, "graz", metrics=told, facts=facts)], tasks=(0,)).page()
    assert "graz 1 3 sampled – – 16, most 70: above" in text_of(page)


def test_the_usual_limits_are_those_of_the_policy():
    rules = Policy.read(DEFAULTS).embeddings
    assert [*LIMITS.values()] == [rules.max_linked, rules.max_inverted, rules.max_bits]


def test_many_rows_are_folded():
    events = [
        Event("train", 1, 1, f"h{k}", facts={"embeddings": "sampled", "came": 1})
        for k in range(OPEN + 1)
    ]
    assert "Every hospital and task" in fake_run(events, tasks=(0,)).page()
    assert "Every hospital and task" not in by_plan().page()
