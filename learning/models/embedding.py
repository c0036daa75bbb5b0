"""FIL-VER's networks: an encoder from images to embeddings, and a classifier of these.

Park et al., arXiv:2110.09695, section 5. Two convolutions of 5x5 with ReLU and 2x2 max-pooling, two
linear layers of 1000, and then one of 256 (`ebr`: f(x)), or one for µ and one for log σ (`vee`).
The classifier is a perceptron with two hidden layers of 1000.

The paper does not give the number of channels of the convolutions, nor their padding. Here they
have 32 and 64 channels and no padding. Images need 16 pixels or more a side.
"""

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from learning.models.pixels import SCALES
from strategies.protocol.embeddings import LENGTH

if TYPE_CHECKING:
    from learning.models import Architecture

CHANNELS = (32, 64)
HIDDEN = 1000


class Encoder(nn.Module):
    """Scaled images [N, C, H, W] -> [N, P, 256]: f(x) for one part P, µ and log σ for two."""

    def __init__(self, architecture: "Architecture", parts: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs, sides = architecture.channels, [architecture.height, architecture.width]
        for outputs in CHANNELS:
            layers += [nn.Conv2d(inputs, outputs, kernel_size=5), nn.ReLU(), nn.MaxPool2d(2)]
            inputs, sides = outputs, [(side - 4) // 2 for side in sides]
        if min(sides) < 1:
            raise ValueError("images need 16 pixels or more a side")
        widths = (inputs * sides[0] * sides[1], HIDDEN, HIDDEN)
        layers.append(nn.Flatten())
        for narrow, wide in pairwise(widths):
            layers += [nn.Linear(narrow, wide), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.heads = nn.ModuleList(nn.Linear(HIDDEN, LENGTH) for _ in range(parts))

    def forward(self, images: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, P, 256]."""
        features = self.body(images)
        return torch.stack([head(features) for head in self.heads], dim=1)


class EmbeddingNetwork(nn.Module):
    """Encoder and classifier. `forward` is for tests, so it uses the mean of an embedding."""

    def __init__(self, architecture: "Architecture", parts: int) -> None:
        super().__init__()
        self.scale = SCALES[architecture.pixels]
        self.encoder = Encoder(architecture, parts)
        self.classifier = nn.Sequential(
            nn.Linear(LENGTH, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, architecture.classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Scaled images [N, C, H, W] -> logits [N, K]."""
        logits: Tensor = self.classifier(self.encoder(images)[:, 0])
        return logits

    def embed(self, images: Tensor) -> Tensor:
        """The embeddings [N, P, 256] of images as bytes, uint8 [N, C, H, W]."""
        embeddings: Tensor = self.encoder(self.scale(images))
        return embeddings
