"""Intervals against bootstraps made by hand, and the interval's coverage."""

from typing import Any

import numpy as np
import pytest
import torch

from learning.assessment import (
    THRESHOLDS,
    Bootstrap,
    Outcome,
    Sureness,
    count_above,
    operating_point,
)
from learning.evaluation import score
from learning.intervals import combine, wilson


def outcome_of(rng, patients, classes=3, images=4, better=0.6):
    """Patients with 1 to `images` images each, of one class; a model that knows some of it."""
    sizes = rng.integers(1, images + 1, patients)
    labels = np.repeat(rng.integers(0, classes, patients), sizes)
    luck = np.repeat(rng.random((patients, 1)) < 0.5, sizes, axis=0)  # of all images of a patient
    scores = rng.dirichlet(np.ones(classes), len(labels))
    scores[np.arange(len(labels)), labels] += better * luck[:, 0]
    scores /= scores.sum(axis=1, keepdims=True)
    owner = np.repeat(np.arange(patients), sizes)
    return Outcome(scores, labels, owner, np.full(classes, 0.4))


def by_hand(outcome, rng, resamples=400):
    """The ends of 95 % of resamples of patients, and their standard deviations, image by image."""
    drawn = []
    for _ in range(resamples):
        chosen = rng.integers(outcome.patients.max() + 1, size=outcome.patients.max() + 1)
        images = np.concatenate([np.flatnonzero(outcome.patients == each) for each in chosen])
        scores, labels = outcome.scores[images], outcome.labels[images]
        figures = score(torch.from_numpy(scores), torch.from_numpy(labels))
        reached = scores[:, 1] >= 0.4
        off = (scores.argmax(axis=1) == labels) - scores.max(axis=1)
        bins = np.minimum((scores.max(axis=1) * 10).astype(int), 9)
        errors = [abs(off[bins == b].sum()) for b in range(10)]
        drawn.append(
            {
                **{name: figures[name] for name in ("accuracy", "balanced-accuracy", "auroc")},
                "recall-of-class-1": (scores.argmax(axis=1) == 1)[labels == 1].mean(),
                "sensitivity-of-class-1": reached[labels == 1].mean(),
                "specificity-of-class-1": (~reached)[labels != 1].mean(),
                "calibration-error": sum(errors) / len(labels),
            }
        )
    return {
        name: (*np.quantile(values, [0.025, 0.975]), np.std(values))
        for name in drawn[0]
        for values in [[each[name] for each in drawn]]
    }


def estimates(sureness):
    outcome = sureness.outcome
    exact = score(torch.from_numpy(outcome.scores), torch.from_numpy(outcome.labels))
    whole = outcome.shares
    values = whole.right.sum(axis=1) / whole.images.sum(axis=1)
    shares = dict(zip(whole.names, values, strict=True))
    found = {name: sureness.estimate_share(name, value) for name, value in shares.items()}
    recalls = [found[name] for name in shares if name.startswith("recall-")]
    weights = [1 / len(recalls)] * len(recalls)
    found["balanced-accuracy"] = combine(weights, recalls, sureness.correlation())
    found["auroc"] = sureness.estimate_auroc(exact["auroc"])
    found["calibration-error"] = sureness.estimate_calibration_error(outcome.calibration_error)
    return found, exact


def test_intervals_are_those_of_a_bootstrap_by_hand():
    """Each end is within 0.4 standard errors of that of the hand-made one, which has errors too."""
    outcome = outcome_of(np.random.default_rng(0), 100)
    sureness = Sureness(outcome, Bootstrap.draw(outcome, np.random.default_rng(1)))
    found, exact = estimates(sureness)
    for name, (low, high, error) in by_hand(outcome, np.random.default_rng(2)).items():
        if name == "calibration-error":  # a resample's is larger than that of the images
            continue
        assert found[name]["low"] == pytest.approx(low, abs=0.4 * error), name
        assert found[name]["high"] == pytest.approx(high, abs=0.4 * error), name
        half = (found[name]["high"] - found[name]["low"]) / 2
        assert half == pytest.approx(1.96 * error, rel=0.15), name
    for name in ("accuracy", "balanced-accuracy", "auroc"):
        assert found[name]["value"] == pytest.approx(exact[name])


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("patients", "each"), [(60, 1), (300, 1), (60, 5)])
def test_the_interval_of_the_calibration_error_has_0_for_a_calibrated_model(patients, each, exact):
    """The value itself is far from 0. The images of a patient have the same answer."""
    held = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        sure = rng.uniform(0.5, 1, patients)
        right = np.repeat(rng.random(patients) < sure, each)
        scores = np.repeat(np.stack([sure, 1 - sure], axis=1), each, axis=0)
        patient = np.repeat(np.arange(patients), each)
        outcome = Outcome(scores, (~right).astype(int), patient, np.full(2, np.nan))
        bootstrap = Bootstrap.draw(outcome, rng) if exact else None
        value = outcome.calibration_error
        held += Sureness(outcome, bootstrap).estimate_calibration_error(value)["low"] == 0
    assert held >= 34


def test_without_the_bootstrap_an_interval_is_never_narrower_for_long():
    """It takes all images of a patient as alike; here about half of the answers are."""
    outcome = outcome_of(np.random.default_rng(3), 200)
    boot = Sureness(outcome, Bootstrap.draw(outcome, np.random.default_rng(1)))
    narrow, wide = (estimates(each)[0] for each in (boot, Sureness(outcome)))
    for name in ("accuracy", "balanced-accuracy", "auroc", "sensitivity-of-class-1"):
        lengths = [each[name]["high"] - each[name]["low"] for each in (narrow, wide)]
        assert lengths[0] < 1.05 * lengths[1], name


@pytest.mark.parametrize(("images", "right"), [(2, 1), (3, 1), (3, 2), (5, 1), (6, 1), (7, 3)])
def test_where_all_patients_are_alike_patients_count_and_not_images(images, right):
    """Of each of 20 patients the same share is right, so it is the same in every resample."""
    here = np.tile(np.arange(images) < right, 20)
    labels = np.repeat([0, 1], 10 * images)
    scores = np.where((here == (labels == 0))[:, None], [0.9, 0.1], [0.1, 0.9])
    patients = np.repeat(np.arange(20), images)
    outcome = Outcome(scores, labels, patients, np.full(2, np.nan))
    sureness = Sureness(outcome, Bootstrap.draw(outcome, np.random.default_rng(0)))
    share = right / images
    for name, count in (("accuracy", 20), ("recall-of-class-0", 10)):
        assert sureness.estimate_share(name, share) == wilson(share, count)
    assert sureness.correlation().tolist() == np.eye(2).tolist()


def test_ties_count_half_in_resamples_too():
    """A model that always says the same has an AUROC of 0.5 in every resample."""
    labels = np.array([0, 1] * 10)
    scores = np.full((20, 2), 0.5)
    outcome = Outcome(scores, labels, np.arange(20), np.full(2, np.nan))
    areas = Bootstrap.draw(outcome, np.random.default_rng(0)).areas
    assert np.allclose(areas[np.isfinite(areas)], 0.5)


def test_an_operating_point_has_the_largest_j():
    """By hand, at 0.3: 3 of 4 images of class 1 reach it and 1 of 6 others, 0.58; at 0.1 4 and 4.

    A model that knows all images by heart separates them at any threshold: the middle one is taken.
    """
    ones = np.array([0.35, 0.4, 0.2, 0.45, 0.05, 0.2, 0.2, 0.2, 0.35, 0.01])
    labels = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
    own, others = count_above(np.stack([1 - ones, ones], axis=1), labels)
    assert operating_point(own, others, np.array([6.0, 4.0]))[1] == 0.3
    own, others = count_above(np.eye(2)[labels], labels)
    assert operating_point(own, others, np.array([6.0, 4.0])).tolist() == [0.5, 0.5]
    alone = operating_point(own, others, np.array([0.0, 10.0]))
    assert np.isnan(alone).all()
    assert 0.5 in THRESHOLDS


def test_of_twenty_intervals_about_one_misses():
    """60 draws of 40 patients of a known rate: coverage of 0.95, ± 2.5 standard deviations."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(60):
        right = rng.random(40) < 0.9
        scores: Any = np.stack([right, ~right], axis=1) * 0.8 + 0.1
        outcome = Outcome(scores, np.zeros(40, int), np.arange(40), np.full(2, np.nan))
        sureness = Sureness(outcome, Bootstrap.draw(outcome, rng))
        found = sureness.estimate_share("accuracy", right.mean())
        hits += found["low"] <= 0.9 <= found["high"]
    assert hits / 60 > 0.95 - 2.5 * np.sqrt(0.95 * 0.05 / 60)


@pytest.mark.parametrize("area", [0.55, 0.6, 0.7, 0.8, 0.9, 0.95])
def test_without_a_bootstrap_intervals_tell_no_exact_number_of_patients(area):
    """Of 100 or 110 patients a class has 90.5, whatever the AUROC."""
    told = set()
    for size in (100, 110):
        labels, patients = np.repeat([0, 1], size), np.arange(2 * size)
        scores = np.full((2 * size, 2), 0.5)
        sureness = Sureness(Outcome(scores, labels, patients, np.array([0.5, 0.5])))
        told.add(tuple(sureness.estimate_auroc(area).values()))
        assert {*sureness.worth.values()} == {2**6.5, 2**7.5}
    assert len(told) == 1
