"""Networks for small images: a perceptron, a convolutional network, and a ResNet-18."""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from learning.models import Architecture

CNN_WIDTHS = (16, 32, 64, 128)


def mlp(architecture: "Architecture") -> nn.Sequential:
    """Hidden layers with ReLU on the pixels; logistic regression if there are none."""
    pixels = architecture.channels * architecture.height * architecture.width
    widths = (pixels, *architecture.hidden)
    layers: list[nn.Module] = [nn.Flatten()]  # [N, C·H·W]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], architecture.classes))


def cnn(architecture: "Architecture") -> nn.Sequential:
    """Four convolutions with BatchNorm that halve the image each, and a linear layer.

    For images of 8x8 to 256x256 pixels.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((architecture.channels, *CNN_WIDTHS)):
        layers += [
            nn.Conv2d(inputs, outputs, kernel_size=3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
    return nn.Sequential(
        *layers,  # [N, 128, H/16, W/16]
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),  # [N, 128]
        nn.Linear(CNN_WIDTHS[-1], architecture.classes),
    )


def resnet18_32(architecture: "Architecture") -> Any:
    """A ResNet-18 for images of 32 x 32 pixels: torchvision's with a 3x3 stem and no pooling.

    As mammoth has it for CIFAR. The stem keeps the size of the image.
    """
    from torchvision.models import resnet18  # its import takes seconds

    network: Any = resnet18(num_classes=architecture.classes)
    network.conv1 = nn.Conv2d(architecture.channels, 64, kernel_size=3, padding=1, bias=False)
    network.maxpool = nn.Identity()
    return network
