"""Temperature scaling: calibrated probabilities.

Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", ICML 2017,
arXiv:1706.04599: softmax(z / T), with the T > 0 that makes the labels of held-out images most
probable. The predicted classes stay. The log of a softmax equals z up to a constant, and replaces
z. For an ensemble it is the log of the mean probability (pool, then calibrate: Rahaman and Thiery,
arXiv:2007.08792). Shapes: `N` images, `K` classes.
"""

import torch
from scipy.optimize import brentq
from torch import Tensor

LOWEST, HIGHEST = 0.05, 20.0  # limits of T: if all images are right, or all wrong, none is best


def fit_temperature(scores: Tensor, labels: Tensor, lowest: float = LOWEST) -> float:
    """The temperature, at least `lowest`, that fits probabilities [N, K] to true classes [N].

    The loss is convex in 1 / T. Its slope grows with 1 / T: it is the mean over images of the
    expected z minus the z of the label. With a `lowest` of 1 a model becomes no more confident. An
    image with NaN does not count.
    """
    logits = _logits(scores.nan_to_num())
    at_label = logits.gather(1, labels[:, None]).mean()

    def slope(sharpness: float) -> float:
        expected = ((sharpness * logits).softmax(dim=1) * logits).sum(dim=1).mean()
        return float(expected - at_label)

    if slope(1 / lowest) <= 0:
        return lowest
    if slope(1 / HIGHEST) >= 0:
        return HIGHEST
    return float(1 / brentq(slope, 1 / HIGHEST, 1 / lowest, xtol=1e-15))


def temper(scores: Tensor, temperature: float) -> Tensor:
    """Probabilities [N, K] at a temperature; 1 changes nothing."""
    return (_logits(scores) / temperature).softmax(dim=1)


def _logits(scores: Tensor) -> Tensor:
    """The log of probabilities, which count as no less than the least positive float32."""
    return scores.double().clamp(min=torch.finfo(torch.float32).tiny).log()
