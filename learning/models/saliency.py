"""SER's networks: a classifier whose features are multiplied by those of a saliency network.

Bellitto et al., arXiv:2403.20086; thesis, section 2.3. The encoder of the saliency network and the
classifier have the same layers. At each point before a non-linearity (learning/models/taps.py) the
classifier continues with the product of both features:

    z_c = ReLU(c · s)

This is the paper's prose and the authors' code. The paper's Eq. 2.21 multiplies features after the
non-linearity of the layer before. No gradient of the logits reaches the encoder.

A scheme has a digit for each point: at points with a 0 the classifier's features do not change
(Table 2.12). The other schemes are the comparisons of Fig. 2.8, with p = S(x):

    sim   the classifier's input is x · p
    sai   its input is x, with p as one more channel
    lsm   at each point it continues with a 1x1 convolution of both features

The decoder is our own and has two layers; the authors use UNISAL's (Droste et al., 2020). Points
and shapes are those of taps.py.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from learning.models.pixels import SCALES
from learning.models.small import CNN_WIDTHS, cnn
from learning.models.taps import last_name, tap

if TYPE_CHECKING:
    from learning.models import Architecture

WIDTH = 16  # channels of the decoder
COMPARED = ("sim", "sai", "lsm")  # schemes of Fig. 2.8


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

    Attributes:
        known: As in `remember`; None = outside of it.
    """

    def __init__(
        self,
        architecture: "Architecture",
        backbone: Callable[["Architecture"], nn.Module],
        widths: Sequence[int],
        scheme: str = "",
    ) -> None:
        super().__init__()
        self.scale, self.scheme = SCALES[architecture.pixels], scheme or "1" * len(widths)
        self.known: list[Tensor] | None = None
        self.encoder = backbone(architecture)
        self.encoder.set_submodule(last_name(self.encoder), nn.Identity())
        self.decoder = Decoder(widths)
        if scheme == "lsm":
            self.merge = nn.ModuleList(nn.Conv2d(2 * width, width, 1) for width in widths)
        more = scheme == "sai"
        channels = architecture.channels + more  # the network gets scaled images
        self.classifier = backbone(replace(architecture, channels=channels, pixels="unit"))

    def forward(self, images: Tensor) -> Tensor:
        """Scaled images [N, C, H, W] -> logits [N, K]."""
        with torch.no_grad():
            *features, maps = self._recall(images)
        if self.scheme == "sim":
            images = images * maps[:, None]
        elif self.scheme == "sai":
            images = torch.cat([images, maps[:, None]], dim=1)
        logits, _ = tap(self.classifier, images, partial(self._modulate, features))
        return logits

    def look(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Saliency [N, H, W] of images as bytes, and the encoder's features at each point."""
        *features, maps = self._attend(self.scale(images))
        return maps, features

    @contextmanager
    def remember(self, known: list[Tensor]) -> Iterator[None]:
        """In this context the encoder does not see the first images of the first pass again.

        It sees other images in eval mode. `known` are its features of the first images at each
        point and, last, their saliency; if it is empty, the encoder sees all images.
        """
        self.known = [each.detach() for each in known]
        try:
            yield
        finally:  # after an error the network serves the next visit
            self.known = None

    def classifier_parameters(self) -> list[nn.Parameter]:
        """The parameters beside those of the saliency network."""
        saliency = ("encoder.", "decoder.")
        return [each for name, each in self.named_parameters() if not name.startswith(saliency)]

    def _attend(self, images: Tensor) -> list[Tensor]:
        """The encoder's features of scaled images at each point and, last, their saliency."""
        _, features = tap(self.encoder, images)
        return [*features, self.decoder(features, images.shape[2:])]

    def _recall(self, images: Tensor) -> list[Tensor]:
        """As `_attend`; the first images may be known already."""
        if self.known is None:
            return self._attend(images)
        known, self.known = self.known, []
        others = images[len(known[0]) if known else 0 :]
        if not len(others):
            return known
        in_training = [module for module in self.encoder.modules() if module.training]
        self.encoder.eval()
        found = self._attend(others)
        for module in in_training:  # the statistics of BatchNorm may be frozen
            module.training = True
        return [torch.cat(each) for each in zip(known, found, strict=True)] if known else found

    def _modulate(self, features: Sequence[Tensor], point: int, c: Tensor) -> Tensor:
        """The classifier's features `c` at a point, modulated by those of the saliency network."""
        if self.scheme == "lsm":
            merged: Tensor = self.merge[point](torch.cat([c, features[point]], dim=1))
            return merged
        apart = self.scheme in ("sim", "sai") or self.scheme[point] == "0"
        return c if apart else c * features[point]


def _resnet18(architecture: "Architecture") -> nn.Module:
    from learning.models.torchvision_model import torchvision_model

    return torchvision_model(replace(architecture, name="resnet18"))


_CNN = partial(SaliencyNetwork, backbone=cnn, widths=CNN_WIDTHS)
_RESNET18 = partial(SaliencyNetwork, backbone=_resnet18, widths=(64, 64, 128, 256, 512))
SER_NETWORKS: dict[str, Callable[["Architecture"], nn.Module]] = {
    "ser-cnn": _CNN,
    "ser-resnet18": _RESNET18,
    **{f"ser-cnn-{each}": partial(_CNN, scheme=each) for each in ("1110", *COMPARED)},
    **{
        f"ser-resnet18-{each}": partial(_RESNET18, scheme=each)
        for each in ("11100", "11110", *COMPARED)
    },
}


def backbone_of(name: str) -> str:
    """The name of the network that a saliency model has twice; other names do not change."""
    return name.split("-")[1] if name in SER_NETWORKS else name
