import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, norm

from audit.epsilon import prove_epsilon


def test_all_right_by_hand():
    # No miss in n trials: TPR ≥ a^(1/n), no false alarm in n: FPR ≤ 1 - a^(1/n), a = 0.025.
    low = 0.025 ** (1 / 100)
    expected = math.log((low - 1e-5) / (1 - low))
    assert prove_epsilon(100, 100, 0, 100, 1e-5) == pytest.approx(expected)
    assert expected == pytest.approx(3.2813, abs=1e-4)


def test_limits_are_those_of_the_binomial():
    tpr = brentq(lambda p: binom.sf(69, 100, p) - 0.005, 1e-6, 1 - 1e-6)
    fpr = brentq(lambda p: binom.cdf(20, 200, p) - 0.005, 1e-6, 1 - 1e-6)
    best = max(math.log((tpr - 0.01) / fpr), math.log((1 - fpr - 0.01) / (1 - tpr)))
    assert prove_epsilon(70, 100, 20, 200, 0.01, 0.99) == pytest.approx(best, rel=1e-6)


def test_the_other_direction_counts_as_well():
    # All that have the record are found, and half of the others too: only misses tell.
    low = 0.025 ** (1 / 1000)
    fpr = brentq(lambda p: binom.cdf(500, 1000, p) - 0.025, 0.3, 0.9)
    assert prove_epsilon(1000, 1000, 500, 1000, 0.0) == pytest.approx(
        math.log((1 - fpr) / (1 - low)), rel=1e-6
    )


@pytest.mark.parametrize("counts", [(0, 10, 10, 10, 0.1), (5, 10, 5, 10, 0.1), (0, 10, 0, 10, 0.1)])
def test_an_attack_that_tells_nothing_proves_nothing(counts):
    assert prove_epsilon(*counts) == 0.0


def test_it_is_below_the_truth_as_often_as_it_says():
    # Randomised response with ε = 1: TPR = e / (1 + e), FPR = 1 / (1 + e), the best attack on it.
    rng, share = np.random.default_rng(0), math.e / (1 + math.e)
    hits, alarms = rng.binomial(500, [share, 1 - share], (400, 2)).T
    bounds = [
        prove_epsilon(int(h), 500, int(a), 500, 0.0, 0.9) for h, a in zip(hits, alarms, strict=True)
    ]
    assert np.mean(np.array(bounds) <= 1.0) >= 0.9
    assert np.mean(bounds) > 0.6


def test_a_gaussian_release_stays_below_its_claim_and_half_the_noise_does_not():
    # Sensitivity 1, noise σ; 0 or 1 is released, and the threshold is fixed before.
    rng, trials, delta = np.random.default_rng(0), 50000, 1e-5
    sigma = 3.7304  # ε = 1 at this δ by the analytic Gaussian mechanism (Balle and Wang 2018)
    claimed = norm.cdf(1 / (2 * sigma) - sigma) - math.e * norm.cdf(-1 / (2 * sigma) - sigma)
    assert claimed == pytest.approx(delta, rel=1e-2)
    for noise, caught in ((sigma, False), (sigma / 2, True)):
        threshold = 0.5 + 2 * noise
        hits = int((rng.normal(1, noise, trials) > threshold).sum())
        alarms = int((rng.normal(0, noise, trials) > threshold).sum())
        assert (prove_epsilon(hits, trials, alarms, trials, delta) > 1.0) is caught
