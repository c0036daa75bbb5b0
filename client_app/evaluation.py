"""How good a model is on a hospital's test images. Nothing but the figures leaves this file."""

import time

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import nn

from client_app.datasets import LocalData
from client_app.training import DeadlineError, normalise

# Values of the images in one batch: enough to keep a device busy, little enough for its memory.
BATCH_VALUES = 2**23


@torch.inference_mode()
def evaluate(model: nn.Module, data: LocalData, deadline: float) -> dict[str, float]:
    """Accuracy, balanced accuracy and AUROC, as fractions in [0, 1].

    Args:
        model: Maps [N, C, H, W] in [-1, 1] to logits [N, K].
        data: The hospital's images, on the model's device.
        deadline: When to give up, in the time of `time.monotonic`.

    Returns:
        The metrics by name; `auroc` is missing if the labels are all the same.

    Raises:
        DeadlineError: The deadline has passed.
    """
    model.eval()
    images, labels = data.test_images, data.test_labels
    batch_size = max(1, BATCH_VALUES // images[0].numel())
    logits = []
    for batch in images.split(batch_size):
        if time.monotonic() > deadline:
            raise DeadlineError("Evaluation took longer than allowed (hop-timeout).")
        logits.append(model(normalise(batch)))
    scores = torch.cat(logits).softmax(dim=1)  # [N, K]
    return score(scores.cpu().numpy(), labels.cpu().numpy())


def score(scores: NDArray[np.floating], labels: NDArray[np.int64]) -> dict[str, float]:
    """Metrics of class scores [N, K] against labels [N].

    Balanced accuracy is the mean recall of the classes that occur in the labels. AUROC is the mean
    over these classes of one class against the rest, ties counting half (Hand and Till, 2001, 3.1).
    """
    right = scores.argmax(axis=1) == labels
    metrics = {"num-examples": float(len(labels)), "accuracy": float(right.mean())}
    present = np.unique(labels)
    metrics["balanced-accuracy"] = float(np.mean([right[labels == c].mean() for c in present]))
    if len(present) > 1:
        ranks = rankdata(scores[:, present], axis=0)  # from 1; [N, present]
        positive = labels[:, None] == present  # [N, present]
        wins = (ranks * positive).sum(0) - positive.sum(0) * (positive.sum(0) + 1) / 2
        metrics["auroc"] = float(np.mean(wins / (positive.sum(0) * (~positive).sum(0))))
    return metrics
