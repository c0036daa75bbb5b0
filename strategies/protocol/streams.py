"""The task whose images are at a hospital in a round, if images arrive in tasks.

By default all hospitals have the same task at a time, and all tasks are equally long. With the
setting `task-order` = "shuffled" each hospital has its own order of tasks, drawn from the seed.
With a `task-spread` s the T tasks of a hospital last 1 − s to 1 + s times the mean, in even steps.
Each hospital has its own order of these durations, as in AFCL (thesis, section 4.2.4; the code of
FedSpace, arXiv:2304.03626).
"""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from strategies.protocol.settings import Settings, rng_for


def task_at(settings: Settings, server_round: int, hospital: str = "") -> int:
    """The task whose images are at a hospital in a round, from 1; 0 if there are no tasks.

    Round 0 counts as 1, and after the last round the images of the last task stay. Without a
    hospital it is the task of most, if all have the same order.
    """
    if settings.tasks == 1:
        return 0
    if hospital and settings.own_streams:
        return _tasks_until(settings, server_round, hospital)[-1]
    rounds = _rounds_before(settings, server_round)
    return 1 + rounds * settings.tasks // settings.num_server_rounds


def arrived_tasks(settings: Settings, server_round: int, hospitals: Iterable[str]) -> list[int]:
    """The tasks that any hospital has had until a round (`Order.arrived`), if streams differ."""
    if not settings.own_streams:
        return []
    return sorted(
        {task for name in hospitals for task in _tasks_until(settings, server_round, name)}
    )


def _rounds_before(settings: Settings, server_round: int) -> int:
    return min(max(server_round, 1), settings.num_server_rounds) - 1


def _tasks_until(settings: Settings, server_round: int, hospital: str) -> list[int]:
    """The tasks of a hospital until a round, in order; each has one round or more."""
    rounds = _rounds_before(settings, server_round)
    order, ends = _stream(
        settings.seed,
        settings.tasks,
        settings.task_spread,
        settings.task_order == "shuffled",
        settings.num_server_rounds,
        hospital,
    )
    return order[: 1 + sum(end <= rounds for end in ends[:-1])]


@lru_cache(maxsize=32)  # of numbers alone: a server chooses settings, of any size
def _stream(
    seed: int, tasks: int, spread: float, shuffled: bool, rounds: int, hospital: str
) -> tuple[list[int], list[float]]:
    """A hospital's tasks in their order, and the number of rounds after which each ends."""
    rng = rng_for(seed, "stream", hospital=hospital)
    order = 1 + (rng.permutation(tasks) if shuffled else np.arange(tasks))
    shares = rng.permutation(np.linspace(1 - spread, 1 + spread, tasks))
    ends = np.cumsum(shares) * rounds / tasks
    return order.tolist(), ends.round(9).tolist()
