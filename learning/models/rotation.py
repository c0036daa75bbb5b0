"""PASS's networks: they classify images and, in training, also the rotation of an image.

Zhu et al., "Prototype augmentation and self-supervision for incremental learning", CVPR 2021: a
body gives the features of an image, and a linear layer of 4K outputs follows. Output 4y + k is
class y rotated by k quarters. `forward` gives [N, K], the outputs 4y: without rotation. Learners
that train all outputs (learning/learners/prototypes.py) call `features` and `head`.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor, nn

from learning.models.pixels import SCALES
from learning.models.small import cnn, mlp, resnet18_32

if TYPE_CHECKING:
    from learning.models import Architecture

TURNS = 4


class RotationNetwork(nn.Module):
    """A body, scaled images [N, C, H, W] -> [N, d = `width`], and a head of 4K outputs.

    Raises:
        ValueError: The images are not square.
    """

    def __init__(self, architecture: "Architecture", body: nn.Module, width: int) -> None:
        super().__init__()
        if architecture.height != architecture.width:
            raise ValueError("images that are turned must be square")
        self.scale = SCALES[architecture.pixels]
        self.body = body
        self.head = nn.Linear(width, TURNS * architecture.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Scaled images [N, C, H, W] -> logits [N, K]."""
        logits: Tensor = self.head(self.body(images))
        return logits[:, ::TURNS]

    def features(self, images: Tensor) -> Tensor:
        """Images as bytes, uint8 [N, C, H, W] -> [N, d]."""
        features: Tensor = self.body(self.scale(images))
        return features


def rotation_mlp(architecture: "Architecture") -> nn.Module:
    """A rotation network on the hidden layers of the mlp."""
    return _replace_head(mlp(architecture), architecture)


def rotation_cnn(architecture: "Architecture") -> nn.Module:
    """A rotation network on the convolutions of the cnn; 128 features."""
    return _replace_head(cnn(architecture), architecture)


def rotation_resnet18(architecture: "Architecture") -> nn.Module:
    """A rotation network on a ResNet-18 for 32 x 32 pixels: 3x3 stem, no pooling; 512 features."""
    body = resnet18_32(replace(architecture, classes=1))
    width = body.fc.in_features
    body.fc = nn.Identity()
    return RotationNetwork(architecture, body, width)


def _replace_head(network: nn.Sequential, architecture: "Architecture") -> nn.Module:
    """A rotation network with its head in place of a network's last layer."""
    last = network[-1]
    assert isinstance(last, nn.Linear)
    return RotationNetwork(architecture, network[:-1], last.in_features)
