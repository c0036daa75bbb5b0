"""Noised counts that agree with one another, and with what follows from them.

Nothing here sees an image or a count without its noise, so that none of it tells more.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
HALVINGS = 60  # of the interval that holds the shift


def share_out(
    counts: Floats, total: float, most: float | Floats = np.inf, first: int | None = None
) -> Floats:
    """The whole numbers that add up to a total and are nearest to noised counts.

    It is the projection on {x : 0 <= x <= most, Σ x = total} (Wang and Lu, arXiv:1503.01002): each
    count less one shift, and cut off at its bounds. The largest remainders get what is left.

    Args:
        counts: [n]; not all of them whole, or above 0.
        total: What they add up to.
        most: The most that each can be, whole numbers [n].
        first: The count that is believed as it is, but for its bounds.
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
    """The share of images to which a model gives a class at least the probability `point`.

    Args:
        share: The same with noise.
        answered: The share of these images to which it answers the class, its most probable one.
        point: The probability.
        classes: How many there are.
    """
    if point >= 0.5:
        share = min(share, answered)  # no other class is as probable
    if point <= 1 / classes:
        share = max(share, answered)  # the most probable class is at least as probable
    return min(max(share, 0.0), 1.0)


def area_between(sensitivity: float, specificity: float) -> tuple[float, float]:
    """Between which areas a ROC curve through one point has to be: it only rises."""
    return sensitivity * specificity, 1 - (1 - sensitivity) * (1 - specificity)
