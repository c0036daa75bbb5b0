import time

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch import nn

from learning.errors import DeadlineError
from learning.evaluation import probabilities, score
from learning.models.pixels import scale_input
from learning.samples import Samples


def test_metrics_by_hand():
    """Four images of classes 0, 0, 0, 1; the scores of class 1 are .1 .2 .8 .7.

    Right are the first, second and fourth: accuracy 3/4. Recalls 2/3 and 1/1: balanced 5/6.
    Class 1: its .7 beats .1 and .2 but not .8, AUROC 2/3; with two classes class 0 has the same.
    """
    ones = torch.tensor([0.1, 0.2, 0.8, 0.7])
    metrics = score(torch.stack([1 - ones, ones], dim=1), torch.tensor([0, 0, 0, 1]))
    assert metrics["accuracy"] == 3 / 4
    assert metrics["balanced-accuracy"] == pytest.approx(5 / 6)
    assert metrics["auroc"] == pytest.approx(2 / 3)
    assert metrics["num-examples"] == 4


def test_metrics_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 200)
    scores = rng.dirichlet(np.ones(4), 200).round(2).astype(np.float32)  # rounded: ties
    metrics = score(torch.from_numpy(scores), torch.from_numpy(labels))
    aurocs = [roc_auc_score(labels == c, scores[:, c]) for c in range(4)]
    assert metrics["auroc"] == pytest.approx(np.mean(aurocs))
    expected = balanced_accuracy_score(labels, scores.argmax(1))
    assert metrics["balanced-accuracy"] == pytest.approx(expected)


def test_classes_that_are_not_there_do_not_count():
    """Class 2 of 3 is missing: recalls 1 and 0, AUROC 1 for both; nothing is NaN."""
    scores = torch.tensor([[0.9, 0.1, 0.0], [0.4, 0.2, 0.4]])
    metrics = score(scores, torch.tensor([0, 1]))
    assert metrics["balanced-accuracy"] == 0.5
    assert metrics["auroc"] == 1.0


def test_one_class_alone_has_no_auroc():
    assert "auroc" not in score(torch.tensor([[0.9, 0.1]]), torch.tensor([0]))


def data(count=5):
    images = torch.arange(count * 16, dtype=torch.uint8).view(count, 1, 4, 4)
    labels = torch.arange(count) % 2
    return Samples(images, labels)


def test_batches_change_nothing(monkeypatch):
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    scale_input(network, "unit")
    images = data().images
    whole = probabilities(network, images, time.monotonic() + 60)
    monkeypatch.setattr("learning.evaluation.BATCH_VALUES", 1)
    torch.testing.assert_close(probabilities(network, images, time.monotonic() + 60), whole)
    assert whole.sum(dim=1).tolist() == pytest.approx([1.0] * 5)


def test_a_deadline_is_kept():
    with pytest.raises(DeadlineError, match="hop-timeout"):
        probabilities(nn.Flatten(), data().images, time.monotonic() - 1)
