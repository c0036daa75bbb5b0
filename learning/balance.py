"""The weight of an image in the loss: the settings `train.class-balance` and `train.focal-gamma`.

If one photograph in ten shows a melanoma, a network soon learns to answer no. Here all classes have
the same weight: in the loss, or in the number of draws.
"""

import torch
from torch import Tensor
from torch.nn import functional


def class_weights(labels: Tensor) -> Tensor:
    """The weight of an image of each class up to the largest label, from labels int64 [n].

    It is n / (number of classes that occur · images of the class), and 0 for an absent class. So
    the total is n, and equal for all classes.
    """
    counts = labels.bincount()
    occurring = (counts > 0).sum()
    return (len(labels) / (occurring * counts)).nan_to_num(posinf=0.0)


def focal_losses(logits: Tensor, labels: Tensor, gamma: float) -> Tensor:
    """The focal losses [N] of logits [N, K]: an image that is already right has little weight.

    Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, eq. 4, without its weights of
    classes: -(1 - p)^γ log p, with p the probability of the label. γ = 0 is cross-entropy.
    """
    losses = functional.cross_entropy(logits, labels, reduction="none")
    if not gamma:
        return losses
    wrong = 1 - (-losses).exp()
    if gamma < 1:  # at 0 the slope of the power is infinite
        wrong = wrong.clamp(min=torch.finfo(wrong.dtype).tiny)
    return wrong**gamma * losses
