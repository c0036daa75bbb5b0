"""Noised counts that are made to agree."""

import numpy as np
import pytest

from client_app.release.agreement import area_between, share_at_point, share_out


@pytest.mark.parametrize("seed", range(30))
def test_counts_add_up_to_their_total_within_their_bounds(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 12))
    most = rng.integers(0, 30, size).astype(float)
    total = float(rng.integers(0, most.sum() + 1))
    counts = share_out(rng.normal(5, 10, size), total, most)
    assert counts.sum() == total
    assert ((counts >= 0) & (counts <= most)).all()
    assert np.array_equal(counts, np.rint(counts))


def test_counts_that_agree_already_stay():
    counts = np.array([3.0, 0.0, 27.0])
    assert share_out(counts, 30).tolist() == [3, 0, 27]
    assert share_out(counts + 1e-9, 30, first=2).tolist() == [3, 0, 27]


def test_they_are_the_nearest_ones():
    """Of all that add up to 4, by hand: 1 less in each, and none below 0."""
    assert share_out(np.array([5.0, 1.0, -3.0]), 4).tolist() == [4, 0, 0]
    assert share_out(np.array([3.0, 3.0, 1.0]), 4).tolist() == [2, 2, 0]


def test_one_count_may_be_believed_as_it_is():
    assert share_out(np.array([12.0, 40.0, 3.0]), 30, first=0).tolist() == [12, 18, 0]
    assert share_out(np.array([41.0, 40.0, 3.0]), 30, first=0).tolist() == [30, 0, 0]
    assert share_out(np.array([-5.0, 9.0]), 30, first=0).tolist() == [0, 30]


@pytest.mark.parametrize(
    ("share", "point", "told"), [(0.9, 0.5, 0.6), (0.3, 0.5, 0.6), (0.9, 0.7, 0.6), (1.2, 0.1, 1.0)]
)
def test_of_two_classes_the_likelier_has_half(share, point, told):
    """Six of ten get the class as their answer: as many have at least half, fewer have more."""
    assert share_at_point(share, 0.6, point, classes=2) == told


def test_a_point_of_a_curve_bounds_its_area():
    assert area_between(1.0, 1.0) == (1, 1)
    assert area_between(0.8, 0.5) == pytest.approx((0.4, 0.9))
