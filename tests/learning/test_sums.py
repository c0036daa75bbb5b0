"""Sums of features: exact addition, and the classifier against that of all images in one place."""

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from learning.closed_form import SHARPNESS, Head, choose, solve
from learning.errors import DeadlineError
from learning.sums import (
    ALIKE,
    GRID,
    SHARES,
    Images,
    compute_sums,
    project,
    random_mask,
    random_noise,
    unfold,
)

CLASSES, WIDTH = 3, 8


def images(count, seed=0, shift=0.0):
    """Features of norm 1 on the grid's finer side, and their classes; classes have means."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=count)
    z = rng.standard_normal((count, WIDTH)) + 2 * np.eye(CLASSES, WIDTH)[labels] + shift
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    return torch.from_numpy(z).float(), torch.from_numpy(labels)


def sums(count=20, seed=0, **changes):
    z, labels = images(count, seed, **changes)
    return compute_sums(z, labels, CLASSES)


def equal(one, other):
    return all(torch.equal(vars(one)[name], vars(other)[name]) for name in vars(one))


def test_the_sums_of_two_features_by_hand():
    z = torch.tensor([[0.5, 0.25], [0.25, -0.5]])
    found = compute_sums(z, torch.tensor([1, 1]), 2)
    unit = GRID**2
    assert found.counts.tolist() == [0, 2 * unit]
    assert found.firsts.tolist() == [[0, 0], [0.75 * unit, -0.25 * unit]]
    assert found.seconds[1].tolist() == [0.3125 * unit, 0.0, 0.3125 * unit]  # 00, 01, 11


def test_the_classifier_is_the_balanced_ridge_of_all_images_in_one_place():
    parts = [images(20, 1), images(50, 2, shift=1.0), images(5, 3)]
    first, *later = (compute_sums(z, labels, CLASSES) for z, labels in parts)
    total = sum(later, first)
    z, labels = (torch.cat(each).numpy() for each in zip(*parts, strict=True))
    counts = np.bincount(labels, minlength=CLASSES)
    z = np.trunc(z * GRID) / GRID
    weights = 1 / counts[labels]
    alpha = 0.1 * (weights * (z**2).sum(axis=1)).sum() / WIDTH
    ridge = Ridge(alpha, fit_intercept=False).fit(z, np.eye(CLASSES)[labels], weights)
    assert solve(total, 0.1).weights.numpy() / SHARPNESS == pytest.approx(ridge.coef_, abs=1e-5)


def test_no_order_changes_a_bit_and_a_hospital_is_taken_away_exactly():
    own = [sums(seed=k, count=10 + k) for k in range(4)]
    totals = [a + b + c + d for a, b, c, d in permutations(own)]
    assert all(equal(total, totals[0]) for total in totals)
    assert equal(totals[0] - own[2], own[0] + own[1] + own[3])
    heads = [solve(each, 0.1) for each in (totals[0] - own[2], own[0] + own[1] + own[3])]
    assert equal(*heads)


def test_a_mask_hides_the_sums_and_comes_off_exactly():
    own, mask = sums(), random_mask(sums())
    masked = own + mask
    assert equal(masked - mask, own)
    top = (masked.seconds < 0).double().mean()  # the highest bit: without a mask rarely set
    assert 0.2 < top < 0.8
    assert not equal(mask, random_mask(own))


def test_truncation_never_lengthens_a_feature_and_costs_less_than_a_thousandth():
    z, labels = images(200)
    weights = torch.full((200,), 1 / 3)
    found = compute_sums(z, labels, CLASSES, weights)
    traces = found.seconds[:, torch.tensor([k * WIDTH - k * (k - 1) // 2 for k in range(WIDTH)])]
    assert (traces.sum(dim=1) <= found.counts + 200).all()
    assert traces.sum() > 0.998 * found.counts.sum()


def test_a_longer_vector_counts_as_one_of_norm_1():
    z, labels = images(10)
    assert equal(compute_sums(5 * z, labels, CLASSES), compute_sums(z.double() * 9, labels, 3))


def test_images_of_one_patient_may_share_the_weight_of_one():
    z = torch.tensor([[1.0, 0.0]]).repeat(4, 1)
    found = compute_sums(z, torch.zeros(4, dtype=torch.int64), 1, torch.full((4,), 0.25))
    one = compute_sums(z[:1], torch.zeros(1, dtype=torch.int64), 1)
    assert equal(found, one)


def test_hospitals_that_weigh_alike_have_the_total_of_their_means():
    small, large = (sums(n, 1) * round(ALIKE / n) for n in (10, 1000))
    assert (small.counts.sum() / large.counts.sum()).item() == pytest.approx(1, abs=1e-3)


def test_a_class_that_nobody_has_gets_no_score():
    z, labels = images(20)
    head = solve(compute_sums(z, labels, CLASSES + 1), 0.1)
    assert not head.weights[CLASSES].any()
    assert not head.biases.any()
    assert head.weights[:CLASSES].any(dim=1).all()


def test_a_projection_keeps_lengths_on_average_and_its_classifier_works_on_features():
    z, _ = images(2000)
    projected = project(z, 4, np.random.default_rng(7))
    assert projected.shape == (2000, 4)
    assert projected.norm(dim=1).max() <= 1 + 1e-12
    generator = torch.Generator().manual_seed(0)
    head = Head(*(torch.randn(*shape, generator=generator) for shape in ((CLASSES, 4), (CLASSES,))))
    short = 0.3 * z  # nothing is shortened
    expected = head.scores(project(short, 4, np.random.default_rng(7)).float())
    lifted = head.lift(WIDTH, np.random.default_rng(7))
    assert lifted.scores(short).numpy() == pytest.approx(expected.numpy(), abs=1e-5)
    whole = project(z, 0, np.random.default_rng(7))
    assert whole.numpy() == pytest.approx(z.double().numpy(), abs=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 17, 100])
def test_a_projection_of_an_image_is_the_same_beside_any_others(count):
    z = torch.randn(500, 100, generator=torch.Generator().manual_seed(0))
    whole, some = (project(each, 16, np.random.default_rng(7)) for each in (z, z[:count]))
    assert torch.equal(whole[:count], some)


@pytest.mark.parametrize("dimensions", [0, 2, WIDTH, WIDTH + 3])
def test_a_lifted_classifier_gives_the_scores_of_projected_features(dimensions):
    z, labels = images(200)
    short = 0.3 * z  # nothing is shortened
    projected = project(short, dimensions, np.random.default_rng(7))
    head = solve(compute_sums(projected, labels, CLASSES), 0.1)
    lifted, expected = head.lift(WIDTH, np.random.default_rng(7)), head.scores(projected.float())
    assert lifted.scores(short).numpy() == pytest.approx(expected.numpy(), abs=1e-4)


def test_noise_has_the_announced_deviation_and_a_patient_a_norm_of_at_most_1():
    drawn = random_noise(
        compute_sums(torch.zeros(0, 40), torch.zeros(0), 3),
        2.0,
        np.random.default_rng(0).standard_normal,
    )
    rows, columns = torch.triu_indices(40, 40)
    once = drawn.seconds[:, rows == columns], drawn.seconds[:, rows != columns] * 2**0.5
    for share, tensor in (
        (SHARES["firsts"], drawn.firsts),
        *((SHARES["seconds"], part) for part in once),
    ):
        scaled = tensor.double() / GRID**2 * share
        assert scaled.std().item() == pytest.approx(2.0, rel=0.15)


def scaled_norm(patient):
    """The norm of a patient's part, on the scale on which noise has one deviation."""
    parts = {name: SHARES[name] * each.double() / GRID**2 for name, each in vars(patient).items()}
    whole = unfold(parts.pop("seconds"))  # both entries of a pair
    return math.sqrt(sum(each.square().sum().item() for each in (*parts.values(), whole)))


@pytest.mark.parametrize("count", [1, 2, 9])
@pytest.mark.parametrize("kind", ["alike", "random", "apart"])
def test_a_patient_changes_the_sums_by_a_norm_of_at_most_1(kind, count):
    """Neighbours: a patient more. Images that are alike have √(0.2² + 0.8² + 0.56²) = 0.997.

    Of m images with features at right angles, of m classes, the parts have norms of 1/√m.
    """
    z, labels = images(count)
    if kind == "alike":
        z, labels = torch.eye(WIDTH)[[0]].repeat(count, 1), labels * 0
    if kind == "apart":
        z, labels = torch.eye(9), torch.arange(9)
        z, labels = z[:count], labels[:count]
    shares = torch.full((count,), 1 / count)
    own, others = (z, labels, shares), (*images(5, 1), torch.ones(5))
    if kind == "apart":
        others = (torch.eye(9)[:5], torch.arange(5), torch.ones(5))
    z, labels, weights = (torch.cat(pair) for pair in zip(own, others, strict=True))
    added = compute_sums(z, labels, 9, weights) - compute_sums(others[0], others[1], 9, others[2])
    norm, most = scaled_norm(added), math.sqrt(0.2**2 + 0.8**2 + 0.56**2)
    assert norm <= most < 1
    if kind != "random":
        expected = most if kind == "alike" else most / math.sqrt(count)
        assert norm == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("noise", [0.0, 5.0])
def test_noise_that_makes_a_indefinite_leaves_a_finite_classifier(noise):
    for seed in range(40):  # of some, the trace of A is negative
        total = sums(5) + random_noise(sums(), 5.0, np.random.default_rng(seed).standard_normal)
        for each in (total, replace(total, counts=-total.counts.abs()), total * 0):
            assert all(part.isfinite().all() for part in vars(solve(each, 0.1, noise)).values())


def test_with_little_noise_the_classifier_is_linear_discriminant_analysis():
    z, labels = images(300, 4)
    head = solve(compute_sums(z, labels, CLASSES), 1e-9, noise=1e-9)
    z, labels = z.double().numpy(), labels.numpy()
    means = np.stack([z[labels == c].mean(axis=0) for c in range(CLASSES)])
    inverse = np.linalg.inv(np.cov((z - means[labels]).T, bias=True))
    scores = z @ inverse @ means.T - np.einsum("ci,ij,cj->c", means, inverse, means) / 2
    # Only differences between classes count.
    found = head.scores(torch.from_numpy(z).float()).double().numpy()
    assert found - found[:, :1] == pytest.approx(scores - scores[:, :1], rel=0.02, abs=0.1)


def test_means_that_differ_less_than_their_noise_are_those_of_all_images():
    z, _ = images(50)
    total = compute_sums(z.repeat(CLASSES, 1), torch.arange(CLASSES).repeat_interleave(50), CLASSES)
    total.firsts[0, 0] += GRID**2  # one of fifty images
    alike, apart = (solve(total, 0.1, noise).weights for noise in (1.0, 1e-6))
    assert torch.equal(alike[0], alike[1])
    assert not torch.equal(apart[0], apart[1])


def test_with_noise_a_rare_class_does_not_spoil_the_others():
    """1/n of a class of almost no noised count would be by far the largest weight in A."""
    noise, accuracies = 8.0, []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        sizes = [5000, 2000, 1000, 500, 200, 100, 0]
        labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        z = torch.from_numpy(rng.standard_normal((len(sizes), 32)))[labels]
        z = z + torch.from_numpy(rng.standard_normal(z.shape))
        z /= z.norm(dim=1, keepdim=True)
        total = compute_sums(z, labels, len(sizes))
        total += random_noise(total, noise, rng.standard_normal)
        total.counts[-1] = GRID**2  # an absent class, with the noise of one image
        for told in (0, noise):
            answers = solve(total, 1.0, told).scores(z.float()).argmax(dim=1)
            right = [(answers[labels == c] == c).double().mean() for c in range(len(sizes) - 1)]
            accuracies.append(np.mean(right))
    spoilt, kept = accuracies[::2], accuracies[1::2]
    assert np.mean(kept) > np.mean(spoilt) + 0.2


def test_a_negative_semidefinite_a_gives_no_scores():
    negative = replace(sums(), seconds=-sums().seconds)
    assert not solve(negative, 0.1).weights.any()


def test_own_sums_count_more_where_the_others_have_other_classes():
    """Others give each class the features of another one; validation notices."""
    z, labels = images(120, 5)
    own = Images(z, labels, np.arange(120) // 2, CLASSES)
    rng = np.random.default_rng(0)
    others = compute_sums(z, (labels + 1) % CLASSES, CLASSES) * 3
    assert choose(others, own, (0.1,), (0, 10), rng) == (0.1, 10)
    assert choose(own.sums(), own, (0.1,), (0, 10), rng) == (0.1, 0)


def test_a_deadline_ends_the_choice():
    z, labels = images(20, 5)
    own = Images(z, labels, np.arange(20), CLASSES)
    with pytest.raises(DeadlineError):
        choose(own.sums(), own, (0.1, 1.0), (0,), np.random.default_rng(0), deadline=0.0)


def test_the_choice_never_sees_a_patient_in_both_parts():
    """Each patient has a direction of features: a fit without it has no sum there."""
    rng = np.random.default_rng(0)
    patients = np.repeat(np.arange(40), 5)
    z = torch.eye(40)[patients]
    labels = torch.from_numpy(rng.integers(2, size=40)[patients])
    seen = []

    class Spied(Images):
        def sums(self, chosen=None):
            seen.append(self.patients[chosen.numpy()])
            return super().sums(chosen)

    own = Spied(z, labels, patients, 2)
    choose(compute_sums(z[:0], labels[:0], 2), own, (0.1, 1.0), (0,), rng)
    assert len(seen) == 5
    assert all({*np.bincount(each, minlength=40)} == {0, 5} for each in seen)
    assert np.bincount(np.concatenate(seen)).tolist() == [20] * 40  # in four of five fits
