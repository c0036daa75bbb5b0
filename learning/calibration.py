"""Temperature scaling: probabilities that mean what they say.

Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", ICML 2017,
arXiv:1706.04599: softmax(z / T) with the one T > 0 that makes the labels of held-out images most
probable. The predicted classes stay. The log of a softmax is z but for a constant, so it does for
z; of an ensemble that is the log of the mean probability (pool, then calibrate: Rahaman and Thiery,
arXiv:2007.08792). Shapes: `N` images, `K` classes.
"""

import torch
from scipy.optimize import brentq
from torch import Tensor

LOWEST, HIGHEST = 0.05, 20.0  # where all images are right, or all wrong, no T is best


def fit_temperature(scores: Tensor, labels: Tensor, lowest: float = LOWEST) -> float:
    """The temperature that suits the probabilities [N, K] of images with labels [N].

    The loss is convex in 1 / T: its slope, the mean over images of what z is expected to be less
    what it is at the label, grows with 1 / T.

    Args:
        scores: Probabilities.
        labels: What the images show.
        lowest: No temperature below this one; with 1.0 a model becomes no surer than it was.
    """
    logits = _logits(scores)
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
    """Probabilities [N, K] at a temperature; 1 leaves them as they are."""
    return (_logits(scores) / temperature).softmax(dim=1)


def _logits(scores: Tensor) -> Tensor:
    """The log of probabilities; of those that are rounded to 0, of the least positive number."""
    return scores.double().clamp(min=torch.finfo(torch.float32).tiny).log()
