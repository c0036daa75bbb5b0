"""Make noised counts consistent with one another.

The functions here see no image and no exact count, so they reveal nothing further.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
HALVINGS = 60  # of the interval that contains the shift


def share_out(
    counts: Floats, total: float, most: float | Floats = np.inf, first: int | None = None
) -> Floats:
    """The whole numbers that sum to a total and are nearest to noised counts.

    They are the projection on {x : 0 <= x <= most, Σ x = total} (Wang and Lu, arXiv:1503.01002):
    one shift is subtracted from each count, and the result is clipped to its bounds. The rest goes
    to the largest remainders.

    Args:
        counts: Noised counts [n]; fractions and negative numbers are possible.
        total: Sum of the result.
        most: Upper bounds, whole numbers [n].
        first: Index of a count that is only rounded and clipped; None = no such count.
    """
    if first is not None:
        own = float(np.rint(np.clip(counts[first], 0, total)))
        others: Floats = share_out(np.delete(counts, first), total - own)
        return np.insert(others, first, own)
    if not len(counts):
        return counts
    low, high = counts.min() - total, counts.max()
    for _ in range(HALVINGS):
        shift = (low + high) / 2
        more = np.clip(counts - shift, 0, most).sum() > total
        low, high = (shift, high) if more else (low, shift)
    exact = np.clip(counts - high, 0, most)
    whole: Floats = np.floor(exact + 1e-6)
    left = np.argsort(whole - exact + 2 * (whole >= most), kind="stable")
    whole[left[: round(total - whole.sum())]] += 1
    return whole


def share_at_point(share: float, answered: float, point: float, classes: int) -> float:
    """The share of images with at least the probability `point` for a class, made consistent.

    `answered` is the share of these images with the class as the most probable one of `classes`.
    """
    if point >= 0.5:
        share = min(share, answered)  # no other class is as probable
    if point <= 1 / classes:
        share = max(share, answered)  # the most probable class is at least as probable
    return min(max(share, 0.0), 1.0)


def area_between(sensitivity: float, specificity: float) -> tuple[float, float]:
    """The smallest and largest area under a ROC curve through one point; the curve only rises."""
    return sensitivity * specificity, 1 - (1 - sensitivity) * (1 - specificity)
