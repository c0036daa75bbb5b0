"""Figures of models: assessments from a hospital's metrics, means over hospitals, and texts.

The metrics of a hospital have the names of `may_leave.METRICS`. An assessment sorts them by
subject; the server's report and the hospital's own report show assessments. A figure has the ends
of its 95 % interval over patients, and the standard deviation of its noise, if any.

Hospitals have different patients, so their errors are independent. The models at one hospital are
tested on the same images, so their errors count as fully dependent.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import hypot, isfinite, sqrt
from statistics import fmean
from typing import Any

from learning.intervals import Figure, Z, combine, read_figure, without_interval
from strategies.protocol.tested import TESTED
from strategies.protocol.text import amount

Assessment = dict[str, Any]  # a row of `Summary.assessments` (server_app/assessments.py)
ROUNDING = 1e-9  # figures that differ by less are equal
BINS = 10
FIGURES = {name.replace("-", "_"): name for name in TESTED} | {
    "ece": "calibration-error",
    "gain": "gain",
}
# The figures that several hospitals can only average, with their headings
MEANS = {name: figure.heading for name, figure in TESTED.items() if figure.is_mean} | {"ece": "ECE"}


class Headline(Figure):
    """The main figure of a run: its name, its round, and the numbers behind it."""

    figure: str
    hospitals: int
    models: int
    images: float | None
    patients: float | None
    round: int


def assessment(
    kind: str, model: str, hospital: str, metrics: Mapping[str, float], classes: Sequence[str]
) -> Assessment:
    """A hospital's figures of a model; None for a figure that is not reported.

    `kind` is "model", "ensemble", or "standalone": the hospital's own before the first hand-off.
    `model` is a lineage.
    """
    described = [_class(name, k, metrics) for k, name in enumerate(classes)]
    gain, complete = read_figure(metrics, "gain"), all(each["images"] for each in described)
    return {
        "kind": kind,
        "model": model,
        "hospital": hospital,
        "images": metrics.get("num-examples"),
        "patients": metrics.get("num-patients"),
        **{name: read_figure(metrics, metric) for name, metric in FIGURES.items()},
        "compared": direction(gain) if gain and (complete or "noise" not in gain) else "",
        "largest_class": largest_class(described),
        "classes": described,
        "confusion": _confusion(metrics, len(classes)),
        "calibration": [*_bins(metrics)],
    }


def _class(name: str, k: int, metrics: Mapping[str, float]) -> dict[str, Any]:
    images = metrics.get(f"images-of-class-{k}") or None
    right = metrics.get(f"answers-{k}-of-class-{k}", metrics.get(f"right-of-class-{k}"))
    recall = read_figure(metrics, f"recall-of-class-{k}")
    if recall is None and images and right is not None:
        # A hospital may claim more right answers than images.
        recall = without_interval(min(right / images, 1.0))
    return {
        "name": name,
        "images": images,
        "patients": metrics.get(f"patients-of-class-{k}"),
        "right": right if images else None,
        "recall": recall,
        "threshold": metrics.get(f"threshold-of-class-{k}"),
        "sensitivity": read_figure(metrics, f"sensitivity-of-class-{k}"),
        "specificity": read_figure(metrics, f"specificity-of-class-{k}"),
    }


def largest_class(described: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The class with most images, and its share of all images."""
    known = [each for each in described if each["images"]]
    if not known:
        return None
    most = max(known, key=lambda each: float(each["images"]))
    return {"name": most["name"], "share": most["images"] / sum(each["images"] for each in known)}


def _confusion(metrics: Mapping[str, float], count: int) -> list[list[float | None]]:
    cells = [
        [metrics.get(f"answers-{answer}-of-class-{k}") for answer in range(count)]
        for k in range(count)
    ]
    return cells if any(cell is not None for row in cells for cell in row) else []


def _bins(metrics: Mapping[str, float]) -> Iterable[dict[str, Any]]:
    for b in range(BINS):
        if images := metrics.get(f"images-in-bin-{b}"):
            low, high = b / BINS, (b + 1) / BINS
            yield {
                "from": low,
                "to": high,
                "images": images,
                "confidence": metrics.get(f"confidence-in-bin-{b}", (low + high) / 2),
                "right": read_figure(metrics, f"right-in-bin-{b}"),
            }


def mean_over_hospitals(rows: Iterable[Assessment], name: str) -> Figure:
    """The mean of a figure over assessments; the errors at one hospital are fully dependent."""
    at: dict[str, list[Figure]] = {}
    for row in rows:
        at.setdefault(row["hospital"], []).append(row[name])
    total = sum(map(len, at.values()))
    shares = [len(here) / total for here in at.values()]
    mean = combine(
        shares,
        [
            Figure(
                value=fmean(each["value"] for each in here),
                low=fmean(each["low"] for each in here),
                high=fmean(each["high"] for each in here),
            )
            for here in at.values()
        ],
    )
    noise_at = [max(each.get("noise", 0.0) for each in here) for here in at.values()]
    if noise := hypot(*(share * each for share, each in zip(shares, noise_at, strict=True))):
        mean["noise"] = noise
    return mean


def deviation(mean: float, std: float) -> Figure:
    """A mean, with one standard deviation to both sides."""
    return {"value": mean, "low": mean - std, "high": mean + std}


def direction(difference: Figure) -> str:
    """The direction of a difference; it is shown only if the interval excludes 0.

    With noise, the direction must hold for every exact difference within the noise's own 95 %
    interval. So about one of 40 such verdicts differs from the verdict on the exact difference.

    Returns:
        "better", "worse", "not shown"; empty if the difference has no interval.
    """
    value, low, high = difference["value"], difference["low"], difference["high"]
    if not (isfinite(low) and isfinite(high)):
        return ""
    noise = Z * difference.get("noise", 0.0)
    below, above = (sqrt(max((value - end) ** 2 - noise**2, 0.0)) for end in (low, high))
    if value - below - noise > 0:
        return "better"
    return "worse" if value + above + noise < 0 else "not shown"


def percent(share: float) -> str:
    """A share in percent: from 10% on without digits, below with two significant ones."""
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g}%"


def measured_rows(rows: Iterable[Assessment], kind: str = "model") -> list[Assessment]:
    """The rows of a kind with a balanced accuracy."""
    return [row for row in rows if row["kind"] == kind and row["balanced_accuracy"]]


def is_noised(rows: Iterable[Assessment]) -> bool:
    """Whether figures of these rows have noise."""
    return any("noise" in (row[name] or ()) for row in rows for name in FIGURES)


def size(row: Mapping[str, Any]) -> str:
    """The number of images, and of patients if known: "128 images of 64 patients"."""
    if row["images"] is None:
        return "an unknown number of images"
    images = amount(row["images"], "image")
    known = row["patients"] is not None
    return f"{images} of {amount(row['patients'], 'patient')}" if known else images
