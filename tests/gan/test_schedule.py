import dataclasses

import pytest

from gan.schedule import Schedule


@pytest.fixture
def schedule(micro):
    """Ten steps a phase, a check every five (in phase 2 every one), patience of five."""
    preset = dataclasses.replace(
        micro, iterations=10, privacy_iterations=10, check_every=5, patience=5, r1_every=4
    )
    return Schedule(preset, phases=2)


def test_what_is_due_follows_from_the_iteration(schedule):
    due = []
    for _ in range(6):
        due.append((schedule.r1_due, schedule.path_due))
        schedule.iteration += 1
    assert [r1 for r1, _ in due] == [True, False, False, False, True, False]
    assert [path for _, path in due] == [True, False, False, True, False, False]


def test_path_length_regularisation_can_be_off(schedule):
    schedule.preset = dataclasses.replace(schedule.preset, path_every=0)
    assert not schedule.path_due


@pytest.mark.parametrize(("phase", "checks"), [(1, [5, 10]), (2, list(range(1, 11)))])
def test_phase_two_is_looked_at_five_times_as_often(schedule, phase, checks):
    schedule.phase = phase
    found = []
    for schedule.iteration in range(1, 11):
        if schedule.check_due:
            found.append(schedule.iteration)
    assert found == checks


def test_the_last_step_of_a_phase_is_checked(schedule):
    schedule.preset = dataclasses.replace(schedule.preset, iterations=7)
    schedule.iteration = 7
    assert schedule.check_due


def test_phase_one_keeps_the_best_and_ends_without_a_better_one(schedule):
    schedule.iteration = 3
    assert schedule.judge(2.0) == (True, False)
    schedule.iteration = 6
    assert schedule.judge(2.0) == (False, False)
    schedule.iteration = 8  # five after the best
    assert schedule.judge(3.0) == (False, True)
    assert (schedule.best, schedule.best_iteration) == (2.0, 3)


def test_phase_two_keeps_what_is_good_enough_and_ends_with_what_is_not(schedule):
    """Of a best of 2.0 good enough is 2.5 · 2.0 = 5.0."""
    schedule.iteration = 1
    schedule.judge(2.0)
    schedule.next_phase()
    assert (schedule.private, schedule.iteration, schedule.over) == (True, 0, False)
    schedule.iteration = 1
    assert schedule.judge(5.0) == (True, False)
    assert schedule.judge(5.1) == (False, True)
    schedule.iteration = 10
    assert schedule.judge(5.0) == (True, True)
    schedule.next_phase()
    assert schedule.over


def test_another_schedule_goes_on_from_the_state(schedule):
    schedule.iteration = 4
    schedule.judge(1.5)
    other = Schedule(schedule.preset, phases=2)
    other.load_state_dict(schedule.state_dict())
    assert other == schedule
