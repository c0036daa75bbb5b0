import numpy as np
import pytest
import torch

from audit.buffer import (
    NEAREST,
    attack_buffer,
    density_scores,
    draw_copies,
    nearness,
    shadow_scores,
    small,
)
from audit.search import orientations
from learning.samples import one_of_each


def images(count, seed=0, height=8, width=8):
    rng = torch.Generator().manual_seed(seed)
    shape = (count, 1, height, width)
    return torch.randint(60, 190, shape, dtype=torch.uint8, generator=rng)


DRESSES = {
    "mirrored": lambda x: x.flip(3),
    "turned": lambda x: x.rot90(1, (2, 3)),
    "brighter": lambda x: x + 30,
    "inverted": lambda x: 255 - x,
}


@pytest.mark.parametrize("dress", DRESSES)
def test_a_copy_is_as_near_as_can_be_in_these_dresses(dress):
    real = images(5)
    distances = np.exp(-nearness(DRESSES[dress](real), real))
    assert (distances < 1e-3).all()
    assert np.exp(-nearness(images(5, seed=1), real)).min() > 0.5


def test_a_distance_by_hand():
    """(1, 0, 0, −1)/√2 and (1, −1, 0, 0)/√2, less their mean of 0: 2 − 2 · ½ = 1."""
    x, y = (
        torch.tensor(each, dtype=torch.uint8).reshape(1, 1, 1, 4)
        for each in ([200, 100, 100, 0], [200, 0, 100, 100])
    )
    assert np.exp(-nearness(x, y)) == pytest.approx(1.0)
    assert np.exp(-nearness(x, x)) == pytest.approx(NEAREST, rel=1e3)
    assert small(x)[0].tolist() == pytest.approx([2**-0.5, 0, 0, -(2**-0.5)])


def test_images_that_are_not_square_are_not_turned_on_their_side():
    wide = images(3, height=4, width=6)
    assert {tuple(each.shape[2:]) for each in orientations(wide)} == {(4, 6)}
    assert len(list(orientations(wide))) == 4
    assert len(list(orientations(images(3)))) == 8


def test_the_ratio_of_densities_is_high_where_only_synthetic_images_are():
    here, there = (images(1, seed).repeat(40, 1, 1, 1).float() for seed in (0, 1))
    noise = torch.randn(here.shape, generator=torch.Generator().manual_seed(2))
    synthetic, references = ((each + 5 * noise).byte() for each in (here, there))
    known = references[:20], synthetic[:20]
    scores = [density_scores(each[20:], *known) for each in (synthetic, references)]
    assert scores[0].min() > 0 > scores[1].max()


def test_shadows_by_hand():
    """With the image at 2, without it at 0, variance 1: a target at 2 gives (4 − 0) / 2."""
    shadows = np.array([[1.0], [3.0], [-1.0], [1.0]])
    learnt = np.array([[True], [True], [False], [False]])
    assert shadow_scores(np.array([2.0]), shadows, learnt) == pytest.approx(2.0)
    assert shadow_scores(np.array([1.0]), shadows, learnt) == pytest.approx(0.0)


def test_near_copies_are_mirrored_and_noisy():
    real = images(50)
    difference = (draw_copies(real, 0).float() - real.flip(3).float()).std()
    assert difference == pytest.approx(20, rel=0.05)


def test_a_loose_limit_needs_no_more_copies_in_the_positive_control():
    """Half of near-copies have a leak of 0.5 or less, which no limit of 0.9 could notice."""
    real = images(400, height=16, width=16)
    halves = real[160:240], real[240:320]
    found = attack_buffer(real[:160], torch.arange(160), halves, real[320:], 0.9, seed=0)
    assert (found.noticed, found.verdict) == (0.25, "passed")


@pytest.mark.slow
def test_a_patient_with_many_images_counts_once():
    """40 patients with 10 images each, and 20 others: no honest buffer is refused as leaky.

    If each image counted, a third of these buffers would be refused.
    """
    verdicts = []
    for seed in range(12):
        one_each = images(40, seed, 12, 12)
        noise = 20 * torch.randn(400, 1, 12, 12, generator=torch.Generator().manual_seed(seed))
        members = (one_each.repeat_interleave(10, 0) + noise).clamp(0, 255).to(torch.uint8)
        others, made = images(20, 100 + seed, 12, 12), images(128, 200 + seed, 12, 12)
        asked = one_of_each(np.arange(400) // 10)
        found = attack_buffer(members, asked, (others[:10], others[10:]), made, 0.05, seed)
        assert (found.members, found.others) == (40, 20)
        verdicts.append(found.verdict)
    assert verdicts.count("refused") <= 2


def test_a_buffer_can_copy_some_of_all_members():
    """100 synthetic images of 400 members: a perfect attack finds a quarter."""
    real = images(440)
    asked, halves = one_of_each(np.arange(400) // 10), (real[400:420], real[420:])
    found = attack_buffer(real[:400], asked, halves, real[:100], 0.05, seed=0)
    (trial, _) = found.trials
    expected = trial.worth.excess_auc["value"] / (0.5 * 100 / 400)
    assert trial.leak_auc["value"] == pytest.approx(min(1.0, expected))
