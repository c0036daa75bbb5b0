"""PASS's networks: they classify images and, in training, also the rotation of an image.

Zhu et al., "Prototype augmentation and self-supervision for incremental learning", CVPR 2021: a
body gives the features of an image, and a linear layer of 4K outputs follows. Output 4y + k is
class y rotated by k quarters. `forward` gives [N, K], the outputs 4y: without rotation. Learners
that train all outputs (learning/learners/prototypes.py) call `features` and `head`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor, nn

from learning.models.pixels import SCALES
from learning.models.small import resnet18_32

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


def rotation_network(
    architecture: "Architecture", backbone: Callable[["Architecture"], nn.Sequential]
) -> nn.Module:
    """A rotation network with its head in place of the last layer of `cnn` or `mlp`."""
    *body, last = backbone(architecture)
    assert isinstance(last, nn.Linear)
    return RotationNetwork(architecture, nn.Sequential(*body), last.in_features)


def rotation_resnet18(architecture: "Architecture") -> nn.Module:
    """A rotation network on a ResNet-18 for 32 x 32 pixels: 3x3 stem, no pooling; 512 features."""
    body = resnet18_32(replace(architecture, classes=1))
    width = body.fc.in_features
    body.fc = nn.Identity()
    return RotationNetwork(architecture, body, width)
