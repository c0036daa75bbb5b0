import pytest
import torch

from audit.membership import contrast
from audit.model import Predictions, audit_model, network_attack


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
    by_loss = contrast(members.scores(), others.scores())
    assert by_loss.attack.auc["low"] > 0.6
    by_network = network_attack(members, others, seed=0, epochs=30)
    # Half of the others are as members, so 75 % is the best there is.
    assert 0.65 < by_network.accuracy["value"] < 0.85
    assert (by_network.members, by_network.others) == (60, 60)


def test_nothing_is_told_of_what_is_alike():
    members, _ = overfitted(400, 4)
    half = torch.arange(400) < 200
    worth = network_attack(members[half], members[~half], seed=0, epochs=20)
    assert worth.accuracy["low"] < 0.5 < worth.accuracy["high"]
    by_loss = contrast(members[half].scores(), members[~half].scores())
    assert by_loss.attack.auc["low"] < 0.5


def test_the_same_seed_is_the_same_attack():
    members, others = overfitted(40, 20)
    first, second = (network_attack(members, others, seed=1, epochs=3) for _ in range(2))
    assert first == second


def test_a_report_has_both_attacks_and_whether_they_could_tell():
    members, others = overfitted(60, 30)
    report = audit_model(members, others, limit=0.5, epochs=3)
    assert report.passed  # the policy decides
    told = report.evidence
    assert "accuracy" in told["by-network"]
    assert "accuracy" not in told["by-loss"]["attack"]  # no threshold comes from other data
    assert told["by-network"]["members"] == told["by-network"]["others"] == 18
    assert told["leak"]["low"] == max(each["low"] for each in report.leaks)
    assert told["able"]
    few = torch.arange(3)
    report = audit_model(members[few], others[few], limit=0.5, epochs=3)
    assert "by-network" not in report.evidence
    assert not report.evidence["able"]
