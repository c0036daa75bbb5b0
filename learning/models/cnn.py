"""A small convolutional network for images of 8x8 to 256x256 pixels, quick on a CPU core."""

from itertools import pairwise
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from learning.models import Architecture

WIDTHS = (16, 32, 64, 128)


def cnn(architecture: "Architecture") -> nn.Module:
    """Four convolutions with BatchNorm, each of which halves the image, and a linear layer."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((architecture.channels, *WIDTHS)):
        layers += [
            nn.Conv2d(inputs, outputs, kernel_size=3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
    return nn.Sequential(
        *layers,  # [N, 128, H/16, W/16]
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),  # [N, 128]
        nn.Linear(WIDTHS[-1], architecture.classes),
    )
