"""The hospital's synthetic images: samples, the performance of a model, and the nearest pairs."""

from typing import Any

import numpy as np

from client_app.afterwards.own_buffer import SEARCHED, Examination
from client_app.afterwards.past_run import PastRun
from pages.figures_view import figure_cell
from pages.pictures import strip, strips_by_class
from pages.verdicts.model import mean_chance


def describe(past: PastRun, examined: Examination | None) -> dict[str, Any] | None:
    """Return the values for the page; None if the store has no buffer."""
    if (buffer := past.buffer) is None:
        return None
    images, labels = buffer.samples.images.numpy(), buffer.samples.labels.numpy()
    are_images = images.dtype == np.uint8
    return {
        "count": len(labels),
        "searched": SEARCHED,
        "strips": strips_by_class(images, labels, past.classes) if are_images else [],
        "worth": _worth(examined) if examined else None,
        "pairs": [
            strip(
                f"{pair.label}: {pair.unexplained:.3f} is not explained",
                [pair.synthetic.cpu().numpy(), pair.real.cpu().numpy()],
            )
            for pair in (examined.pairs if examined else ())
        ],
    }


def _worth(examined: Examination) -> dict[str, Any]:
    """Figures of a model that was trained on them alone; empty if it diverged."""
    row = examined.worth
    return {
        "passes": examined.passes,
        "seconds": f"{examined.seconds:.0f}",
        "figure": figure_cell(row["balanced_accuracy"]) if row else "",
        "gain": figure_cell(row["gain"], signed=True) if row and row["gain"] else "",
        "chance": mean_chance([row]) if row else None,
    }
