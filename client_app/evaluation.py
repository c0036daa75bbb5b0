"""How good a model is on a hospital's test images. Nothing but the figures leaves this file."""

import time

import torch
from torch import Tensor, nn

from client_app.errors import DeadlineError
from client_app.models import normalise

# Values of the images in one batch: enough to keep a device busy, little enough for its memory.
BATCH_VALUES = 2**23


@torch.inference_mode()
def probabilities(model: nn.Module, images: Tensor, deadline: float) -> Tensor:
    """The model's probability of each class for each image.

    Args:
        model: Maps [N, C, H, W] in [-1, 1] to logits [N, K].
        images: uint8 [N, C, H, W], on the model's device.
        deadline: When to give up, in the time of `time.monotonic`.

    Returns:
        [N, K].

    Raises:
        DeadlineError: The deadline has passed.
    """
    model.eval()
    batch_size = max(1, BATCH_VALUES // images[0].numel())
    logits = []
    for batch in images.split(batch_size):
        if time.monotonic() > deadline:
            raise DeadlineError("Evaluation took longer than allowed (hop-timeout).")
        logits.append(model(normalise(batch)))
    return torch.cat(logits).softmax(dim=1)


def score(scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy, balanced accuracy and AUROC of class scores [N, K] against labels [N].

    They are fractions in [0, 1]; the AUROC is missing if the labels are all the same. Balanced
    accuracy is the mean recall of the classes that occur in the labels. AUROC is the mean over
    these classes of one class against the rest, ties counting half (Hand and Till, 2001, 3.1).
    """
    right = (scores.argmax(dim=1) == labels).double()
    metrics = {"num-examples": float(len(labels)), "accuracy": right.mean().item()}
    classes = labels.unique()
    member = (labels == classes[:, None]).double()  # [present, N]
    metrics["balanced-accuracy"] = ((member @ right) / member.sum(dim=1)).mean().item()
    if len(classes) > 1:
        # AUROC from the ranks of the class' own images (Mann and Whitney, 1947).
        own, others = member.sum(dim=1), (1 - member).sum(dim=1)
        wins = (member * ranks(scores[:, classes].T)).sum(dim=1) - own * (own + 1) / 2
        metrics["auroc"] = (wins / (own * others)).mean().item()
    return metrics


def count_right(scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Of each class the number of images, and of those that the model gets right."""
    right = labels[scores.argmax(dim=1) == labels]
    counts: dict[str, float] = {}
    for name, found in (("images", labels), ("right", right)):
        per_class = found.bincount(minlength=scores.shape[1]).tolist()
        counts |= {f"{name}-of-class-{k}": float(count) for k, count in enumerate(per_class)}
    return counts


def ranks(rows: Tensor) -> Tensor:
    """The rank of each value within its row, from 1; equal values share their mean rank."""
    rows = rows.contiguous()
    ordered = rows.sort(dim=1).values
    below = torch.searchsorted(ordered, rows)
    not_above = torch.searchsorted(ordered, rows, right=True)
    return (below + not_above + 1) / 2
