"""95 % intervals of shares, and of sums of shares.

A bootstrap's percentiles are too narrow for few patients: with five right answers out of five their
interval has no width. Here the bootstrap gives a share's effective number of independent patients,
n = p (1 - p) / se² (Korn and Graubard, Survey Methodology 24, 1998). The interval is Wilson's (JASA
22, 1927) for n patients, with Student's t if patients have several images. For sums and differences
the distances to the ends are combined (Zou and Donner, Statistics in Medicine 27, 2008).
benchmarks/results/interval-coverage.md compares the coverage with that of percentiles.
"""

from collections.abc import Mapping, Sequence
from math import hypot, inf, isfinite, nan, sqrt
from statistics import fmean, stdev
from typing import NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

Z = 1.959964


class Figure(TypedDict):
    """A figure and the ends of its interval; NaN = no interval."""

    value: float
    low: float
    high: float
    noise: NotRequired[float]  # standard deviation of its noise; absent if it is exact
    sampled: NotRequired[bool]  # whether it is estimated from a sample of all pairs


def read_figure(metrics: Mapping[str, float], name: str) -> Figure | None:
    """A figure of a hospital's metrics; None if it is not reported."""
    if not isfinite(value := metrics.get(name, nan)):
        return None
    low, high = (metrics.get(f"{name}-{end}", nan) for end in ("low", "high"))
    figure = Figure(value=value, low=low, high=high)
    if f"{name}-noise" in metrics:
        figure["noise"] = metrics[f"{name}-noise"]
    return figure


def without_interval(value: float) -> Figure:
    """A figure whose interval is unknown, or which has none."""
    return Figure(value=value, low=nan, high=nan)


def metrics_of(name: str, figure: Figure) -> dict[str, float]:
    """A figure as metrics of a hospital, which `read_figure` reads; without its noise."""
    return {name: figure["value"], f"{name}-low": figure["low"], f"{name}-high": figure["high"]}


def number(figure: Figure, signed: bool = False) -> str:
    """A figure in words: "0.712 (0.634 to 0.781)", or "0.712 (noise ±0.050)"."""
    sign = "+" if signed else ""
    known = (figure["value"], figure["low"], figure["high"])
    value, *ends = (f"{each:{sign}.3f}" for each in known if isfinite(each))
    if not ends and "noise" in figure:
        return f"{value} (noise ±{Z * figure['noise']:.3f})"
    return f"{value} ({' to '.join(ends)})" if ends else value


def widen(figure: Figure, value: float, noise: float = 0.0, least: float = 0.0) -> Figure:
    """A figure moved to a reported value, and its interval wider by the deviation of its noise.

    `least` is the lower limit of the figure; the upper limit is 1.
    """
    below = hypot(figure["value"] - figure["low"], Z * noise)
    above = hypot(figure["high"] - figure["value"], Z * noise)
    return Figure(value=value, low=max(least, value - below), high=min(1.0, value + above))


def wilson(share: float, number: float, freedom: float = inf) -> Figure:
    """The Wilson interval of a share of an effective `number` > 0 of independent patients.

    `freedom` are the degrees of freedom of the variance behind this number.
    """
    z = student(freedom)
    middle = share + z**2 / (2 * number)
    half = z * sqrt(share * (1 - share) / number + z**2 / (4 * number**2))
    low, high = ((middle + side) / (1 + z**2 / number) for side in (-half, half))
    low, high = min(max(low, 0.0), share), max(min(high, 1.0), share)
    return Figure(value=share, low=low, high=high)


def student(freedom: float) -> float:
    """The 97.5 % quantile of Student's t, within 1 % from three degrees of freedom on.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5. Each message of a hospital
    needs it, and takes less time than the import of scipy.special.
    """
    z, terms = Z, max(freedom, 1.0)
    return (
        z
        + (z**3 + z) / (4 * terms)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * terms**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * terms**3)
    )


def mean_over_splits(values: Sequence[float], share: float = 0.0) -> Figure:
    """The mean d of a figure over random splits of the same patients, and its 95 % interval.

    Splits share patients, so their figures d_1 .. d_J are not independent:

        d ± t_{0.975, J-1} · std(d) · √(1/J + t / (1 - t))

    Nadeau and Bengio, "Inference for the generalization error", Machine Learning 52, 2003
    (corrected resampled t-test). With t = 0 the interval is Student's (Biometrika 6, 1908).

    There are two or more values, all finite. `share` is t, the share of the patients that is tested
    on; 0 = the figures are independent.
    """
    from scipy.special import stdtrit  # takes half a second

    count, mean = len(values), fmean(values)
    independent = count / (1 + count * share / (1 - share))
    half = stdtrit(count - 1, 0.975) * stdev(values) / sqrt(independent)
    return Figure(value=mean, low=float(mean - half), high=float(mean + half))


def combine(
    weights: Sequence[float],
    parts: Sequence[Figure],
    correlation: NDArray[np.float64] | None = None,
) -> Figure:
    """A weighted sum of figures [A]; their errors have correlations [A, A], or none."""
    factors = np.array(weights)
    below = np.array([part["value"] - part["low"] for part in parts])
    above = np.array([part["high"] - part["value"] for part in parts])
    value = float(factors @ np.array([part["value"] for part in parts]))
    alike = np.eye(len(parts)) if correlation is None else correlation

    def length(steps: NDArray[np.float64]) -> float:
        return sqrt(max(float(steps @ alike @ steps), 0.0))

    down = length(factors * np.where(factors > 0, below, above))
    up = length(factors * np.where(factors > 0, above, below))
    return Figure(value=value, low=value - down, high=value + up)


def auroc_error(area: float, own: float, others: float) -> float:
    """The standard error of an AUROC (Hanley and McNeil, Radiology 143, 1982).

    `own` and `others` are the effective numbers of images of the class and of all other classes.
    """
    if not own or not others:
        return 0.0
    two_own, two_others = area / (2 - area), 2 * area**2 / (1 + area)
    spread = (
        area * (1 - area) + (own - 1) * (two_own - area**2) + (others - 1) * (two_others - area**2)
    )
    return sqrt(max(spread, 0.0) / (own * others))
