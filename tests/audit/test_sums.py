"""Attacks on sums of features, where an answer is known."""

import numpy as np
import pytest
import torch

from audit.sums import Features, Moments, audit_sums
from learning.errors import DeadlineError

WIDTH, CHANCE = 12, pytest.approx(0.5, abs=0.1)


def features(count, seed, patients=None):
    """Random features of norm 1 of two classes; members and others have the same distribution."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((count, WIDTH))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    owners = np.arange(count) if patients is None else patients
    labels = np.arange(count) % 2
    tensors = (torch.from_numpy(each) for each in (z, labels, owners, np.ones(count)))
    return Features(*tensors)


def moments(images, noise=0.0, seed=0):
    """The sums of images, and their noise."""
    rng = np.random.default_rng(seed)
    parts = [images.select_class(c) for c in (0, 1)]
    exact = (
        torch.tensor([float(len(z)) for z in parts]),
        torch.stack([z.sum(dim=0) for z in parts]),
        torch.stack([z.T @ z for z in parts]),
    )
    drawn = [noise * torch.from_numpy(rng.standard_normal(each.shape)) for each in exact]
    drawn[2] = drawn[2].triu() + drawn[2].triu(1).transpose(1, 2)
    return Moments(*(a + b for a, b in zip(exact, drawn, strict=True))), Moments(*drawn)


def attack(sums, members, others):
    """The AUC of each attack."""
    sent, noise = sums
    report = audit_sums(sent, noise, members, others, np.random.default_rng(0))
    return {name: found["attack"]["auc"]["value"] for name, found in report.evidence.items()}


def attack_many(count, others, noise=0.0):
    members = features(count, 1)
    return attack(moments(members, noise), members, features(others, 2))


def test_few_exact_sums_reveal_every_image():
    """Ten images of a class span fewer than twelve dimensions."""
    found = attack_many(20, 60)
    assert found["difference"] == found["span"] == 1
    assert found["likelihood"] > 0.7


def test_totals_reveal_every_image_of_a_class_with_fewer_images_than_features():
    """Three hospitals have together 9 images of each class, in 12 dimensions; or 15."""
    for count, certain in ((6, True), (10, False)):
        members, *others = (features(count, seed) for seed in (1, 3, 4))
        totals = moments(members)[0]
        for each in others:
            parts = vars(moments(each)[0])
            totals = Moments(*(vars(totals)[name] + parts[name] for name in parts))
        nothing = moments(members)[1]
        found = audit_sums(totals, nothing, members, features(60, 2), np.random.default_rng(0))
        span = found.evidence.get("span")
        assert (span is not None and span["attack"]["auc"]["value"] == 1) is certain


def test_many_exact_sums_hide_all_but_the_difference():
    found = attack_many(4000, 1000)
    assert found["difference"] == 1
    assert found["likelihood"] == CHANCE
    assert "span" not in found


def test_a_large_class_does_not_hide_the_span_of_a_small_one():
    """Six members of class 1; the 400 of class 0 are in a span of all dimensions."""
    many, others = features(800, 1), features(60, 2)
    members = many[(many.labels == 0) | (torch.arange(800) < 12)]
    assert attack(moments(members), members, others)["span"] == 1


def test_noise_hides_the_difference_too():
    weak, strong = (attack_many(400, 400, noise) for noise in (0.3, 20.0))
    assert weak["difference"] > 0.7
    assert strong["difference"] == CHANCE


def test_sums_of_other_images_reveal_nothing():
    """The control: neither kind of image is in the sums."""
    found = attack(moments(features(20, 3)), features(200, 1), features(200, 2))
    assert found["span"] == CHANCE
    assert found["likelihood"] == CHANCE


def test_a_patient_with_many_images_counts_once():
    """The attack by difference scores one image of a patient, and so do the others."""
    members, others = (features(200, seed, np.arange(200) // 10) for seed in (1, 2))
    sent, noise = moments(members)
    report = audit_sums(sent, noise, members, others, np.random.default_rng(0))
    for name in ("difference", "likelihood"):
        assert report.evidence[name]["attack"]["members"] == 20
    assert report.evidence["likelihood"]["attack"]["others"] == 20


def test_a_class_without_held_out_images_is_not_attacked():
    members, others = features(20, 1), features(2, 2)
    sent, noise = moments(members)
    one, none = (Features(*(each[:n] for each in vars(others).values())) for n in (1, 0))
    report = audit_sums(sent, noise, members, one, np.random.default_rng(0))
    assert report.evidence["span"]["attack"]["members"] == 10
    report = audit_sums(sent, noise, members, none, np.random.default_rng(0))
    assert report.evidence == {}


def test_a_deadline_ends_the_attacks():
    members = features(20, 1)
    sent, noise = moments(members)
    rng = np.random.default_rng(0)
    with pytest.raises(DeadlineError):
        audit_sums(sent, noise, members, features(20, 2), rng, deadline=0.0)
