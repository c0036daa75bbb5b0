"""When a model is of no use: the part of the rule that looks at its numbers (docs/methods/run.md).

Who has trained a model judges it before it leaves, and who receives it judges it again: a hospital
(learning/judgement.py has the part that runs the network), and the server if it can open it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST = 1e6  # no weight, running statistic or number of a memory is larger
MOVED = 100.0  # no visit moves the weights further, in lengths of the weights that came
STATISTICS = ("running_mean", "running_var")  # of BatchNorm: they move as far as the images are

Arrays = Mapping[str, NDArray[Any]]


def flaw_of(arrays: Arrays, before: Arrays | None = None) -> str:
    """What is wrong with the numbers of a model or a memory, in words; empty if nothing is.

    Args:
        arrays: By name.
        before: The model that a visit made these of; None if nobody can tell.
    """
    for name, array in arrays.items():
        if not np.issubdtype(array.dtype, np.floating):
            continue
        least, most = float(array.min(initial=0)), float(array.max(initial=0))
        if not -LARGEST <= least <= most <= LARGEST:  # what is no number is in no order
            return f"'{name}' is not finite, or beyond {LARGEST:,.0f}"
        if name.endswith("running_var") and least < 0:
            return f"'{name}' is a variance below 0"
    if before and moved(arrays, before) > MOVED:
        return f"the visit has moved the weights by more than {MOVED:.0f} times their length"
    return ""


def moved(arrays: Arrays, before: Arrays) -> float:
    """How far weights moved, as a share of how long they were; 0 if they had no length."""
    weights = [
        (array, before[name])
        for name, array in arrays.items()
        if name in before and np.issubdtype(array.dtype, np.floating)
        if not name.endswith(STATISTICS)
    ]
    length = _length(old for _, old in weights)
    return _length(new.astype("f4") - old for new, old in weights) / length if length else 0.0


def _length(arrays: Iterable[NDArray[Any]]) -> float:
    return float(np.sqrt(sum(float(np.linalg.norm(each.astype("f4"))) ** 2 for each in arrays)))
