import numpy as np
import pytest
import torch
from scipy.stats import beta

from audit.membership import auc, clopper_pearson, contrast, strictest, success
from audit.model import Predictions, loss_attack, network_attack


@pytest.mark.parametrize(("hits", "number"), [(0, 12), (3, 40), (12, 12)])
def test_the_interval_of_a_share_has_the_quantiles_of_beta_distributions(hits, number):
    """2.5 % of B(k, n - k + 1) and 97.5 % of B(k + 1, n - k); 0 for no hit, 1 for hits alone."""
    share = clopper_pearson(hits, number)
    low = beta.ppf(0.025, hits, number - hits + 1) if hits else 0.0
    high = beta.ppf(0.975, hits + 1, number - hits) if hits < number else 1.0
    assert (share.low, share.high) == pytest.approx((low, high), abs=1e-12)


def test_figures_by_hand():
    """Members 1, 2, 3 against others 0, 1: of 6 pairs 5 are won and one (1, 1) is half won."""
    worth = success(np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0]), threshold=1.0)
    assert worth.auc.value == pytest.approx(5.5 / 6)
    assert worth.accuracy.value == pytest.approx((1 + 0.5) / 2)
    assert worth.tpr.value == pytest.approx(2 / 3)
    assert worth.fpr.value == 0


def test_one_percent_of_others_may_pass():
    others = np.arange(200.0)
    assert (others > strictest(others)).sum() == 2
    assert strictest(np.arange(99.0)) == 98


@pytest.mark.slow
def test_the_interval_of_the_auc_covers_it():
    """Normal scores one standard deviation apart: AUC = Phi(1 / sqrt 2) = 0.7602."""
    rng = np.random.default_rng(0)
    drawn = [auc(rng.normal(1, 1, 60), rng.normal(0, 1, 30)) for _ in range(300)]
    covered = np.mean([each.low < 0.7602 < each.high for each in drawn])
    assert 0.92 < covered < 0.99
    perfect = auc(np.ones(20), np.zeros(10))
    assert perfect.low < perfect.value == perfect.high == 1


def overfitted(members, others):
    """A model of 4 classes that is sure of members; of others it is as sure, and often wrong."""
    rng = torch.Generator().manual_seed(0)

    def predictions(number, right):
        labels = torch.randint(4, (number,), generator=rng)
        wrong = torch.rand(number, generator=rng) > right
        said = torch.where(wrong, (labels + 1) % 4, labels)
        logits = 6 * torch.eye(4)[said] + torch.randn(number, 4, generator=rng)
        return Predictions(logits.softmax(1), labels)

    return predictions(members, 1.0), predictions(others, 0.5)


@pytest.mark.slow
def test_an_overfitted_model_tells_its_members():
    members, others = overfitted(300, 100)
    by_loss = loss_attack(members, others)
    assert by_loss.auc.low > 0.6
    by_network = network_attack(members, others, seeds=2, epochs=30)
    # Half of the others are as members, so 75 % is the best there is.
    assert 0.65 < by_network.accuracy.value < 0.85
    assert (by_network.members, by_network.others) == (60, 60)


def test_nothing_is_told_of_what_is_alike():
    members, _ = overfitted(400, 4)
    half = torch.arange(400) < 200
    worth = network_attack(members[half], members[~half], seeds=2, epochs=20)
    assert worth.accuracy.low < 0.5 < worth.accuracy.high
    assert loss_attack(members[half], members[~half]).auc.low < 0.5


def test_the_same_seeds_are_the_same_attack():
    members, others = overfitted(40, 20)
    first, second = (network_attack(members, others, seeds=1, epochs=3) for _ in range(2))
    assert first == second


def test_too_few_images():
    members, others = overfitted(3, 20)
    with pytest.raises(ValueError, match="4 members and 4 others"):
        network_attack(members, others)


def test_the_control_of_few_others_has_a_higher_rate():
    """The highest of 9 others is below 1 in 10 of what is alike."""
    rng = np.random.default_rng(0)
    nothing = contrast(rng.normal(size=4000), rng.normal(size=9), draws=400)
    assert nothing.control_tpr.value == pytest.approx(0.1, abs=0.02)
    assert nothing.control_auc.value == pytest.approx(0.5, abs=0.02)


@pytest.mark.slow
def test_an_excess_is_found_where_there_is_one_and_only_there():
    rng = np.random.default_rng(0)
    found = {"nothing": 0, "one in ten": 0}
    for _ in range(50):
        members, others = rng.normal(size=600), rng.normal(size=150)
        nothing = contrast(members, others, draws=100)
        leaked = contrast(np.append(members[60:], np.full(60, 5.0)), others, draws=100)
        found["nothing"] += nothing.excess_auc.low > 0 or nothing.excess_tpr.low > 0
        found["one in ten"] += leaked.excess_tpr.low > 0
    assert found["nothing"] <= 5
    assert found["one in ten"] >= 47
