"""The section about time: figures over seconds, busy hospitals, and stale models.

Only asynchronous runs and runs in virtual time (`async.seconds`) have it.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from pages import plots
from pages.plots import Line
from server_app.summary import Summary

COLUMNS = 8  # most hospitals in the table of staleness
NAMES = {
    "all models, at all hospitals": "federation_balanced_accuracy",
    "the model a hospital holds": "personalized_balanced_accuracy",
}


def figures(summary: Summary, chances: Mapping[str, float]) -> dict[str, Any] | None:
    """Return the section's values; None if the run has no `Summary.over_time`."""
    if not summary.over_time:
        return None
    time, history = summary.over_time["time"], summary.history
    known = [k for k, end in enumerate(time) if isfinite(end)]  # rounds with a visit
    lines = [
        Line(name, [time[k] for k in known], [history[key][k] for k in known])
        for name, key in NAMES.items()
        if any(map(isfinite, history[key]))
    ]
    drawn = plots.chart("Balanced accuracy over time", lines, chances[""], across="seconds")
    hospitals = list(summary.over_time["busy"])[:COLUMNS]
    return {
        "drawn": drawn if known else None,
        "busy": [
            [hospital, summary.participation[hospital]["visits"], _share(share)]
            for hospital, share in summary.over_time["busy"].items()
        ],
        "hospitals": hospitals,
        "stale": [
            [model, each["mean"], *(each["at"][hospital] for hospital in hospitals)]
            for model, each in summary.over_time["staleness"].items()
        ],
    }


def _share(value: float) -> str:
    return f"{value:.0%}" if isfinite(value) else "–"
