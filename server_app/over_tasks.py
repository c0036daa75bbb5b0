"""What a run measured over its tasks: pure functions of its accuracies.

Images arrive in T tasks, one after the other. R[t, i] is the accuracy on the test images of task i
after the last evaluated round of task t; it is a mean as the federation accuracy is (summary.py),
or of the models that hospitals hold if models are not tested everywhere.

    over tasks           1/T Σ R[T, i]; after another round the mean over the tasks up to its own
    forgetting           1/(T−1) Σ_{i<T} (max_t R[t, i]) − R[T, i]   as in mammoth
    backward transfer    1/(T−1) Σ_{i<T} R[T, i] − R[i, i]           arXiv:1706.08840

The thesis (TwF, Eq. 2.16) takes the best from t < T: a task that is best at the end counts below 0
there, and 0 here. Where each hospital has an order of its own, t counts as many equal parts of the
run; nothing is then learnt at one time, and there is no backward transfer. Means are over the tasks
of which it was measured. Joint training has the images of all tasks from the first round on: all
its rounds are of task T, and it has neither.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shares = NDArray[np.float64]  # in [0, 1], or differences of such; NaN: not measured


def measure(
    tasks: Sequence[int], told: Mapping[int, Mapping[int, float]], own_streams: bool = False
) -> dict[str, Any]:
    """The figures, for `Summary.tasks`.

    Args:
        tasks: Of which task each round of the run is, from the first; they never fall.
        told: By evaluated round, in order, the accuracy on each task.
        own_streams: Whether hospitals have tasks in an order, or for durations, of their own.
    """
    numbers = range(1, max(tasks) + 1)
    rows = [[accuracies.get(number, nan) for number in numbers] for accuracies in told.values()]
    accuracy = np.array(rows, float).reshape(-1, len(numbers))
    r = matrix([tasks[number - 1] for number in told], accuracy)
    return {
        "begins": [bisect_left(tasks, number) + 1 for number in numbers],
        "accuracy": accuracy.T.tolist(),
        "matrix": r.tolist(),
        "forgetting": forgetting(r).tolist(),
        "backward_transfer": (nan * r[-1, :-1] if own_streams else backward_transfer(r)).tolist(),
        "own_streams": own_streams,
    }


def matrix(tasks: Sequence[int], accuracy: Shares) -> Shares:
    """R [T, T].

    Args:
        tasks: Of which task each of N evaluated rounds is, from 1.
        accuracy: After each of these rounds on each task [N, T].
    """
    count = accuracy.shape[1]
    r = np.full((count, count), nan)
    for task, row in zip(tasks, accuracy, strict=True):
        r[task - 1] = row  # what a later round of the task replaces
    return r


def forgetting(r: Shares) -> Shares:
    """How far each task but the last has fallen from its best [T - 1], from R [T, T]."""
    best: Shares = np.fmax.reduce(r[:-1, :-1], axis=0, initial=nan)  # NaN only where all are
    return np.maximum(best - r[-1, :-1], 0)


def backward_transfer(r: Shares) -> Shares:
    """How far each task but the last has risen since it was learnt [T - 1], from R [T, T]."""
    return r[-1, :-1] - r.diagonal()[:-1]
