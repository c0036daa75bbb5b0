import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.engine.topology import (
    derangement,
    random_ring,
    ring,
    stay,
)

hospital_lists = st.lists(st.text("abc", min_size=1), unique=True, min_size=1, max_size=12)
seeds = st.integers(0, 2**32)


def cycle_from(route, start):
    here, cycle = start, []
    while here not in cycle:
        cycle.append(here)
        here = route[here]
    return cycle


def test_ring_receives_from_the_one_before():
    assert ring(["a", "b", "c"]) == {"a": "c", "b": "a", "c": "b"}


def test_who_stays_keeps_its_own():
    assert stay(["a", "b"]) == {"a": "a", "b": "b"}


@given(hospital_lists, seeds)
def test_random_ring_is_one_cycle(hospitals, seed):
    route = random_ring(hospitals, np.random.default_rng(seed))
    assert sorted(cycle_from(route, hospitals[0])) == sorted(hospitals)


@given(hospital_lists, seeds)
def test_derangement_moves_everybody(hospitals, seed):
    route = derangement(hospitals, np.random.default_rng(seed))
    assert sorted(route) == sorted(route.values()) == sorted(hospitals)
    assert len(hospitals) == 1 or all(receiver != source for receiver, source in route.items())


def test_derangements_are_uniform():
    """Four hospitals have 9 derangements; 9,000 draws give each 1,000 ± 5 standard deviations.

    The standard deviation of a count is sqrt(9000 × 1/9 × 8/9) = 29.8.
    """
    rng = np.random.default_rng(0)
    draws = [tuple(derangement("abcd", rng).values()) for _ in range(9000)]
    counts = np.unique(draws, axis=0, return_counts=True)[1]
    assert len(counts) == 9
    assert counts == pytest.approx([1000] * 9, abs=149)
