import dataclasses

import pytest

from gan.schedule import Check, Standing, check_due, due, judge


@pytest.fixture
def preset(micro):
    """Ten steps a phase, a check every five (in phase 2 every one), patience of five."""
    return dataclasses.replace(
        micro, iterations=10, privacy_iterations=10, check_every=5, patience=5
    )


def checked(standing, iteration, frechet):
    """The same, after a check at this iteration with this Fréchet distance."""
    standing.iteration = iteration
    found = Check(standing.phase, iteration, 1.0, frechet, 0.0, None, 1.0, 1.0, 0.0)
    standing.progress.append(found)
    return standing


@pytest.mark.parametrize(
    ("every", "expected"), [(4, [0, 4]), (3, [0, 3, 6]), (1, list(range(7))), (0, [])]
)
def test_what_is_due_follows_from_the_iteration(every, expected):
    assert [iteration for iteration in range(7) if due(iteration, every)] == expected


@pytest.mark.parametrize(("phase", "checks"), [(1, [5, 10]), (2, list(range(1, 11)))])
def test_phase_two_is_looked_at_five_times_as_often(preset, phase, checks):
    found = [i for i in range(1, 11) if check_due(Standing(phase, i), preset)]
    assert found == checks


def test_the_last_step_of_a_phase_is_checked(preset):
    preset = dataclasses.replace(preset, iterations=7)
    assert check_due(Standing(iteration=7), preset)
    assert not check_due(Standing(iteration=6), preset)


def test_phase_one_keeps_the_best_and_ends_without_a_better_one(preset):
    standing = Standing()
    assert judge(checked(standing, 3, 2.0), preset) == (True, False)
    assert judge(checked(standing, 6, 2.0), preset) == (False, False)
    assert judge(checked(standing, 7, 1.9), preset) == (True, False)
    assert judge(checked(standing, 8, 3.0), preset) == (False, False)  # five after the first best
    patient = dataclasses.replace(preset, iterations=100)
    assert judge(checked(standing, 11, 3.0), patient) == (False, False)
    assert judge(checked(standing, 12, 3.0), patient) == (False, True)  # five after the best
    assert judge(checked(standing, 13, 1.0), preset) == (True, True)


def test_phase_two_keeps_what_is_good_enough_and_ends_with_what_is_not(preset):
    """Of a best of 2.0 good enough is 2.5 · 2.0 = 5.0, whatever phase 2 has reached."""
    standing = checked(Standing(), 1, 2.0)
    assert not standing.private
    standing.phase = 2
    assert standing.private
    assert judge(checked(standing, 1, 5.0), preset) == (True, False)
    assert judge(checked(standing, 2, 1.0), preset) == (True, False)
    assert judge(checked(standing, 3, 5.0), preset) == (True, False)
    assert judge(checked(standing, 4, 5.1), preset) == (False, True)
    assert judge(checked(standing, 10, 5.0), preset) == (True, True)


def test_one_lucky_check_does_not_set_the_limit_of_phase_two(preset):
    """Of 2.0, 1.0 and 4.0 the second best counts: good enough is 2.5 · 2.0 = 5.0."""
    standing = checked(checked(checked(Standing(), 1, 2.0), 2, 1.0), 3, 4.0)
    standing.phase = 2
    assert judge(checked(standing, 1, 5.0), preset) == (True, False)
    assert judge(checked(standing, 2, 5.1), preset) == (False, True)
