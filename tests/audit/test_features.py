"""The search for copies, and the attack by class means, on features of a frozen network."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from audit.buffer import attack_buffer
from audit.class_means import class_means_trial, scores
from audit.copies import LEVEL, Auditor
from gan import noised_features
from gan.class_gaussians import ClassGaussians
from learning.samples import Samples
from tests.gan.test_class_gaussians import features

CLASSES, WIDTH = ("healthy", "ill"), 32


def drawn(count, seed, width=WIDTH):
    return features(count, width=width, seed=seed)


def samples(count, seed, width=WIDTH):
    return Samples(*drawn(count, seed, width))


@pytest.fixture(scope="module")
def judge():
    patients = (np.arange(300), np.arange(200))
    held_out = drawn(200, seed=2)
    return Auditor(
        drawn(300, seed=1)[0], *held_out, classes=len(CLASSES), quantile=0.01, patients=patients
    )


def near_copies(features):
    noise = torch.randn(features.shape, generator=torch.Generator().manual_seed(0))
    return normalize(features + 0.2 * normalize(noise))


def mixes(features):
    return normalize(features + 0.5 * features.roll(2, 0))


@pytest.mark.parametrize("change", [lambda x: x, near_copies, mixes])
def test_copies_of_features_are_refused(judge, change):
    training, labels = drawn(300, seed=1)
    assert judge.refuses(change(training[:60]), labels[:60]).float().mean() > 0.9


def test_other_features_pass(judge):
    training, labels = drawn(300, seed=1)
    images = ClassGaussians(training, labels).render(labels, seed=3)
    refused = judge.refuses(images, labels)
    assert refused.float().mean() < 0.05
    assert judge.check(images[~refused], labels[~refused]).passed


def patients_of(count, each, seed):
    """Features of patients, `each` of them with so many images, which are alike."""
    middles, _ = drawn(count, seed)
    views = torch.randn(count * each, WIDTH, 1, 1, generator=torch.Generator().manual_seed(seed))
    return normalize(middles.repeat_interleave(each, 0) + 0.5 * normalize(views))


def test_a_patient_with_many_images_counts_once_in_the_test_of_nearness():
    """Of 60 honest buffers about three have p < 0.05; with 10 images a patient it was half."""
    owners = np.arange(400) // 10
    low = 0
    for seed in range(60):
        training, others = patients_of(40, 10, seed), patients_of(10, 10, 1000 + seed)
        labels = torch.zeros(400, dtype=torch.int64)
        judge = Auditor(
            *(training, others, labels[:100]),
            classes=1,
            quantile=0.01,
            patients=(owners, owners[:100]),
        )
        assert [len(each) for each in judge.equal] == [10, 10]
        made = patients_of(128, 1, 2000 + seed)
        low += judge.check(made, labels[:128]).figures["release-nearer-p"] < 0.05
    assert low <= 9


@pytest.mark.slow
def test_few_patients_with_many_features_are_not_nearer_to_either_half():
    """Of honest buffers the mean p is 0.5, with a standard deviation of 0.29 / √15 = 0.075.

    It was 0.98 when the mean of the training features alone was subtracted. Then half of the
    buffers passed whose features contain a fifth of a training one.
    """
    middle = normalize(torch.randn(256, 1, 1, generator=torch.Generator().manual_seed(99)), dim=0)
    labels, honest, copied = torch.zeros(256, dtype=torch.int64), [], []
    for seed in range(15):
        rng = torch.Generator().manual_seed(seed)
        drawn = normalize(middle + 0.5 / 16 * torch.randn(356, 256, 1, 1, generator=rng))
        training, held_out, made = drawn.split([80, 20, 256])
        judge = Auditor(
            *(training, held_out, labels[:20]),
            classes=1,
            quantile=0.01,
            patients=(np.arange(80), np.arange(20)),
        )
        honest.append(judge.check(made, labels).figures["release-nearer-p"])
        copies = normalize(made + 0.2 * training.repeat(4, 1, 1, 1)[:256])
        copied.append(judge.check(copies, labels).figures["release-nearer-p"])
    assert 0.3 < np.mean(honest) < 0.7
    assert np.mean(np.array(copied) < LEVEL) > 0.9


def test_near_copies_of_features_are_noticed_by_the_attacks():
    members, others = samples(400, 1), samples(800, 2)
    made = ClassGaussians(members.images, members.labels).render(members.labels, 3)
    first = torch.arange(800) // 2 % 2 == 0  # classes are in turn
    halves = others.images[first], others.images[~first]
    found = attack_buffer(members.images, torch.arange(400), halves, made, limit=0.05, seed=0)
    assert found.noticed is not None
    assert not found.leaks


@pytest.mark.parametrize(("seen", "found"), [(True, True), (False, False)])
def test_a_mean_of_few_features_reveals_them(seen, found):
    members, others = samples(16, 1), samples(800, 2)
    fitted = members if seen else samples(16, 5)
    labels = torch.arange(400) % 2
    made = Samples(ClassGaussians(fitted.images, fitted.labels).render(labels, 3), labels)
    halves = [others[torch.arange(800) // 2 % 2 == k] for k in (0, 1)]
    trial = class_means_trial(members, (halves[0], halves[1]), made, reach=1.0)
    assert (trial.worth.attack.auc["low"] > 0.7) == found


def test_correlated_features_reveal_members_as_others_do():
    """Whitened, 64 features of a class of n = 20 members shift the mean score by √(64 / 20) = 1.8.

    With m = 200 references of the class it is 1.7 = 1.8 / √(1 + n / m), so the AUC is 0.88 at most:
    Φ(1.7 / √2). Eight strong directions alone give √(8 / 20): 0.67.
    """
    rng = torch.Generator().manual_seed(0)
    mixing = torch.randn(8, 64, generator=rng)

    def correlated(count, width=64):
        strong = torch.randn(count, 8, generator=rng) @ mixing
        drawn = 20 + strong + torch.randn(count, width, generator=rng)
        return Samples(normalize(drawn)[:, :, None, None], torch.arange(count) % 2)

    areas = []
    for _ in range(5):
        members, others, labels = correlated(40), correlated(800), torch.arange(400) % 2
        made = Samples(ClassGaussians(members.images, members.labels).render(labels, 3), labels)
        halves = [others[torch.arange(800) // 2 % 2 == k] for k in (0, 1)]
        trial = class_means_trial(members, (halves[0], halves[1]), made, reach=1.0)
        areas.append(trial.worth.attack.auc["value"])
    assert 0.8 < np.mean(areas) < 0.9


@pytest.mark.parametrize("count", [400, 100])  # the subspace has 128 directions
@pytest.mark.parametrize("seen", [True, False])
def test_a_mean_in_a_subspace_reveals_them_without_noise(seen, count):
    members, others = samples(24, 1, width=256), samples(800, 2, width=256)
    fitted = members if seen else samples(24, 5, width=256)
    unit, none = np.arange(24), np.zeros
    noised = noised_features.release_features(fitted.images, fitted.labels, 2, 1e-3, none, unit)
    labels = torch.arange(count) % 2
    made = Samples(noised_features.NoisedClasses(noised, 2).render(labels, 3), labels)
    halves = [others[torch.arange(800) // 2 % 2 == k] for k in (0, 1)]
    trial = class_means_trial(members, (halves[0], halves[1]), made, reach=1.0)
    assert (trial.worth.attack.auc["low"] > 0.7) == seen


def test_one_synthetic_feature_of_each_class_can_be_attacked():
    members, others = samples(40, 1), samples(200, 2)
    halves = [others[torch.arange(200) // 2 % 2 == k] for k in (0, 1)]
    trial = class_means_trial(members, (halves[0], halves[1]), members[torch.arange(2)], 0.05)
    assert 0 <= trial.worth.attack.auc["value"] <= 1


def test_features_at_the_mean_of_the_references_give_no_score():
    drawn = samples(40, 0)
    assert scores(samples(8, 1), drawn, drawn).tolist() == [0.0] * 8


def test_an_image_of_a_class_without_references_has_no_score():
    members, others = samples(40, 1), samples(200, 2)
    one = others[others.labels == 0]
    halves = one[torch.arange(50)], one[torch.arange(50, 100)]
    trial = class_means_trial(members[members.labels == 1], halves, members, reach=1.0)
    assert trial.worth.attack.members == 20
    assert trial.worth.attack.tpr["value"] in (0.0, 1.0)  # all members are alike
