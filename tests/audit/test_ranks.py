import pytest
import torch

from audit.ranks import Ranks


def test_ranks_by_hand():
    """Two residuals of four held-out images: 0 1 2 3 and 3 0 1 2.

    Their smallest shares are 1/4, 1/4, 2/4, 3/4. Of an image with 1.5 and 2.5 they are 2/4 and 3/4;
    of the smallest ones three are 2/4 or less. One with -1 and 9 is below all in the first.
    """
    known = torch.tensor([[0.0, 3], [1, 0], [2, 1], [3, 2]])
    ranks = Ranks(known, torch.zeros(4, dtype=torch.int64), 1)
    assert ranks.smallest.tolist() == [0.25, 0.25, 0.5, 0.75]
    assert ranks(torch.tensor([[1.5, 2.5], [-1, 9]]), torch.zeros(2).long()).tolist() == [0.75, 0]


@pytest.mark.parametrize("scores", [1, 5, 25])
def test_many_scores_refuse_no_more_than_one(scores):
    """Of 160 held-out images each score has a nearest one: an image may be nearer than it."""
    rng = torch.Generator().manual_seed(0)
    refused = []
    for _ in range(20):
        ranks = Ranks(torch.randn(160, scores, generator=rng), torch.zeros(160).long(), 1)
        fresh = torch.randn(500, scores, generator=rng)
        refused.append((ranks(fresh, torch.zeros(500).long()) <= 0.01).double().mean())
    assert sum(refused) / 20 < 0.035


def test_a_score_that_all_have_alike_refuses_nobody():
    known = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    known[:, 1] = 0
    ranks = Ranks(known, torch.zeros(100).long(), 1)
    assert ranks(torch.tensor([[0.0, -0.1]]), torch.tensor([0])).item() > 0.2


@pytest.mark.parametrize("quantile", [0.0, 0.01, 0.1])
def test_a_share_of_new_images_has_that_rank_or_less(quantile):
    rng = torch.Generator().manual_seed(0)
    known, labels = torch.randn(1000, 5, generator=rng), torch.arange(1000) % 10
    ranks = Ranks(known, labels, 10)
    assert (ranks(known, labels) <= quantile).double().mean() <= quantile
    fresh = torch.randn(5000, 5, generator=rng)
    refused = (ranks(fresh, torch.arange(5000) % 10) <= quantile).double().mean()
    assert quantile / 2 <= refused < 1.3 * quantile + 0.01


def test_each_class_has_its_own_thresholds():
    """Class 1 lies 10 lower: -12 is beyond all of class 0 and in the middle of class 1."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 2
    known = torch.randn(400, 1, generator=rng) - 10 * labels[:, None]
    ranks = Ranks(known, labels, 2)
    of_each = ranks(torch.tensor([[-10.0], [-10.0]]), torch.tensor([0, 1]))
    assert of_each[0] == 0
    assert of_each[1] > 0.3


@pytest.mark.parametrize("few", [0, 1, 6])
def test_a_class_of_few_held_out_images_has_the_stricter_thresholds(few):
    """Its own images, nearer than those of other classes, do not make its thresholds laxer."""
    rng = torch.Generator().manual_seed(0)
    known = torch.cat([torch.randn(300, 1, generator=rng), torch.full((few, 1), -4.0)])
    labels = torch.cat([torch.zeros(300), torch.ones(few)]).long()
    ranks = Ranks(known, labels, 2)
    near = torch.tensor([[-4.5], [-4.5]])
    assert (ranks(near, torch.tensor([0, 1])) <= 0.01).all()
