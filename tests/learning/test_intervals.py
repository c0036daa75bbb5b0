import numpy as np
import pytest
from scipy.special import stdtrit

from learning.intervals import Figure, combine, mean_over_splits, student, widen, wilson


def test_the_interval_is_wilson_s():
    """6 of 9: (6 + 1.92) / (9 + 3.84) ± 1.96 / 12.84 · sqrt(6·3/9 + 0.96)."""
    found = wilson(6 / 9, 9)
    assert (found["low"], found["high"]) == pytest.approx((0.354, 0.879), abs=5e-4)
    assert wilson(1.0, 9)["high"] == 1
    assert wilson(0.0, 9)["low"] == 0


def test_noise_makes_the_interval_wider():
    """0.667 - sqrt(0.313² + (1.96 · 0.1)²) = 0.298; the upper end likewise; both are shares."""
    found = widen(wilson(6 / 9, 9), 6 / 9, 0.1)
    assert (found["low"], found["high"]) == pytest.approx((0.298, 0.956), abs=1e-3)
    moved = widen(wilson(6 / 9, 9), 0.95, 0.1)
    assert (moved["value"], moved["high"]) == (0.95, 1)
    assert moved["low"] == pytest.approx(0.95 - (0.667 - 0.298), abs=1e-3)


@pytest.mark.parametrize("freedom", [2, 3, 5, 20])
def test_quantiles_are_those_of_student(freedom):
    assert student(freedom) == pytest.approx(stdtrit(freedom, 0.975), rel=0.035)
    assert student(1e9) == pytest.approx(1.96, abs=1e-4)


def test_a_difference_of_what_errs_together_is_surer():
    """Ends at 0.3 and 0.4 below and above: independent sqrt(0.3² + 0.4²) = 0.5, together 0.1."""
    first, second = Figure(value=0.6, low=0.3, high=0.8), Figure(value=0.5, low=0.2, high=0.9)
    apart = combine([1, -1], [first, second], None)
    assert (apart["value"], apart["low"]) == pytest.approx((0.1, 0.1 - 0.5))
    assert apart["high"] == pytest.approx(0.1 + np.hypot(0.2, 0.3))
    alike = combine([1, -1], [first, second], np.ones((2, 2)))
    assert (alike["low"], alike["high"]) == pytest.approx((0.0, 0.2))


def test_splits_that_share_patients_have_a_wider_interval():
    found = mean_over_splits([0.1, 0.2, 0.3], share=0.2)
    # t of two degrees of freedom, the standard deviation, and 20 images tested on to 80 trained on.
    half = 4.30265 * 0.1 * (1 / 3 + 20 / 80) ** 0.5
    assert found == pytest.approx({"value": 0.2, "low": 0.2 - half, "high": 0.2 + half}, rel=1e-4)


def test_independent_figures_have_student_s_interval():
    """t of two degrees of freedom, times the standard deviation 0.1, over the root of 3."""
    found = mean_over_splits([0.1, 0.2, 0.3])
    assert found["high"] - found["value"] == pytest.approx(4.30265 * 0.1 / 3**0.5, rel=1e-4)
