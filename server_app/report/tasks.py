"""The section about tasks: accuracies over the rounds, forgetting, and members of each task.

Only runs with tasks or with planned members (`enrolment`) have it.
"""

from math import isfinite, nan
from typing import Any

from pages import plots
from pages.plots import Line
from server_app.summary import Summary
from strategies.engine.presence import ACTIVE, LEFT, NOT_YET

OPEN = 30  # most hospitals that are not folded
SAID = {ACTIVE: "active", LEFT: "has left", NOT_YET: "not yet"}


def figures(summary: Summary) -> dict[str, Any] | None:
    """Return the section's values; None if there are no tasks, or no round was evaluated."""
    rounds = summary.history["round"]
    if not summary.tasks or not rounds:
        return None
    joint = summary.tasks["begins"][-1] == 1
    own = summary.tasks["own_streams"]
    begins = [] if joint or own else summary.tasks["begins"]
    lines = [Line("mean", rounds, summary.history["accuracy_over_tasks"])]
    lines += [Line(f"task {k}", rounds, ys) for k, ys in enumerate(summary.tasks["accuracy"], 1)]
    matrix, transfer = summary.tasks["matrix"], summary.backward_transfer
    numbers = range(1, len(matrix) + 1)
    return {
        "own": own,
        # Only a test of all models at all hospitals has this figure.
        "models": "models" if isfinite(summary.pooled_federation_accuracy) else "held models",
        "joint": joint,
        "drawn": plots.chart("Accuracy on each task", lines, begins=begins),
        "borders": bool(begins),
        "rounds_head": ["round", *(line.name for line in lines)],
        "rounds": [*zip(rounds, *(line.ys for line in lines), strict=True)],
        "transfer": f"{transfer:+.3f}" if isfinite(transfer) else transfer,
        "matrix_dense": len(matrix) > plots.NUMBERED,
        "matrix": plots.heat(
            "Accuracy on each task (column) after each task (row)",
            [f"after task {number}" for number in numbers],
            [f"task {number}" for number in numbers],
            matrix,
            [nan] * len(matrix),
            "",
        ),
    }


def enrolment_plan(summary: Summary) -> dict[str, Any] | None:
    """Return the planned members of each task; None without a plan."""
    plan = summary.enrolment
    if not plan:
        return None
    count = max(map(len, plan.values()))
    titles = [f"task {k}" for k in range(1, count + 1)] if summary.tasks else ["the whole run"]
    rows = [[hospital, *(SAID[each] for each in states)] for hospital, states in plan.items()]
    return {"head": ["hospital", *titles], "rows": rows, "many": len(rows) > OPEN}
