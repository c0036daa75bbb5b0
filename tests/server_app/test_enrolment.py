"""What is said of hospitals that come and go by plan."""

import json
import re

import pytest

from server_app.results import Results
from server_app.summary import Summary
from server_app.watch import Followed
from strategies.engine.events import Event
from strategies.protocol.settings import SettingsError
from tests.fakes import settings
from tests.server_app.conftest import evaluated, visit
from tests.server_app.fake_runs import PLAN, by_plan, fake_run, one_average, ring
from tests.server_app.test_report import text_of


@pytest.fixture
def begin(tmp_path):
    def begun(plan, tasks=2):
        chosen = settings(
            strategy="fedavg",
            tasks=tasks,
            num_server_rounds=2,
            enrolment=str(plan),
            output_dir=str(tmp_path / "runs"),
        )
        results, state = Results.open(chosen)
        for name in ("A", "B"):
            results.record(Event("query.prepare", 0, 0, name, name))
        return results, state

    return begun


def do(results, number, hospitals):
    for hospital in hospitals:
        results.record(visit(number, "global", hospital))
        results.record(evaluated(number, "global", hospital, 0.5))
    results.round_finished(number)


def test_who_has_left_is_no_failure_and_missed_nothing(begin, caplog):
    """By S2 both are active in task 1, A alone in task 2."""
    results, state = begin("S2")
    do(results, 1, ("A", "B"))
    do(results, 2, ("A",))
    results.finish(state)
    summary = Summary.read(results.path)
    assert summary.enrolment == {"A": ["active", "active"], "B": ["active", "left"]}
    assert summary.status == "completed"
    assert summary.participation["B"] == {
        "visits": 1,
        "epochs": 0,
        "visited": [1],
        "missed": [],
    }
    told = [*Followed(results.path).look(), *caplog.messages]
    assert sum("round 2/2" in line for line in told) == 2
    assert not [line for line in told if "of 2 hospitals" in line]


def test_who_fails_without_a_plan_still_does(begin, caplog):
    results, _ = begin("S2")
    results.record(Event("train", 1, 1, "B", "global", "timeout", "No answer."))
    do(results, 1, ("A",))
    assert "1 of 2 hospitals" in caplog.messages[-1]


def test_a_run_that_its_table_ends_has_a_summary(begin, tmp_path):
    plan = tmp_path / "plan.csv"
    plan.write_text("A,active,active\n")
    results, state = begin(plan)
    results.fail(SettingsError("no line for B"), state)
    assert Summary.read(results.path).enrolment == {}


def test_without_tasks_a_table_is_of_the_whole_run(begin, tmp_path, caplog):
    plan = tmp_path / "plan.csv"
    plan.write_text("A,active\nB,not-yet\n")
    results, state = begin(plan, tasks=1)
    do(results, 1, ("A",))
    do(results, 2, ("A",))
    results.finish(state)
    assert not [line for line in caplog.messages if "of 2 hospitals" in line]
    assert json.loads((results.path / "summary.json").read_text())["tasks"] == {}
    text = text_of((results.path / "report.html").read_text())
    assert "hospital the whole run A active B not yet" in text
    assert "Hospitals that were asked to train: 1; none missed a visit." in text


def test_the_report_shows_the_plan_in_words():
    text = text_of(by_plan().page())
    assert by_plan().summary.enrolment == PLAN
    assert "hospital task 1 task 2 graz active active linz active has left wien not yet" in text
    assert "Empty: was not asked; the plan is in “ Tasks and members”." in text
    assert "none missed a visit" in text
    assert not re.search(r"Failures|failed", text)
    assert "At 1 of 2 hospitals, the model that the hospital holds is shown" in text
    assert (
        "forgetting and backward transfer compare the hospitals that were active at both times"
        in text
    )
    assert "after the last of its rounds with a test" in text


def test_without_a_plan_nothing_is_said_of_one():
    text = text_of(one_average().page())
    assert not re.search("planned|Tasks and members", text)
    assert "At 1 of 3 hospitals, the model that the hospital holds is shown" in text


def test_of_many_hospitals_the_plan_is_folded():
    plan = {f"h{k:02}": ["active"] for k in range(40)}
    assert "Show the plan" in fake_run(ring([*plan][:2], 1), enrolment=plan).page()
    assert "Show the plan" not in by_plan().page()
