"""The rule for useless models: the part that looks at their numbers (docs/methods/run.md).

The hospital that trained a model judges it before it leaves. Each recipient that can open it judges
it again. learning/judgement.py has the part of the rule that runs the network.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST = 1e6  # the limit of a weight, a running statistic or a number of a memory
MOVED = 100.0  # the limit of a visit's change of the weights, in lengths of the received weights
STATISTICS = ("running_mean", "running_var")  # of BatchNorm: their change depends on the images

Arrays = Mapping[str, NDArray[Any]]


def flaw_of(arrays: Arrays, before: Arrays | None = None) -> str:
    """The flaw in the numbers of a model or a memory, in words; empty if there is none.

    `before` is the model before the visit, if it is known.
    """
    for name, array in arrays.items():
        if not np.issubdtype(array.dtype, np.floating):
            continue
        least, most = float(array.min(initial=0)), float(array.max(initial=0))
        if not -LARGEST <= least <= most <= LARGEST:  # false for NaN
            return f"'{name}' is not finite, or beyond {LARGEST:,.0f}"
        if name.endswith("running_var") and least < 0:
            return f"'{name}' is a variance below 0"
    if before and relative_change(arrays, before) > MOVED:
        return f"the visit has moved the weights by more than {MOVED:.0f} times their length"
    return ""


def relative_change(arrays: Arrays, before: Arrays) -> float:
    """The length of the weights' change, as a share of their length before; 0 if this is 0."""
    weights = [
        (array, before[name])
        for name, array in arrays.items()
        if name in before and np.issubdtype(array.dtype, np.floating)
        if not name.endswith(STATISTICS)
    ]
    length = _length(old for _, old in weights)
    change = _length(new.astype("f4", copy=False) - old for new, old in weights)
    return change / length if length else 0.0


def _length(arrays: Iterable[NDArray[Any]]) -> float:
    lengths = (np.linalg.norm(each.astype("f4", copy=False)) for each in arrays)
    return float(np.sqrt(sum(float(length) ** 2 for length in lengths)))
