"""A mixture of models: the weights that suit a hospital's own images.

Jacobs, Jordan, Nowlan and Hinton, "Adaptive mixtures of local experts", Neural Computation 3, 1991,
with gates that are the same for all images. Shapes: `M` models, `N` images, `K` classes.
"""

import torch
from torch import Tensor

from learning.balance import class_weights

STEPS = 300  # of expectation maximisation; the likelihood never falls


def mixture_weights(scores: Tensor, labels: Tensor) -> Tensor:
    """The weights of models that make labels most probable; all classes count the same.

    The log-likelihood is concave in the weights, so there is one best answer.

    Args:
        scores: Probabilities [M, N, K] of images by each model.
        labels: True classes, int64 [N].

    Returns:
        Weights that sum to 1, float64 [M].
    """
    given = scores.double()[:, torch.arange(len(labels)), labels].clamp(min=1e-6)  # [M, N]
    counts = class_weights(labels).double()[labels]  # sum to N
    weights = given.new_full((len(given),), 1 / len(given))
    for _ in range(STEPS):
        shares = weights[:, None] * given
        weights = (shares / shares.sum(dim=0) * counts).sum(dim=1) / counts.sum()
    return weights
