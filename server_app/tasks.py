"""The figures of a run over its tasks: pure functions of its accuracies.

Images arrive in T tasks, one after the other. R[t, i] is the accuracy on the test images of task i
after the last evaluated round of task t. It is a mean over all models and hospitals, as the
federation accuracy is (summary.py); or over held models, if models are not tested everywhere.

    over tasks           1/T Σ R[T, i]; after an earlier round, the mean over the tasks so far
    forgetting           1/(T−1) Σ_{i<T} (max_t R[t, i]) − R[T, i]   as in mammoth
    backward transfer    1/(T−1) Σ_{i<T} R[T, i] − R[i, i]           arXiv:1706.08840

Both are differences between two times. They are means over the hospitals that were measured at both
times, NaN if there are none: the absence of a hospital is no forgetting. So they may differ from
the differences of R, whose means are over all hospitals of a round.

The thesis (TwF, Eq. 2.16) takes the best from t < T: a task that is best at the end counts below 0
there, and 0 here. If each hospital has an order of its own, t counts T equal parts of the run;
hospitals then learn a task at different times, and there is no backward transfer. Means are over
the measured tasks. Joint training has the images of all tasks from the first round on: all its
rounds belong to task T, and it has neither forgetting nor backward transfer.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

Accuracies = NDArray[np.float64]  # in [0, 1], or their differences; NaN = not measured


def measure(
    tasks: Sequence[int],
    accuracies: Mapping[int, Mapping[int, float]],
    at: Mapping[int, Mapping[str, Mapping[int, float]]],
    own_streams: bool = False,
) -> dict[str, Any]:
    """`Summary.tasks`.

    `tasks` has the task of each round of the run, never falling; `accuracies`, by evaluated round
    in order, those on each task; `at`, those at each hospital. `own_streams`: each hospital has a
    task order, or task durations, of its own.
    """
    numbers = range(1, max(tasks) + 1)
    rows = [[row.get(number, nan) for number in numbers] for row in accuracies.values()]
    accuracy = np.array(rows, float).reshape(-1, len(numbers))
    of_rounds = [tasks[number - 1] for number in accuracies]
    r = matrix(of_rounds, accuracy)
    hospitals = sorted({hospital for each in at.values() for hospital in each})
    places = [
        [[told.get(h, {}).get(k, nan) for h in hospitals] for k in numbers] for told in at.values()
    ]
    by_hospital = np.array(places, float).reshape(len(at), len(numbers), len(hospitals))
    r_at = matrix(of_rounds, by_hospital)
    lost = losses(r_at)
    return {
        "begins": [bisect_left(tasks, number) + 1 for number in numbers],
        "accuracy": accuracy.T.tolist(),
        "matrix": r.tolist(),
        "hospitals": [
            [name for name, told in zip(hospitals, row, strict=True) if told]
            for row in np.asarray(np.isfinite(r_at).any(axis=1))
        ],
        "forgetting": forgetting(lost).tolist(),
        "backward_transfer": (
            nan * lost[-1, :-1] if own_streams else backward_transfer(lost)
        ).tolist(),
        "own_streams": own_streams,
    }


def matrix(tasks: Sequence[int], accuracy: Accuracies) -> Accuracies:
    """R [T, T], from the task (1 to T) of each of N evaluated rounds, and accuracies [N, T].

    With accuracies [N, T, H] of H hospitals, R [T, T, H] of each.
    """
    count = accuracy.shape[1]
    r = np.full((count, *accuracy.shape[1:]), nan)
    for task, row in zip(tasks, accuracy, strict=True):
        r[task - 1] = row  # a later round of the task replaces it
    return r


def losses(r: Accuracies) -> Accuracies:
    """What the end has lost of each R[t, i], from R [T, T, H]: a mean over H hospitals [T, T].

    Over the hospitals that were measured at both times; NaN if there are none.
    """
    lost = r - r[-1]
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN
        means: Accuracies = np.nansum(lost, axis=-1) / np.isfinite(lost).sum(axis=-1)
    return means


def forgetting(lost: Accuracies) -> Accuracies:
    """The loss of each task but the last from its best [T - 1], from `losses` [T, T]."""
    best: Accuracies = np.fmax.reduce(lost[:-1, :-1], axis=0, initial=nan)  # NaN only where all are
    return np.maximum(best, 0)


def backward_transfer(lost: Accuracies) -> Accuracies:
    """The gain of each task but the last since it was learnt [T - 1], from `losses` [T, T]."""
    return 0 - lost.diagonal()[:-1]  # 0 - 0 is not -0
