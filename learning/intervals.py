"""95 % intervals of shares, and of sums of shares.

A bootstrap's percentiles are too narrow for few patients: with five right answers out of five their
interval has no width. Here the bootstrap gives a share's effective number of independent patients,
n = p (1 - p) / se² (Korn and Graubard, Survey Methodology 24, 1998). The interval is Wilson's (JASA
22, 1927) for n patients, with Student's t if patients have several images. For sums and differences
the distances to the ends are combined (Zou and Donner, Statistics in Medicine 27, 2008).
benchmarks/results/interval-coverage.md compares the coverage with that of percentiles.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, inf, sqrt

import numpy as np
from numpy.typing import NDArray

Z = 1.959964


@dataclass(frozen=True)
class Estimate:
    """A figure and the ends of its interval."""

    value: float
    low: float
    high: float

    def widen(self, value: float, noise: float = 0.0, least: float = 0.0) -> "Estimate":
        """The estimate moved to a reported value, and wider by the deviation of its noise.

        `least` is the lower limit of the figure; the upper limit is 1.
        """
        below = hypot(self.value - self.low, Z * noise)
        above = hypot(self.high - self.value, Z * noise)
        return Estimate(value, max(least, value - below), min(1.0, value + above))


def wilson(share: float, number: float, freedom: float = inf) -> Estimate:
    """The Wilson interval of a share of an effective `number` > 0 of independent patients.

    `freedom` are the degrees of freedom of the variance behind this number.
    """
    z = student(freedom)
    middle = share + z**2 / (2 * number)
    half = z * sqrt(share * (1 - share) / number + z**2 / (4 * number**2))
    low, high = ((middle + side) / (1 + z**2 / number) for side in (-half, half))
    return Estimate(share, min(max(low, 0.0), share), max(min(high, 1.0), share))


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


def mean_over_splits(values: Sequence[float], share: float) -> Estimate:
    """The mean d of a figure over random splits of the same patients, and its 95 % interval.

    Splits share patients, so their figures d_1 .. d_J are not independent:

        d ± t_{0.975, J-1} · std(d) · √(1/J + t / (1 - t))

    Nadeau and Bengio, "Inference for the generalization error", Machine Learning 52, 2003
    (corrected resampled t-test).

    There are two or more values; NaN makes all NaN. `share` is t, the share of the patients that is
    tested on.
    """
    from scipy.special import stdtrit  # takes half a second

    count, mean = len(values), float(np.mean(values))
    error = np.std(values, ddof=1) * sqrt(1 / count + share / (1 - share))
    half = stdtrit(count - 1, 0.975) * error
    return Estimate(mean, float(mean - half), float(mean + half))


def combine(
    weights: Sequence[float], parts: Sequence[Estimate], correlation: NDArray[np.float64] | None
) -> Estimate:
    """A weighted sum of estimates [A]; their errors have correlations [A, A], or none."""
    factors = np.array(weights)
    below = np.array([part.value - part.low for part in parts])
    above = np.array([part.high - part.value for part in parts])
    value = float(factors @ np.array([part.value for part in parts]))
    alike = np.eye(len(parts)) if correlation is None else correlation

    def length(steps: NDArray[np.float64]) -> float:
        return sqrt(max(float(steps @ alike @ steps), 0.0))

    down = length(factors * np.where(factors > 0, below, above))
    up = length(factors * np.where(factors > 0, above, below))
    return Estimate(value, value - down, value + up)


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
