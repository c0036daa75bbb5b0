"""A mixture of models: the weights that suit a hospital's own images.

Jacobs, Jordan, Nowlan and Hinton, "Adaptive mixtures of local experts", Neural Computation 3, 1991,
with gates that are the same for all images. Shapes: `M` models, `N` images, `K` classes.
"""

import torch
from torch import Tensor

from learning.balance import class_weights

STEPS = 300  # of expectation maximisation; the likelihood never falls


def mixture_weights(scores: Tensor, labels: Tensor) -> Tensor:
    """The weights float64 [M] of models, with a sum of 1, that make true classes most probable.

    All classes count the same. The log-likelihood is concave in the weights, so there is one best
    answer. `scores` are the models' probabilities [M, N, K]; NaN counts as 0. Labels are int64 [N].
    """
    chances = (
        scores.double().nan_to_num()[:, torch.arange(len(labels)), labels].clamp(min=1e-6)
    )  # [M, N]
    counts = class_weights(labels).double()[labels]  # sum to N
    weights = chances.new_full((len(chances),), 1 / len(chances))
    for _ in range(STEPS):
        shares = weights[:, None] * chances
        weights = (shares / shares.sum(dim=0) * counts).sum(dim=1) / counts.sum()
    return weights
