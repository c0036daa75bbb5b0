"""Figures over tasks, each derived by hand."""

import json
import re
from dataclasses import replace
from math import isnan, nan

import numpy as np
import pytest

from server_app.compare import records, text
from server_app.compare_page import page as comparison_page
from server_app.comparison import OVER_TASKS, compare
from server_app.results import Results
from server_app.summary import Record, Summary, measure_round, summarise
from server_app.tables import rounds as rounds_of
from server_app.tables import tasks as tasks_of
from server_app.tasks import backward_transfer, forgetting, losses, matrix
from server_app.wording import round_line
from strategies.engine.events import Event
from tests.fakes import settings
from tests.server_app.conftest import evaluated
from tests.server_app.fake_runs import NAMES, fake_run, in_tasks, serial
from tests.server_app.test_compare import write_run
from tests.server_app.test_report import bare
from tests.server_app.test_tables import write

TASKS = (1, 1, 2, 2, 3, 3)
# After each round, at hospitals A and B, on tasks 1, 2, 3; round 5 was not evaluated.
TOLD: dict[int, dict[str, tuple[float, ...]]] = {
    1: {"A": (0.4,), "B": (0.6,)},
    2: {"A": (0.8,), "B": (0.6,)},
    3: {"A": (0.5, 0.3), "B": (0.7, 0.5)},
    4: {"A": (1.0, 0.9), "B": (0.8, 0.7)},
    6: {"A": (0.5, 0.9), "B": (0.7, nan, 0.9)},
}
# A has too few patients of task 3 to tell of it, and B of task 2 in the last round.
MATRIX = [[0.7, nan, nan], [0.9, 0.8, nan], [0.6, 0.9, 0.9]]


def told_by(round_, told):
    for hospital, accuracies in told.items():
        figures = {f"accuracy-of-task-{k}": each for k, each in enumerate(accuracies, 1)}
        yield evaluated(round_, "A", hospital, 0.5, **figures)


def summary(told, tasks=TASKS, cross=True, own_streams=False):
    events = [event for number, each in told.items() for event in told_by(number, each)]
    events += [Event("hand-off", number, 1, "A", "A") for number in told]
    rounds = [
        measure_round(number, [e for e in events if e.round == number], cross)
        for number in range(1, max(told) + 1)
    ]
    return summarise(
        Record("fedavg", events, rounds, 1.0, "", tasks=tasks, own_streams=own_streams)
    )


def near(expected):
    return pytest.approx(np.array(expected), nan_ok=True)


def test_forgetting_is_from_the_best_and_transfer_from_the_first():
    """R = 0.7           forgetting: 0.9 - 0.6 = 0.3 of task 1; task 2 was never better, so 0.

    0.9  0.8      transfer:   0.6 - 0.7 = -0.1 and 0.9 - 0.8 = 0.1.
    0.6  0.9  0.9
    """
    r = losses(np.array(MATRIX)[..., None])
    assert forgetting(r) == near([0.3, 0.0])
    assert backward_transfer(r) == near([-0.1, 0.1])


@pytest.mark.parametrize(
    ("row", "column", "lost", "risen"),
    [
        (2, 0, [nan, 0.0], [nan, 0.1]),  # not told at the end
        (1, 0, [0.1, 0.0], [-0.1, 0.1]),  # nor in between: 0.7 is the best
        (1, 1, [0.3, nan], [-0.1, nan]),  # never before the end
    ],
)
def test_what_was_not_told_is_no_zero(row, column, lost, risen):
    r = np.array(MATRIX)
    r[row, column] = nan
    r = losses(r[..., None])
    assert forgetting(r) == near(lost)
    assert backward_transfer(r) == near(risen)


def test_the_last_evaluated_round_of_a_task_counts():
    """The second task was not evaluated."""
    accuracy = np.array([[0.1, nan, nan], [0.2, nan, nan], [0.3, 0.4, 0.5]])
    assert matrix([1, 1, 3], accuracy) == near([[0.2, nan, nan], [nan] * 3, [0.3, 0.4, 0.5]])


def test_the_figures_of_a_run():
    """Of round 4: (1.0 + 0.8) / 2 and (0.9 + 0.7) / 2. Of round 6 A alone tells of task 2, B of 3.

    Forgetting: the mean of 0.3 and 0. Transfer: that of -0.1 and, at A alone, 0.9 - 0.9.
    """
    found = summary(TOLD)
    assert np.array(found.tasks["matrix"]) == near(MATRIX)
    assert np.array(found.tasks["accuracy"]) == near(
        [[0.5, 0.7, 0.6, 0.9, 0.6], [nan, nan, 0.4, 0.8, 0.9], [nan] * 4 + [0.9]]
    )
    assert found.tasks["begins"] == [1, 3, 5]
    assert found.tasks["hospitals"] == [["A", "B"]] * 3
    assert found.history["accuracy_over_tasks"] == pytest.approx([0.5, 0.7, 0.5, 0.85, 0.8])
    assert found.accuracy_over_tasks == pytest.approx(0.8)
    assert found.forgetting == pytest.approx(0.15)
    assert found.backward_transfer == pytest.approx(-0.05)


def test_with_streams_of_their_own_nothing_is_learnt_at_one_time():
    found = summary(TOLD, own_streams=True)
    assert isnan(found.backward_transfer)
    assert found.forgetting == pytest.approx(0.15)
    run = in_tasks()
    own = replace(run.summary, tasks={**run.summary.tasks, "own_streams": True})
    page = run._replace(summary=own).page()
    assert "of its own (settings task-order and task-spread)" in page
    assert 'class="border"' not in page


@pytest.mark.parametrize("tasks", [[], [1, 1, 2, 2]])
def test_curves_over_tasks_have_no_line_of_chance(tasks):
    """In "Results by visit" they had one; the caption named the line of the hospitals' curves."""
    page = fake_run(serial(NAMES, 4, 10), tasks=tasks, classes=[*"0123456789"]).page()
    assert "<h3>Results by visit" in page
    for title, end in (("Results by round", "Results by visit"), ("Results by visit", "Routes of")):
        part = page[page.index(f"<h3>{title}") : page.index(f"<h3>{end}")]
        assert ('class="chance"' in part) == (not tasks)
    assert ("the dashed line is chance" in page) == (not tasks)


@pytest.mark.parametrize("tasks", [[1, 1, 2, 2], [1, 1, 1, 1, 2, 2, 2, 2]])
def test_a_run_that_ended_before_its_last_task_has_no_rounds_of_it(tasks):
    """They had the mean "– ± –", of a negative number of rounds."""
    run = fake_run(serial(NAMES, 4, 10), tasks=tasks, error="RunError", classes=[*"0123456789"])
    page = run.page()
    assert "on the\ntest images of all hospitals together." in page
    assert ("over all tested visits of the last 2 rounds" in page) == (len(tasks) == 4)
    assert "– ± –" not in page


def test_the_caption_names_the_models_behind_the_means():
    run = in_tasks()
    held = replace(run.summary, pooled_federation_accuracy=nan)  # as with evaluate.cross=false
    assert "means over models and\nhospitals" in run.page()
    assert "means over held models and\nhospitals" in run._replace(summary=held).page()


def test_rounds_with_other_test_images_have_no_best_one():
    run = in_tasks()
    in_one = replace(run.summary, best_round=2, tasks={})
    page, of_one = (
        run._replace(summary=each).page()
        for each in (replace(in_one, tasks=run.summary.tasks), in_one)
    )
    assert "The best round was 2." in of_one
    assert "The best round" not in page


def test_of_models_that_are_not_tested_everywhere_those_held_count():
    """A holds the model."""
    assert summary(TOLD, cross=False).tasks["matrix"][1][:2] == pytest.approx([1.0, 0.9])


def test_a_hospital_that_is_not_there_is_no_gap():
    """B leaves after the first task: then A alone counts."""
    told = {number: each if number < 3 else {"A": each["A"]} for number, each in TOLD.items()}
    found = summary(told)
    assert found.tasks["hospitals"] == [["A", "B"], ["A"], ["A"]]
    assert np.array(found.tasks["matrix"]) == near(
        [[0.7, nan, nan], [1.0, 0.9, nan], [0.5, 0.9, nan]]
    )
    assert found.forgetting == pytest.approx((0.5 + 0.0) / 2)


def test_the_absence_of_a_good_hospital_is_no_forgetting():
    """A always knows task 1 at 0.9, and B at 0.5. In the end A is away, or C alone is there."""
    both = {1: {"A": (0.9,), "B": (0.5,)}, 2: {"B": (0.5, 0.5)}}
    found = summary(both, tasks=(1, 2))
    assert np.array(found.tasks["matrix"]) == near([[0.7, nan], [0.5, 0.5]])
    assert (found.forgetting, found.backward_transfer) == (0, 0)
    others = summary({**both, 2: {"C": (0.1, 0.5)}}, tasks=(1, 2))
    assert isnan(others.forgetting)
    assert isnan(others.backward_transfer)


def test_the_best_and_the_last_rounds_are_of_the_last_task():
    """In the first task there are fewer classes to confuse, so its figures are higher."""
    first, second = ({"accuracy": each, "balanced-accuracy": each} for each in (0.9, 0.6))
    events = [
        Event("evaluate", round_, 1, "A", "A", metrics={**told, "num-examples": 10.0})
        for round_, told in ((1, first), (2, first), (3, second))
    ]
    events += [Event("hand-off", number, 1, "A", "A") for number in (1, 2, 3)]
    for tasks, best, number in (((1, 1, 2), 0.6, 3), ((0, 0, 0), 0.9, 1)):
        rounds = [measure_round(n, [e for e in events if e.round == n], True) for n in (1, 2, 3)]
        found = summarise(Record("fedavg", events, rounds, 1.0, "", tasks=tasks))
        assert found.best["federation_accuracy"] == best
        assert found.best_round == number
        assert found.last_rounds["mean"] == pytest.approx(best if number == 3 else 0.8)


def test_a_run_that_ended_early_has_forgotten_nothing_yet():
    found = summary({number: TOLD[number] for number in (1, 2, 3)})
    assert isnan(found.forgetting)
    assert isnan(found.backward_transfer)
    assert found.accuracy_over_tasks == pytest.approx(0.5)


def test_joint_training_has_no_earlier_tasks():
    told = {number: {"A": (0.5, 0.6, 0.7)} for number in (1, 2)}
    found = summary(told, tasks=(3, 3))
    assert np.array(found.tasks["matrix"]) == near([[nan] * 3, [nan] * 3, [0.5, 0.6, 0.7]])
    assert isnan(found.forgetting)
    page = fake_run([*told_by(1, told[1])], tasks=(3, 3)).page()
    assert "nothing can be forgotten" in page
    assert "Forgetting" not in page
    assert 'class="border"' not in page


@pytest.mark.parametrize(
    ("strategy", "begins"), [("fedavg", [1, 3, 5]), ("centralized", [1, 1, 1])]
)
def test_the_settings_and_the_method_say_which_round_is_of_which_task(strategy, begins, tmp_path):
    chosen = settings(strategy=strategy, tasks=3, num_server_rounds=6, output_dir=str(tmp_path))
    results, state = Results.open(chosen)
    for event in told_by(1, TOLD[1]):
        results.record(event)
    results.round_finished(1)
    results.finish(state)
    found = Summary.read(results.path).tasks
    assert found["begins"] == begins
    assert found["accuracy"][0] == [pytest.approx(0.5)]


@pytest.mark.parametrize("tasks", [(), (0, 0, 0, 0, 0, 0)])
def test_a_run_without_tasks_has_none_of_this(tasks):
    plain = {number: dict.fromkeys(each, ()) for number, each in TOLD.items()}
    found = summary(plain, tasks)
    assert found.tasks == {}
    assert isnan(found.forgetting)
    assert isnan(found.accuracy_over_tasks)
    assert "Tasks and members" not in fake_run([*told_by(1, plain[1])], tasks=tasks).page()


def test_the_line_of_a_round_has_the_mean():
    measured = measure_round(4, told_by(4, TOLD[4]), cross=True)
    assert "over tasks 0.850" in round_line(measured, 6, 2)


def test_the_report_draws_them_and_says_them():
    """Each task is learnt to 0.9, and falls by 0.3 with each later one."""
    page = in_tasks().page()
    row = page.partition('<th scope="row">after task 3</th>')[2].partition("</tr>")[0]
    assert re.findall(r">([\d.]+)</td>", row) == ["0.300", "0.600", "0.900"]
    assert "<td>accuracy within tasks</td><td>0.800</td>" in bare(page)  # of 0.7, 0.8 and 0.9
    assert "<td>forgetting</td><td>0.450</td>" in bare(page)
    assert "<td>backward transfer</td><td>-0.450</td>" in bare(page)
    assert page.count('class="border"') == 2
    assert "task 2 begins with round 5; task 3 begins with round 9" in page
    assert "0.300 after round 12, between 0.100 and 0.900; task 2: " in page


@pytest.mark.slow
def test_a_report_of_what_nobody_tells_has_dashes():
    events = [replace(e, metrics={"accuracy": 0.5}) for e in in_tasks().events]
    page = fake_run(events, tasks=(1,) * 6 + (2,) * 6).page()
    assert "<td>backward transfer</td><td>–</td>" in bare(page)
    assert "nan" not in page.partition("</style>")[2]


def test_the_tables_have_them(tmp_path):
    folder = write(tmp_path, summary(TOLD))
    assert rounds_of(folder)["task.2"].to_numpy() == near([nan, nan, 0.4, 0.8, 0.9])
    table = tasks_of(folder)
    assert table.to_numpy() == near(MATRIX)
    assert table.loc[3, 1] == pytest.approx(0.6)
    assert tasks_of(write(tmp_path, summary(TOLD, ()))).empty


def test_methods_are_compared_by_them(tmp_path):
    """Forgetting of cwt is 0.3, and of rwt 0.1 and 0.2: less by 0.2 and 0.1."""
    for seed, lost in ((0, 0.1), (1, 0.2)):
        for strategy, each in (("cwt", 0.3), ("rwt", lost)):
            folder = write_run(tmp_path / f"{strategy}{seed}", strategy, seed)
            known = json.loads((folder / "summary.json").read_text())
            figures = {"forgetting": each, "backward_transfer": -each, "accuracy_over_tasks": 0.7}
            figures["accuracy_within_tasks"] = 0.9
            (folder / "summary.json").write_text(json.dumps({**known, **figures}))
    write_run(tmp_path / "without", "feder", 0)
    comparison = compare([tmp_path])
    rows = [row for row in records(comparison) if row[2] in {f.name for f in OVER_TASKS}]
    assert [row[2] for row in rows if row[:2] == ["cwt", ""]] == [f.name for f in OVER_TASKS]
    (difference,) = [row for row in rows if row[:3] == ["cwt", "rwt", "forgetting"]]
    assert difference[4] == pytest.approx(0.15)
    lines = text(comparison).splitlines()
    assert max(map(len, lines)) <= 80
    row = ["cwt", "0.700±0.000", "0.900±0.000", "0.300±0.000", "-0.300±0.000"]
    assert row in [line.split() for line in lines]
    page = comparison_page(comparison)
    # On an axis from -1 to 1, -0.3 is at 35 %.
    backward = page.partition('id="transfer-back-over-tasks"')[2]
    assert 'cx="35.0%"' in backward.partition("</svg>")[0]
