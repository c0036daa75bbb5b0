"""Features of a deployed hospital: what a run chooses draws no further random numbers."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from client_app.authority.policy import Policy
from client_app.datasets.pool import LocalSamples
from client_app.release.buffer.class_gaussians import class_gaussians
from gan.synthesis import balanced_labels
from tests.gan.test_class_gaussians import features

REAL, LABELS = features(90, classes=3)


def rendered(samples, learnt=None, size=30, seed=0, of=0):
    """The features of class `of` in a buffer of some classes; None = of all."""
    chosen = range(3) if learnt is None else learnt
    train = LocalSamples(samples.pixels, samples.labels)
    data = SimpleNamespace(train=train)
    hospital = SimpleNamespace(policy=Policy.read(), secret=b"secret", whole=None, data=data)
    part = train[torch.isin(train.labels, torch.tensor([*chosen]))]
    job: Any = SimpleNamespace(hospital=hospital, learnt=part)
    sampler = class_gaussians(job)
    labels = balanced_labels(size * len(chosen), sampler.classes)
    made = torch.cat([sampler.render(labels, seed), sampler.render(labels[:3], seed + 1)])
    return made[torch.cat([labels, labels[:3]]) == of][:20]


def test_what_a_run_chooses_changes_no_random_number():
    usual = LocalSamples(REAL, LABELS)
    first = rendered(usual)
    assert torch.equal(rendered(usual, seed=7), first)
    assert torch.equal(rendered(usual, size=40), first)  # the beginning of a larger buffer
    assert torch.equal(rendered(usual, size=19), first)  # the last one was drawn again
    assert torch.equal(rendered(usual, learnt=[0, 2]), first)
    assert torch.equal(rendered(usual, learnt=[0]), first)
    renamed = LocalSamples(REAL, 2 - LABELS)
    torch.testing.assert_close(rendered(renamed, of=2), first)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(rendered(LocalSamples(REAL[order], LABELS[order])), first)


@pytest.mark.parametrize("of_class", [0, 1])
def test_another_image_changes_all_random_numbers(of_class):
    """Also one of another class: the same numbers with other variances would reveal the mean."""
    usual = LocalSamples(REAL, LABELS)
    other = REAL.clone()
    other[of_class] = REAL[of_class].flip(0)
    apart = rendered(replace(usual, pixels=other)) - rendered(usual)
    assert apart.flatten(1).norm(dim=1).min() > 0.01
