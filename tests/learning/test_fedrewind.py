"""How FedRewind's hospitals treat BatchNorm; the rest is in tests/test_federation.py."""

import pytest
import torch

from learning.learners.fedrewind import FedRewind, FedRewindAveraged
from learning.learners.plain import Received
from tests.fakes import settings
from tests.learning.test_training import assert_same, network, visit

MEAN, WEIGHT = "1.running_mean", "1.weight"  # of the first BatchNorm layer


def trained(leg, epochs=3, learner="fedrewind", batch_norm="reference"):
    received = Received(leg=leg)
    chosen = {"rewind__batch_norm": batch_norm, "train__epochs": 3}
    return visit(learner, network("cnn"), epochs, received=received, **chosen)[0]


@pytest.mark.parametrize("learner", ["fedrewind", "fedrewind-averaged"])
@pytest.mark.parametrize("leg", [1, 2, 3])
def test_by_default_a_visit_is_like_any_other(learner, leg):
    plain, _ = visit("plain", network("cnn"), 3)
    assert_same(plain, trained(leg, learner=learner, batch_norm="train"))


def test_as_in_the_authors_code_statistics_move_in_the_first_epoch_only():
    start = network("cnn").state_dict()
    one, three = trained(1, epochs=1), trained(1, epochs=3)
    assert not torch.equal(start[MEAN], one[MEAN])
    assert torch.equal(one[MEAN], three[MEAN])
    assert not torch.equal(one[WEIGHT], three[WEIGHT])


def test_where_the_server_averages_they_move_until_the_rewind_leg():
    plain, _ = visit("plain", network("cnn"), 3)
    assert_same(plain, trained(1, learner="fedrewind-averaged"))


@pytest.mark.parametrize("learner", ["fedrewind", "fedrewind-averaged"])
@pytest.mark.parametrize("leg", [2, 3])
def test_later_legs_leave_statistics_alone(learner, leg):
    start, end = network("cnn").state_dict(), trained(leg, learner=learner)
    assert torch.equal(start[MEAN], end[MEAN])
    assert not torch.equal(start[WEIGHT], end[WEIGHT])


def test_the_leg_decides_and_not_how_long_ago_the_last_visit_was():
    chosen = {"rewind__batch_norm": "reference", "train__epochs": 3}
    ends = [
        visit("fedrewind", network("cnn"), 3, received=Received(leg=1, new_rounds=rounds), **chosen)
        for rounds in (0, 2)
    ]
    assert_same(*(state for state, _ in ends))


def test_only_as_in_the_authors_fedavg_hospitals_have_statistics_of_their_own():
    """Mean, variance and counter of the four BatchNorm layers of a cnn."""

    def local(learner, batch_norm):
        return learner.local(network("cnn"), settings(rewind__batch_norm=batch_norm))

    names = local(FedRewindAveraged, "reference")
    assert len(names) == 4 * 3
    assert all("running" in name or "num_batches" in name for name in names)
    assert local(FedRewindAveraged, "train") == set()
    assert local(FedRewind, "train") == local(FedRewind, "reference") == set()
