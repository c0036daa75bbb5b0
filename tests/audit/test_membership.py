import numpy as np
import pytest
from scipy.stats import beta

from audit.membership import accuracy, auc, clopper_pearson, contrast, strictest, success


@pytest.mark.parametrize(("hits", "number"), [(0, 12), (3, 40), (12, 12)])
def test_the_interval_of_a_share_has_the_quantiles_of_beta_distributions(hits, number):
    """2.5 % of B(k, n - k + 1) and 97.5 % of B(k + 1, n - k); 0 for no hit, 1 for hits alone."""
    share = clopper_pearson(hits, number)
    low = beta.ppf(0.025, hits, number - hits + 1) if hits else 0.0
    high = beta.ppf(0.975, hits + 1, number - hits) if hits < number else 1.0
    assert (share["low"], share["high"]) == pytest.approx((low, high), abs=1e-12)


def test_figures_by_hand():
    """Members 1, 2, 3 against others 0, 1: of 6 pairs 5 are won and one (1, 1) is half won."""
    scores = np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0])
    worth = success(*scores)
    assert worth.auc["value"] == pytest.approx(5.5 / 6)
    assert accuracy(*scores, threshold=1.0)["value"] == pytest.approx((1 + 0.5) / 2)
    assert worth.tpr["value"] == pytest.approx(2 / 3)
    assert worth.fpr["value"] == 0


def test_one_percent_of_others_may_pass():
    others = np.arange(200.0)
    assert (others > strictest(others)).sum() == 2
    assert strictest(np.arange(99.0)) == 98


@pytest.mark.slow
def test_the_interval_of_the_auc_covers_it():
    """Normal scores one standard deviation apart: AUC = Phi(1 / sqrt 2) = 0.7602."""
    rng = np.random.default_rng(0)
    drawn = [auc(rng.normal(1, 1, 60), rng.normal(0, 1, 30)) for _ in range(300)]
    covered = np.mean([each["low"] < 0.7602 < each["high"] for each in drawn])
    assert 0.92 < covered < 0.99
    perfect = auc(np.ones(20), np.zeros(10))
    assert perfect["low"] < perfect["value"] == perfect["high"] == 1


def test_the_control_of_few_others_has_a_higher_rate():
    """The highest of 9 others is below 1 in 10 of what is alike."""
    rng = np.random.default_rng(0)
    nothing = contrast(rng.normal(size=4000), rng.normal(size=9), draws=400)
    assert nothing.control_tpr["value"] == pytest.approx(0.1, abs=0.02)
    assert nothing.control_auc["value"] == pytest.approx(0.5, abs=0.02)


@pytest.mark.slow
def test_an_excess_is_found_where_there_is_one_and_only_there():
    rng = np.random.default_rng(0)
    found = {"nothing": 0, "one in ten": 0}
    for _ in range(50):
        members, others = rng.normal(size=600), rng.normal(size=150)
        nothing = contrast(members, others, draws=100)
        leaked = contrast(np.append(members[60:], np.full(60, 5.0)), others, draws=100)
        found["nothing"] += nothing.excess_auc["low"] > 0 or nothing.excess_tpr["low"] > 0
        found["one in ten"] += leaked.excess_tpr["low"] > 0
    assert found["nothing"] <= 5
    assert found["one in ten"] >= 47
