"""The report's part about time: figures over seconds, who was busy, and how stale models are.

Of runs whose hospitals do not wait for one another, and of those in virtual time (`async.seconds`).
"""

from collections.abc import Iterator, Mapping
from math import isfinite

from pages import plots
from pages.page import figure, paragraph, section, table
from pages.plots import Line
from server_app.summary import Summary

TITLE = "Over time"
COLUMNS = 8  # hospitals in the table of staleness


def part(summary: Summary, chances: Mapping[str, float]) -> str:
    """Make the part; empty if the run has no `Summary.over_time`."""
    if not summary.over_time:
        return ""
    return section(TITLE, *_figures(summary, chances), *_busy(summary), *_stale(summary))


def _figures(summary: Summary, chances: Mapping[str, float]) -> Iterator[str]:
    time, history = summary.over_time["time"], summary.history
    if not any(map(isfinite, time)):
        return
    names = {
        "all models, at all hospitals": "federation_balanced_accuracy",
        "the model a hospital holds": "personalized_balanced_accuracy",
    }
    lines = [
        Line(name, time, history[key])
        for name, key in names.items()
        if any(map(isfinite, history[key]))
    ]
    chart = plots.chart("Balanced accuracy over time", lines, chances[""], across="seconds")
    yield figure(
        "Balanced accuracy of the models as they were when a round was over, by the seconds since "
        "the start of the run; virtual seconds, if the setting async.seconds says how long a visit "
        "takes.",
        f'<div class="panels">{chart}</div>\n',
    )


def _busy(summary: Summary) -> Iterator[str]:
    rows = [
        [hospital, summary.participation[hospital]["visits"], f"{share:.0%}"]
        for hospital, share in summary.over_time["busy"].items()
    ]
    yield paragraph(
        "Busy is the share of the time in which a hospital had a model to train, up to the "
        "beginning of the last visit."
    )
    yield table(["hospital", "visits", "busy"], rows, about="How busy hospitals were")


def _stale(summary: Summary) -> Iterator[str]:
    hospitals = list(summary.over_time["busy"])[:COLUMNS]
    rows = [
        [model, each["mean"], *(each["at"][hospital] for hospital in hospitals)]
        for model, each in summary.over_time["staleness"].items()
    ]
    yield paragraph(
        "A model is the staler for a hospital, the more visits it has made since it was there. "
        "First the mean over all its visits and hospitals; then at the end of the run, with – for "
        "a hospital where it never was."
    )
    yield table(["model", "mean", *hospitals], rows, about="How stale models are")
