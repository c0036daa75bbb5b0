"""The report's part about tasks: accuracies over the rounds, what was forgotten, who was there.

Of runs whose images arrive in tasks, one after the other, or who takes part in which is planned.
"""

from collections.abc import Iterator, Sequence
from math import isfinite, nan

from pages import plots
from pages.page import figure, folded, heading, paragraph, section, table
from pages.plots import Line
from server_app.summary import Summary
from strategies.engine.presence import ACTIVE, LEFT, NOT_YET

TITLE = "Over the tasks"
OPEN = 30  # more hospitals than this are folded
SAID = {ACTIVE: "active", LEFT: "has left", NOT_YET: "not yet"}


def part(summary: Summary) -> str:
    """Make the part; empty if there is nothing to tell."""
    parts = [*_accuracies(summary), *_planned(summary)]
    return section(TITLE, *parts) if parts else ""


def _accuracies(summary: Summary) -> Iterator[str]:
    if not summary.tasks or not summary.history["round"]:
        return
    joint = summary.tasks["begins"][-1] == 1
    own = summary.tasks["own_streams"]
    begins = [] if joint or own else summary.tasks["begins"]
    said = "The images of all tasks were there from the first round on: nothing can be forgotten."
    if own:
        yield paragraph(
            "Each hospital has the tasks in an order, or for durations, of its own (settings "
            "task-order and task-spread). So the run is cut in as many equal parts as there are "
            "tasks, and a row 'after task 2' is about the end of the second part."
        )
    yield from _over_rounds(summary, begins)
    yield from [paragraph(said)] if joint else _at_the_end(summary)


def _over_rounds(summary: Summary, begins: Sequence[int]) -> Iterator[str]:
    rounds = summary.history["round"]
    lines = [Line("mean", rounds, summary.history["accuracy_over_tasks"])]
    lines += [Line(f"task {k}", rounds, ys) for k, ys in enumerate(summary.tasks["accuracy"], 1)]
    chart = plots.chart("Accuracy on each task", lines, begins=begins)
    upright = " Upright lines: the images of the next task arrive." if begins else ""
    yield figure(
        "Accuracy on the test images of each task, means over models and hospitals, and the mean "
        f"over the tasks so far.{upright}",
        f'<div class="panels">{chart}</div>\n',
    )
    rows = zip(rounds, *(line.ys for line in lines), strict=True)
    names = [line.name for line in lines]
    yield folded("These lines as numbers", table(["round", *names], rows, about="By round"))


def _at_the_end(summary: Summary) -> Iterator[str]:
    matrix, transfer = summary.tasks["matrix"], summary.backward_transfer
    yield heading("What was forgotten", 3)
    yield table(
        ["mean over tasks", "", ""],
        [
            ["accuracy", summary.accuracy_over_tasks, "on the tasks so far (Class-IL)"],
            [
                "accuracy within tasks",
                summary.accuracy_within_tasks,
                "if only the classes of an image's own task can be the answer (Task-IL)",
            ],
            ["forgetting", summary.forgetting, "the best less that at the end, on earlier tasks"],
            [
                "backward transfer",
                f"{transfer:+.3f}" if isfinite(transfer) else transfer,
                "that at the end less that right after the task, on earlier tasks",
            ],
        ],
        about="Means over the tasks",
    )
    many = (
        " There are too many tasks to print the numbers: summary.json has them."
        if len(matrix) > plots.NUMBERED
        else ""
    )
    numbers = range(1, len(matrix) + 1)
    yield figure(
        "Accuracy on the test images of a task (column) after the last round of each task (row). "
        f"A dash: not measured, or not told.{many}",
        plots.heat(
            "Accuracy on each task (column) after each task (row)",
            [f"after task {number}" for number in numbers],
            [f"task {number}" for number in numbers],
            matrix,
            [nan] * len(matrix),
            "",
        ),
    )


def _planned(summary: Summary) -> Iterator[str]:
    """Who was to take part when."""
    plan = summary.enrolment
    if not plan:
        return
    count = max(map(len, plan.values()))
    titles = [f"task {k}" for k in range(1, count + 1)] if summary.tasks else ["the whole run"]
    rows = [[hospital, *(SAID[each] for each in states)] for hospital, states in plan.items()]
    told = table(["hospital", *titles], rows, about="Who takes part in which task")
    yield heading("Who takes part when", 3)
    yield paragraph(
        "This was planned (setting enrolment). A hospital that is not active is asked neither to "
        "train nor to test, and misses nothing. What one sent before it left stays at the server. "
        "Accuracies are those at the hospitals that were active then."
    )
    yield folded("Show the plan", told) if len(rows) > OPEN else told
