"""A multi-layer perceptron."""

from itertools import pairwise
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from learning.models import Architecture


def mlp(architecture: "Architecture") -> nn.Module:
    """Hidden layers with ReLU on the pixels; logistic regression if there are none."""
    pixels = architecture.channels * architecture.height * architecture.width
    widths = (pixels, *architecture.hidden)
    layers: list[nn.Module] = [nn.Flatten()]  # [N, C·H·W]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], architecture.classes))
