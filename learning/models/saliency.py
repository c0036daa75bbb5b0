"""SER's networks: a classifier whose features are multiplied by those of a saliency network.

Bellitto et al., arXiv:2403.20086; thesis, section 2.3. The encoder of the saliency network and the
classifier have the same layers. At each point before a non-linearity (learning/models/taps.py) the
classifier continues with the product of both features:

    z_c = ReLU(c · s)

This is the paper's prose and the authors' code. The paper's Eq. 2.21 multiplies features after the
non-linearity of the layer before. No gradient of the logits reaches the encoder.

The decoder is our own and has two layers; the authors use UNISAL's (Droste et al., 2020). Points
and shapes are those of taps.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from learning.models.pixels import SCALES
from learning.models.small import CNN_WIDTHS, cnn
from learning.models.taps import last_layer, tap

if TYPE_CHECKING:
    from learning.models import Architecture

WIDTH = 16  # channels of the decoder
RESNET18_WIDTHS = (64, 64, 128, 256, 512)


class Decoder(nn.Module):
    """Features at all points -> the saliency of each pixel."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.taken = nn.ModuleList(nn.Conv2d(width, WIDTH, kernel_size=1) for width in widths)
        self.last = nn.Conv2d(WIDTH, 1, kernel_size=3, padding=1)

    def forward(self, features: Sequence[Tensor], size: Sequence[int]) -> Tensor:
        """[N, C_l, H_l, W_l] at each point, and the images' (H, W) -> [N, H, W], from 0 to 1."""
        first = features[0].shape[2:]
        parts = [
            _resize(layer(each.relu()), first)
            for layer, each in zip(self.taken, features, strict=True)
        ]
        return _resize(self.last(torch.stack(parts).sum(dim=0).relu()), size)[:, 0].sigmoid()


def _resize(maps: Tensor, size: Sequence[int]) -> Tensor:
    return functional.interpolate(maps, list(size), mode="bilinear", align_corners=False)


class SaliencyNetwork(nn.Module):
    """Encoder, decoder and classifier, each with weights of its own.

    `backbone` builds the encoder and the classifier; `widths` are the channels at each point.
    """

    def __init__(
        self,
        architecture: "Architecture",
        backbone: Callable[["Architecture"], nn.Module],
        widths: Sequence[int],
    ) -> None:
        super().__init__()
        self.scale = SCALES[architecture.pixels]
        self.encoder = backbone(architecture)
        head = last_layer(self.encoder)
        for name, layer in list(self.encoder.named_children()):
            if layer is head:
                setattr(self.encoder, name, nn.Identity())
        self.decoder = Decoder(widths)
        self.classifier = backbone(architecture)

    def forward(self, images: Tensor) -> Tensor:
        """Scaled images [N, C, H, W] -> logits [N, K]."""
        with torch.no_grad():
            _, features = tap(self.encoder, images)
        return self._modulate(images, features)

    def look(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Saliency [N, H, W] of images as bytes, and the encoder's features at each point."""
        _, features = tap(self.encoder, self.scale(images))
        maps: Tensor = self.decoder(features, images.shape[2:])
        return maps, features

    def classify(self, images: Tensor, features: Sequence[Tensor]) -> Tensor:
        """Images as bytes, and the encoder's features of them -> logits [N, K]."""
        return self._modulate(self.scale(images), [each.detach() for each in features])

    def _modulate(self, images: Tensor, features: Sequence[Tensor]) -> Tensor:
        logits, _ = tap(self.classifier, images, lambda point, c: c * features[point])
        return logits


def ser_cnn(architecture: "Architecture") -> nn.Module:
    """The network with two `cnn`."""
    return SaliencyNetwork(architecture, cnn, CNN_WIDTHS)


def ser_resnet18(architecture: "Architecture") -> nn.Module:
    """The network with two of torchvision's ResNet-18."""

    def resnet18(architecture: "Architecture") -> nn.Module:
        from learning.models.torchvision_model import torchvision_model

        return torchvision_model(replace(architecture, name="resnet18"))

    return SaliencyNetwork(architecture, resnet18, RESNET18_WIDTHS)
