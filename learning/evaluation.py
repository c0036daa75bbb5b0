"""The test performance of a model at a hospital. Only the figures leave this file."""

from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from learning.errors import check_deadline

# Pixel values in one batch: enough to keep a device busy, few enough for its memory.
BATCH_VALUES = 2**23


@torch.inference_mode()
def probabilities(model: nn.Module, images: Tensor, deadline: float) -> Tensor:
    """The model's probabilities [N, K] of the classes for images uint8 [N, C, H, W], N >= 0.

    They are NaN for an image with an output of NaN or +∞.

    Raises:
        DeadlineError: The deadline has passed, on the clock of `time.monotonic`.
    """
    model.eval()
    logits = []
    for batch in split(images):
        check_deadline(deadline, "Evaluation")
        logits.append(model(batch))
    return torch.cat(logits).softmax(dim=1)


def split(images: Tensor) -> tuple[Tensor, ...]:
    """Images [n, ...], cut into batches of `batch_size`."""
    return torch.split(images, batch_size(prod(images.shape[1:])))


def batch_size(values: int) -> int:
    """The number of images in a batch, for images of `values` pixel values."""
    return max(1, BATCH_VALUES // values)


def score(scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy, balanced accuracy and AUROC of class scores [N, K] against labels [N].

    They are fractions in [0, 1]; the AUROC is missing if the labels are all the same. Balanced
    accuracy is the mean recall of the classes that occur in the labels. AUROC is the mean over
    these classes of one class against the rest, ties counting half (Hand and Till, 2001, 3.1).
    """
    values, truth = scores.cpu().numpy(), labels.cpu().numpy()  # sorts much faster than torch
    right = values.argmax(axis=1) == truth
    metrics = {"num-examples": float(len(truth)), "accuracy": float(right.mean())}
    classes = np.unique(truth)
    member = truth == classes[:, None]  # [present, N]
    own = member.sum(axis=1)
    metrics["balanced-accuracy"] = float(((member & right).sum(axis=1) / own).mean())
    if len(classes) > 1:
        metrics["auroc"] = float(areas(values, truth, np.ones((len(truth), 1)))[0].mean())
    return metrics


def count_right(scores: Tensor, labels: Tensor) -> dict[str, float]:
    """The number of images of each class, and the number of right answers among them."""
    right = labels[scores.argmax(dim=1) == labels]
    counts: dict[str, float] = {}
    for name, found in (("images", labels), ("right", right)):
        per_class = found.bincount(minlength=scores.shape[1]).tolist()
        counts |= {f"{name}-of-class-{k}": float(count) for k, count in enumerate(per_class)}
    return counts


def areas(
    scores: NDArray[np.floating], labels: NDArray[np.int64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The AUROC [b, P] of each of the P classes in labels [N], with weights [N, b] of images.

    It is that of one class against the rest, from class scores [N, K], ties counting half (Mann and
    Whitney, 1947). It is NaN if one of both has no weight.
    """
    found = []  # sklearn.metrics.roc_auc_score would sort anew for each column of weights
    for k in np.unique(labels):
        own, others = (np.flatnonzero((labels == k) == is_own) for is_own in (True, False))
        others = others[np.argsort(scores[others, k], kind="stable")]
        sums = np.zeros((len(others) + 1, weights.shape[1]))  # of the lowest scores
        np.cumsum(weights[others], axis=0, out=sums[1:])
        inside, ordered = weights[own], scores[others, k]
        below, up_to = (
            sums[np.searchsorted(ordered, scores[own, k], side)] for side in ("left", "right")
        )
        wins = (inside * (below + up_to)).sum(axis=0) / 2
        found.append(wins / (inside.sum(axis=0) * sums[-1]))
    return np.stack(found, axis=1)
