import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from audit.epsilon import prove_epsilon
from gan.noised_features import (
    SHARES,
    SIZE,
    NoisedClasses,
    NoisedSums,
    release_features,
    subspace,
)
from tests.gan.test_class_gaussians import features


def nothing(count):
    return np.zeros(count)


def released(z, labels, classes, noise=1.0, normal=nothing, patients=None):
    owners = np.arange(len(labels)) if patients is None else patients
    return release_features(z, labels, classes, noise, normal, owners)


def scaled(one, other):
    """The difference of two statistics, in the units in which noise is drawn."""
    counts, sums = one.counts - other.counts, (one.sums - other.sums).ravel()
    return np.concatenate([SHARES["count"] * counts, SHARES["sum"] * sums])


@pytest.mark.parametrize("width", [8, 4 * SIZE])
@pytest.mark.parametrize("kind", ["random", "in the subspace", "outside of it", "zero", "long"])
@pytest.mark.parametrize(
    "labels",
    [[1], [1] * 5, [0, 1, 2, 3, 0], [2] * 300],  # of the images of one patient
)
def test_one_patient_more_moves_the_statistic_by_1_at_most(width, kind, labels):
    others, their_labels = features(20, classes=4, width=width)
    directions = torch.from_numpy(subspace(width)).float()
    z = normalize(torch.randn(1, width, generator=torch.Generator().manual_seed(0)))
    within = z @ directions.T @ directions
    kinds = {
        "in the subspace": normalize(within),
        "outside of it": z - within,
        "zero": 0 * z,
        "long": 50 * z,
    }
    mine = kinds.get(kind, z).repeat(len(labels), 1)[:, :, None, None]
    both, every = torch.cat([others, mine]), torch.cat([their_labels, torch.tensor(labels)])
    patients = np.array([*range(20), *[20] * len(labels)])
    whole = released(both, every, 4, patients=patients)
    moved = np.linalg.norm(scaled(whole, released(others, their_labels, 4)))
    assert moved <= 1
    if kind == "in the subspace" and len(labels) == 1:  # no bound is smaller
        assert moved == pytest.approx(math.hypot(*SHARES.values()), abs=2e-3)


def test_an_image_adds_the_same_beside_any_others():
    """Almost outside of the subspace t is scaled by 10^10, so its last bits count."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(100, 4 * SIZE, dtype=torch.double, generator=generator)
    directions = torch.from_numpy(subspace(4 * SIZE))
    z -= (1 - 1e-10) * z @ directions.T @ directions
    z, labels = z[:, :, None, None], torch.zeros(100, dtype=torch.int64)
    alone = sum(released(z[[k]], labels[[k]], 1).sums for k in range(100))
    assert np.array_equal(alone, released(z, labels, 1).sums)


def test_the_statistic_is_what_its_docstring_says():
    z, labels = features(3, width=4 * SIZE)
    found = released(z, labels, 3, patients=np.array([0, 1, 1]))
    t = z.flatten(1).double().numpy() @ subspace(4 * SIZE).T
    t /= np.linalg.norm(t, axis=1, keepdims=True)
    assert found.counts.tolist() == [1.5, 0.5, 0.0]  # labels 0, 1, 0
    np.testing.assert_allclose(found.sums[0], t[0] + t[2] / 2, atol=2**-11)
    np.testing.assert_allclose(found.sums[1], t[1] / 2, atol=2**-11)


def test_directions_are_orthonormal_and_always_the_same():
    np.testing.assert_allclose(subspace(300) @ subspace(300).T, np.eye(SIZE), atol=1e-12)
    np.testing.assert_array_equal(subspace(300), subspace(300))
    assert subspace(8).shape == (8, 8)


def test_noise_has_the_size_and_the_grid_that_it_says():
    (z, labels), rng = features(30, width=200), np.random.default_rng(0)
    exact = released(z, labels, 2)
    noised = [released(z, labels, 2, 3.0, rng.standard_normal) for _ in range(200)]
    for name, field in (("count", "counts"), ("sum", "sums")):
        errors = np.stack([getattr(each, field) - getattr(exact, field) for each in noised])
        assert errors.std() == pytest.approx(3.0 / SHARES[name], rel=0.1)
    whole = noised[0].sums * 2**20
    np.testing.assert_array_equal(whole, np.rint(whole))


def test_drawn_features_have_the_means_and_variances_of_the_real_ones():
    real, labels = features(4000)
    made = NoisedClasses(released(real, labels, 3, noise=1e-3), 10)
    drawn = made.render(labels, 1)
    assert made.classes.tolist() == [0, 1]
    assert (drawn.shape, drawn.dtype) == (real.shape, torch.float32)
    torch.testing.assert_close(drawn.flatten(1).norm(dim=1), torch.ones(4000))
    for label in (0, 1):
        own, other = (each[labels == label].flatten(1) for each in (real, drawn))
        torch.testing.assert_close(own.mean(dim=0), other.mean(dim=0), atol=0.02, rtol=0)
        torch.testing.assert_close(own[:, 2:].std(), other[:, 2:].std(), atol=0.02, rtol=0)


def test_noise_does_not_widen_the_classes():
    real, labels = features(4000, width=4 * SIZE)
    exact, noised = (
        NoisedClasses(
            released(real, labels, 2, noise, np.random.default_rng(0).standard_normal), 10
        )
        for noise in (1e-3, 20.0)
    )
    assert noised.deviation == pytest.approx(exact.deviation, rel=0.1)


def test_features_follow_from_the_kept_statistic_and_the_seed():
    real, labels = features(400)
    noised = released(real, labels, 2, 1.0, np.random.default_rng(0).standard_normal)
    made, again = (
        NoisedClasses(noised, 10),
        NoisedClasses(NoisedSums.from_arrays(vars(noised)), 10),
    )
    assert torch.equal(made.render(labels, 1), again.render(labels, 1))
    assert not torch.equal(made.render(labels, 1), made.render(labels, 2))


@pytest.mark.parametrize(
    ("count", "noise", "fewest", "known"),
    [
        (200, 5.0, 10, [0, 1]),  # 100 images of each class; 10 and two deviations of 5 / 0.2 are 60
        (200, 10.0, 10, []),  # 110 are needed
        (1, 1e-3, 10, []),
        (0, 1.0, 10, []),
    ],
)
def test_classes_of_which_noise_could_be_the_number_are_left_out(count, noise, fewest, known):
    real, labels = features(count)
    made = NoisedClasses(released(real, labels, 2, noise), fewest)
    assert made.classes.tolist() == known


def attack(noise):
    """The ε that a likelihood-ratio attack proves, at δ = 1e-5: a class is a release of its own."""
    trials, z = 40_000, features(1, width=16)[0]
    labels, rng = torch.arange(trials), np.random.default_rng(0)
    canary = scaled(released(z, labels[:1], 1), released(z[:0], labels[:0], 1))

    def scores(count):
        noised = released(
            z.repeat(count, 1, 1, 1), labels[:count], trials, noise, rng.standard_normal
        )
        parts = [SHARES["count"] * noised.counts[:, None], SHARES["sum"] * noised.sums]
        return np.concatenate(parts, axis=1) @ canary / np.linalg.norm(canary) / noise

    threshold = np.linalg.norm(canary) / 2 / noise + 2.5  # chosen before, by calculation
    hits, alarms = (int((scores(count) > threshold).sum()) for count in (trials, 0))
    return prove_epsilon(hits, trials, alarms, trials, 1e-5)


@pytest.mark.slow
def test_the_audited_epsilon_is_below_the_claim_and_half_the_noise_is_caught():
    noise = 1.99381  # ε = 2 at δ = 1e-5
    assert 0.5 < attack(noise) <= 2
    assert attack(noise / 2) > 2
