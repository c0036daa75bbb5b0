"""Which task is at a hospital in which round."""

from itertools import groupby

import pytest

from strategies.protocol.settings import SettingsError
from strategies.protocol.streams import arrived_tasks, task_at
from strategies.registry import strategy_of
from tests.fakes import settings

NAMES = [f"hospital-{number}" for number in range(12)]


def streams(**changes):
    """By hospital, its tasks and for how many of 50 rounds it has each."""
    chosen = settings(tasks=5, num_server_rounds=50, **changes)
    rounds = {name: [task_at(chosen, each, name) for each in range(1, 51)] for name in NAMES}
    return chosen, {
        name: [(task, len([*same])) for task, same in groupby(tasks)]
        for name, tasks in rounds.items()
    }


def test_by_default_all_have_the_same_task():
    chosen, found = streams()
    assert {*map(tuple, found.values())} == {tuple((task, 10) for task in range(1, 6))}
    assert arrived_tasks(chosen, 50, NAMES) == []
    assert not chosen.own_streams


def test_shuffled_each_has_every_task_once_in_an_order_of_its_own():
    chosen, found = streams(task_order="shuffled")
    orders = [tuple(task for task, _ in stream) for stream in found.values()]
    assert {tuple(sorted(order)) for order in orders} == {(1, 2, 3, 4, 5)}
    assert {rounds for stream in found.values() for _, rounds in stream} == {10}
    assert len({*orders}) > 6
    assert orders != [
        tuple(t for t, _ in s) for s in streams(task_order="shuffled", seed=8)[1].values()
    ]
    first = sorted({order[0] for order in orders})
    assert arrived_tasks(chosen, 10, NAMES) == first
    assert arrived_tasks(chosen, 11, NAMES) == sorted(
        {task for order in orders for task in order[:2]}
    )
    assert task_at(chosen, 0, NAMES[0]) == orders[0][0]


def test_a_spread_makes_durations_differ_in_even_steps():
    """0.7 to 1.3 times ten rounds: 7, 8.5, 10, 11.5 and 13, in any order, fifty in all."""
    _, found = streams(task_spread=0.3)
    for stream in found.values():
        assert [task for task, _ in stream] == [1, 2, 3, 4, 5]
        lengths = sorted(rounds for _, rounds in stream)
        assert sum(lengths) == 50
        assert all(abs(a - b) < 1 for a, b in zip(lengths, (7, 8.5, 10, 11.5, 13), strict=True))
    assert len({tuple(stream) for stream in found.values()}) > 6


@pytest.mark.parametrize("spread", [-0.1, 0.95])
def test_a_spread_leaves_each_task_a_round(spread):
    with pytest.raises(SettingsError, match="'task-spread' is"):
        streams(task_spread=spread)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"strategy": "fedavg", "enrolment": "S2"}, "'enrolment' is 'S2'"),
        ({"strategy": "fil-ver", "model": "vee"}, "'task-order' is 'shuffled'"),
    ],
)
def test_what_needs_one_task_at_a_time_refuses_own_streams(changes, named):
    chosen = settings(tasks=2, num_server_rounds=4, task_order="shuffled", **changes)
    with pytest.raises(SettingsError, match=named):
        strategy_of(chosen)
