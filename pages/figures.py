"""A model's figures at a hospital in the form that pages take, and in words.

A hospital names them as `may_leave.METRICS` does. A row has them by what they are about, each with
its interval; the server's report and the hospital's own show such rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, nan, sqrt
from typing import Any

from strategies.protocol.text import counted

Row = dict[str, Any]
Z = 1.959964  # of 95 %
BINS = 10
RARELY = 0.5  # of the images of a class, below which a model finds it rarely
ESTIMATES = {
    "balanced_accuracy": "balanced-accuracy",
    "accuracy": "accuracy",
    "auroc": "auroc",
    "ece": "calibration-error",
    "gain": "gain",
}


def row_of(
    kind: str, model: str, hospital: str, metrics: Mapping[str, float], classes: Sequence[str]
) -> Row:
    """What a hospital tells of a model; None where it tells nothing.

    Args:
        kind: "model", "ensemble", or "standalone": the hospital's own before the first hand-off.
        model: Its lineage.
        hospital: Where it was tested.
        metrics: The figures.
        classes: Names of the classes, in order.
    """
    described = [_class(name, k, metrics) for k, name in enumerate(classes)]
    gain, told = _estimate(metrics, "gain"), all(each["images"] for each in described)
    return {
        "kind": kind,
        "model": model,
        "hospital": hospital,
        "images": metrics.get("num-examples"),
        "patients": metrics.get("num-patients"),
        **{name: _estimate(metrics, metric) for name, metric in ESTIMATES.items()},
        "compared": compared(gain) if gain and (told or "noise" not in gain) else "",
        "largest_class": largest(described),
        "classes": described,
        "confusion": _confusion(metrics, len(classes)),
        "calibration": [*_bins(metrics)],
    }


def _estimate(metrics: Mapping[str, float], name: str) -> Row | None:
    if not isfinite(value := metrics.get(name, nan)):
        return None
    ends = {end: metrics.get(f"{name}-{end}", nan) for end in ("low", "high")}
    known = {end: value if isfinite(value) else None for end, value in ends.items()}
    noise = metrics.get(f"{name}-noise")
    return {"value": value, **known} | ({} if noise is None else {"noise": noise})


def compared(gain: Row) -> str:
    """What may be said of a difference: nothing, if its interval has 0 in it.

    Of one with noise it is said only if it may be said of the exact difference, too, wherever in
    its own 95 % interval the noise has it. So of 40 such verdicts about one is not the exact one's.
    """
    if gain["low"] is None:
        return ""
    noise = Z * gain.get("noise", 0.0)
    below, above = (abs(gain["value"] - gain[end]) for end in ("low", "high"))
    exact_below, exact_above = (sqrt(max(far**2 - noise**2, 0.0)) for far in (below, above))
    if gain["value"] - exact_below - noise > 0:
        return "better"
    return "worse" if gain["value"] + exact_above + noise < 0 else "not shown"


def _class(name: str, k: int, metrics: Mapping[str, float]) -> Row:
    images = metrics.get(f"images-of-class-{k}") or None
    right = metrics.get(f"answers-{k}-of-class-{k}", metrics.get(f"right-of-class-{k}"))
    recall = _estimate(metrics, f"recall-of-class-{k}")
    if recall is None and images and right is not None:
        recall = {"value": right / images, "low": None, "high": None}
    return {
        "name": name,
        "images": images,
        "patients": metrics.get(f"patients-of-class-{k}"),
        "right": right if images else None,
        "recall": recall,
        "threshold": metrics.get(f"threshold-of-class-{k}"),
        "sensitivity": _estimate(metrics, f"sensitivity-of-class-{k}"),
        "specificity": _estimate(metrics, f"specificity-of-class-{k}"),
    }


def largest(described: Sequence[Row]) -> Row | None:
    """Of classes the one with most images, and its share of all."""
    told = [each for each in described if each["images"]]
    if not told:
        return None
    most = max(told, key=lambda each: float(each["images"]))
    return {"name": most["name"], "share": most["images"] / sum(each["images"] for each in told)}


def _confusion(metrics: Mapping[str, float], count: int) -> list[list[float | None]]:
    cells = [
        [metrics.get(f"answers-{answer}-of-class-{k}") for answer in range(count)]
        for k in range(count)
    ]
    return cells if any(cell is not None for row in cells for cell in row) else []


def _bins(metrics: Mapping[str, float]) -> Iterable[Row]:
    for b in range(BINS):
        if images := metrics.get(f"images-in-bin-{b}"):
            low, high = b / BINS, (b + 1) / BINS
            yield {
                "from": low,
                "to": high,
                "images": images,
                "confidence": metrics.get(f"confidence-in-bin-{b}", (low + high) / 2),
                "right": _estimate(metrics, f"right-in-bin-{b}"),
            }


def number(estimate: Row, signed: bool = False) -> str:
    """An estimate in words: "0.712 (0.634 to 0.781)", or "0.712 (noise ±0.050)"."""
    sign = "+" if signed else ""
    known = [each for key in ("value", "low", "high") if (each := estimate[key]) is not None]
    value, *ends = (f"{each:{sign}.3f}" for each in known)
    if not ends and "noise" in estimate:
        return f"{value} (noise ±{Z * estimate['noise']:.3f})"
    return f"{value} ({' to '.join(ends)})" if ends else value


def is_noised(rows: Iterable[Row]) -> bool:
    """Whether a hospital has put noise into figures of these rows."""
    return any("noise" in (row[name] or ()) for row in rows for name in ESTIMATES)


def size(row: Row) -> str:
    """How many images, and patients if they are known: "128 images of 64 patients"."""
    if row["images"] is None:
        return "an unknown number of images"
    images = counted(row["images"], "image")
    known = row["patients"] is not None
    return f"{images} of {counted(row['patients'], 'patient')}" if known else images
