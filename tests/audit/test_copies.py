import numpy as np
import pytest
import torch

from audit.copies import LEVEL, Auditor, nearness_test
from tests.gan.drawn import draw

CLASSES = ("healthy", "ill", "unknown")


def auditor(held_out=None, quantile=0.01):
    training, _ = draw(120, seed=1)
    images, seen = draw(80, seed=2) if held_out is None else held_out
    patients = (np.arange(len(training)), np.arange(len(images)))
    settings = {"classes": len(CLASSES), "quantile": quantile, "patients": patients}
    return Auditor(training, images, seen, **settings)


@pytest.fixture(scope="module")
def judge():
    return auditor()


def noisy(images, deviation, seed=4):
    noise = deviation * torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))
    return (images + noise).round().clamp(0, 255).to(torch.uint8)


@pytest.mark.slow
def test_copies_are_refused_by_name(judge):
    training, _ = draw(120, seed=1)
    images, labels = draw(40, seed=3)
    images[[4, 17]] = training[[103, 77]]
    verdict = judge.check(images, labels)
    assert judge.refuses(images, labels)[[4, 17]].all()
    assert "4 (a copy)" in verdict.reasons[0]
    assert "17 (a copy)" in verdict.reasons[0]
    assert "103" not in verdict.reasons[0]


DRESSES = {
    "mirror": lambda x: x.flip(3),
    "turn": lambda x: x.rot90(1, (2, 3)),
    "shift": lambda x: x.roll(2, 3),
    "brightness": lambda x: 0.6 * x + 70,
    "inversion": lambda x: 255 - x,
    "noise": lambda x: noisy(x, 20),
    "mix": lambda x: (x + x.roll(1, 0)) / 2,
    "mirror, brightness, shift": lambda x: (0.6 * x.flip(3) + 70).roll((-2, 1), (2, 3)),
    "turn, inversion, noise": lambda x: noisy(255 - x.rot90(3, (2, 3)), 10),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRESSES)
def test_a_copy_is_refused_in_any_dress(judge, name):
    training, labels = draw(120, seed=1)
    images = DRESSES[name](training[:40].float()).round().clamp(0, 255).to(torch.uint8)
    assert judge.refuses(images, labels[:40]).double().mean() >= 0.95


def test_fresh_draws_pass_but_for_a_few_which_can_be_dropped(judge):
    images, labels = draw(100, seed=5)
    too_near = judge.refuses(images, labels)
    assert too_near.float().mean() < 0.06
    verdict = judge.check(images, labels)
    assert verdict.figures["release-refused"] == too_near.double().mean()
    assert verdict.figures["release-nearer-p"] > LEVEL
    assert 0.2 < verdict.figures["release-median-rank"] < 0.8
    kept = judge.check(images[~too_near], labels[~too_near])
    assert kept.passed
    assert not kept.reasons
    assert kept.figures["release-refused"] == 0
    assert kept.figures["held-out-refused"] <= 0.05


def test_a_buffer_that_is_nearer_to_the_training_images_does_not_leave(judge, monkeypatch):
    """Copies so noisy that the thresholds, set aside here, would let them pass."""
    training, labels = draw(120, seed=1)
    monkeypatch.setattr(judge, "quantile", -1.0)
    verdict = judge.check(noisy(training, 60), labels)
    assert not verdict.passed
    assert not verdict.figures["release-refused"]
    assert verdict.figures["release-nearer-to-training"] > 0.7
    assert verdict.figures["release-nearer-p"] < LEVEL
    assert "% of the images are nearer to a training image" in verdict.reasons[0]


def found(*index, similarity):
    """Of the nearest so much, of the second nearest nothing."""
    whose = torch.tensor(index)
    return torch.tensor([[similarity, 0.0]] * len(index)), torch.stack([whose, whose], 1)


def test_how_likely_a_share_is_by_hand():
    """Ten images, each nearest to a training image of its own, out of 10 and 10 others.

    All weights are equal, ten sums are one of them and ten are zeros: a sum of 10 drawn of 20 has
    the mean 5 and the variance (10 - 100 / 20) / 4 · 20 / 19 = 25 / 19, so (10 - 5) / 1.147 = 4.359
    deviations.
    """
    share, p = nearness_test(
        found(*range(10), similarity=0.9), found(*[0] * 10, similarity=0.1), 10
    )
    assert share == 1
    assert p == pytest.approx(6.54e-6, rel=0.01)


@pytest.mark.parametrize(("copies", "refused"), [(0, False), (5, False), (20, True), (80, True)])
def test_a_few_copies_among_many_strangers_are_noticed(copies, refused):
    """Strangers are a little nearer to one real image than to the next, copies much."""
    rng = torch.Generator().manual_seed(0)
    near, far = (0.5 + 0.2 * torch.rand(512, 2, generator=rng) for _ in range(2))
    near[:copies, 0] = 1.0
    first, second = (
        (each.sort(dim=1, descending=True).values, torch.randint(300, (512, 2), generator=rng))
        for each in (near, far)
    )
    assert (nearness_test(first, second, 300)[1] < LEVEL) == refused


def test_one_training_image_that_attracts_all_is_no_proof():
    """It is as likely to be a held-out one: the sums are 10 weights and nineteen zeros."""
    share, p = nearness_test(found(*[3] * 10, similarity=0.9), found(*[0] * 10, similarity=0.1), 10)
    assert share == 1
    assert p > 0.1


def test_honest_buffers_are_refused_as_seldom_as_the_level_says():
    rng = torch.Generator().manual_seed(0)
    refused = 0
    for _ in range(400):
        real, made = torch.randn(60, 2, generator=rng), torch.randn(100, 2, generator=rng)
        near = [(-torch.cdist(made, half).clamp(max=9) / 9).topk(2) for half in real.split(30)]
        training, others = ((each.values, each.indices) for each in near)
        refused += nearness_test(training, others, 30)[1] < 0.05
    assert 5 < refused < 34  # of 400 at 5 %: 20, standard deviation 4.4


@pytest.mark.slow
def test_held_out_copies_do_not_change_the_thresholds():
    training, labels = draw(120, seed=1)
    images, seen = draw(80, seed=2)
    with_copies = (torch.cat([training[:50], images]), torch.cat([labels[:50], seen]))
    assert torch.equal(auditor(with_copies).ranks.known, auditor().ranks.known)


@pytest.mark.parametrize("others", [[], [0], [0, 0]])
def test_one_held_out_image_sets_no_threshold(others):
    """Without a spread every image would have the rank 1, near-copies too."""
    training, labels = draw(120, seed=1)
    images, seen = draw(80, seed=2)
    held_out = (torch.cat([training[:5], images[others]]), torch.cat([labels[:5], seen[others]]))
    with pytest.raises(ValueError, match="at least two different test images"):
        auditor(held_out)


def test_no_held_out_image_sets_no_threshold():
    images, labels = draw(1, seed=2)
    with pytest.raises(ValueError, match="at least two different test images"):
        auditor((images[:0], labels[:0]))


def test_an_image_is_searched_for_once(judge, monkeypatch):
    images, labels = draw(10, seed=7)
    first = judge.refuses(images, labels)
    monkeypatch.setattr(judge, "search", None)  # to call it would fail
    assert torch.equal(judge.refuses(images.flip(0), labels.flip(0)).flip(0), first)
