"""The part of the report about time: accuracy over seconds, who was busy, how stale models are."""

from typing import cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from server_app import plots
from server_app.measures import Summary
from strategies.protocol.page import heading, paragraph, table

COLUMNS = 8  # hospitals in the table of staleness


def render(summary: Summary) -> str:
    """The part, of a run that has `Summary.over_time`."""
    busy, staleness = summary.over_time["busy"], summary.over_time["staleness"]
    page = heading("Over time")
    if np.isfinite(summary.over_time["time"]).any():
        page += paragraph(
            "Accuracy of the models as they were when a round was over, by the seconds since the "
            "start; virtual ones, if async.seconds says how long a visit takes."
        )
        page += accuracies(summary)
    rows = [[name, summary.participation[name]["visits"], f"{busy[name]:.0%}"] for name in busy]
    page += paragraph(
        "Busy: the share of the time in which a hospital had a model to train, up to the beginning "
        "of the last visit."
    ) + table(["hospital", "visits", "busy"], rows)
    hospitals = list(busy)[:COLUMNS]
    lines = [
        [name, each["mean"], *(each["at"][hospital] for hospital in hospitals)]
        for name, each in staleness.items()
    ]
    return (
        page
        + paragraph(
            "Staleness: visits that a model has made since it was last at a hospital. The mean is "
            "over all its visits and hospitals; then at the end, – for one where it never was."
        )
        + table(["model", "mean", *hospitals], lines)
    )


@plots.picture
def accuracies(axes: Axes, summary: Summary) -> None:
    """Federation and personalised accuracy over seconds."""
    time, history = summary.over_time["time"], summary.history
    cast(Figure, axes.get_figure(root=True)).set_size_inches(plots.SIDE, 2.0)
    lines = {
        "personalised": history["personalized_accuracy"],
        "federation": history["federation_accuracy"],
    }
    for label, values in lines.items():
        if np.isfinite(values).any():
            axes.plot(time, values, "o-", ms=3, linewidth=1.2, label=label)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds")
    axes.set_ylabel("accuracy")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
