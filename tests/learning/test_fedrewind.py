"""How FedRewind's hospitals treat BatchNorm; the rest is in tests/test_federation.py."""

import pytest
import torch

from learning.learners.fedrewind import FedRewind
from learning.learners.plain import Received
from tests.fakes import settings
from tests.learning.test_training import assert_same, network, visit

FIRST_LEG, LATER_LEG = Received(new_rounds=1), Received(new_rounds=0)
MEAN, WEIGHT = "1.running_mean", "1.weight"  # of the first BatchNorm layer


def rewound(received, epochs=3, base="cwt", batch_norm="reference"):
    chosen = {"rewind__base": base, "rewind__batch_norm": batch_norm, "train__epochs": 3}
    state, _ = visit("fedrewind", network("cnn"), epochs, received=received, **chosen)
    return state


@pytest.mark.parametrize("base", ["cwt", "fedavg"])
@pytest.mark.parametrize("received", [FIRST_LEG, LATER_LEG])
def test_by_default_a_visit_is_like_any_other(base, received):
    plain, _ = visit("plain", network("cnn"), 3)
    assert_same(plain, rewound(received, base=base, batch_norm="train"))


def test_as_in_the_authors_code_statistics_move_in_the_first_epoch_only():
    start = network("cnn").state_dict()
    one, three = rewound(FIRST_LEG, 1), rewound(FIRST_LEG, 3)
    assert not torch.equal(start[MEAN], one[MEAN])
    assert torch.equal(one[MEAN], three[MEAN])
    assert not torch.equal(one[WEIGHT], three[WEIGHT])


def test_with_fedavg_they_move_until_the_rewind_leg():
    assert_same(visit("plain", network("cnn"), 3)[0], rewound(FIRST_LEG, 3, "fedavg"))


@pytest.mark.parametrize("base", ["cwt", "fedavg"])
def test_later_legs_leave_statistics_alone(base):
    start, end = network("cnn").state_dict(), rewound(LATER_LEG, base=base)
    assert torch.equal(start[MEAN], end[MEAN])
    assert not torch.equal(start[WEIGHT], end[WEIGHT])


def test_only_as_in_the_authors_fedavg_hospitals_have_statistics_of_their_own():
    """Mean, variance and counter of the four BatchNorm layers of a cnn."""

    def own(base, batch_norm):
        chosen = settings(rewind__base=base, rewind__batch_norm=batch_norm)
        return FedRewind.owns(network("cnn"), chosen)

    names = own("fedavg", "reference")
    assert len(names) == 4 * 3
    assert all("running" in name or "num_batches" in name for name in names)
    assert own("fedavg", "train") == own("cwt", "reference") == own("rwt", "train") == set()
