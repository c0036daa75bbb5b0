"""Generator and discriminator: StyleGAN2, conditioned on the class of the image.

A pixel is a byte in files, and in [-1, 1] for networks.

Papers: StyleGAN2 (Karras et al. 2020, arXiv:1912.04958): skip generator and residual discriminator
(Figure 7). Projection discriminator (Miyato & Koyama 2018, arXiv:1802.05637).

Shapes: `N` images, `C` channels, `R` pixels a side, `D` size of a latent, `L` styles.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gan.layers import (
    GAIN,
    SLOPE,
    Conv2d,
    Linear,
    ModulatedConv2d,
    StyledConv,
    add_deviation,
    normalise,
    upsample,
)
from gan.presets import Preset

MAPPING_SPEED = 0.01  # the mapping network learns a hundred times slower (StyleGAN, section C)


def from_bytes(images: Tensor) -> Tensor:
    """Convert uint8 images to [-1, 1], float32."""
    return images.float().div_(127.5).sub_(1.0)


def to_bytes(images: Tensor) -> Tensor:
    """Convert images in about [-1, 1] to uint8; values outside are clipped."""
    return (images * 127.5 + 127.5).round().clamp(0, 255).to(torch.uint8)


class Generator(nn.Module):
    """Makes images from labels and latents."""

    def __init__(self, preset: Preset, classes: int, channels: int) -> None:
        super().__init__()
        widths, latent = preset.channels, preset.latent
        self.latent = latent  # size of z and of w
        self.num_layers = 2 * len(widths)  # styles of an image
        sizes = [4 << level for level in range(len(widths))]
        # Height and width of each layer's noise.
        self.noise_shapes = [(size, size) for size in sizes for _ in range(2)][1:]

        self.embedding = nn.Embedding(classes, latent)
        self.mapping = nn.ModuleList(
            Linear(latent if layer else 2 * latent, latent, GAIN, speed=MAPPING_SPEED)
            for layer in range(preset.mapping_layers)
        )
        self.constant = nn.Parameter(torch.randn(1, widths[0], 4, 4))
        self.convs = nn.ModuleList([StyledConv(widths[0], widths[0], latent)])
        for inputs, outputs in pairwise(widths):
            self.convs += [
                StyledConv(inputs, outputs, latent, up=True),
                StyledConv(outputs, outputs, latent),
            ]
        self.to_image = nn.ModuleList(
            ModulatedConv2d(width, channels, 1, latent, demodulate=False) for width in widths
        )
        self.image_bias = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, labels: Tensor, z: Tensor) -> Tensor:
        """Make an image of each class in `labels` [N] from Gaussian `z` [N, D]."""
        return self.synthesise(self.map(labels, z))

    def map(self, labels: Tensor, z: Tensor) -> Tensor:
        """Map labels int64 [N] and Gaussian `z` [N, D] to w [N, D]."""
        w = torch.cat([normalise(z), normalise(self.embedding(labels))], 1)  # [N, 2D]
        for layer in self.mapping:
            w = F.leaky_relu(layer(w), SLOPE)
        return w

    def synthesise(self, w: Tensor, noise: Sequence[Tensor] | None = None) -> Tensor:
        """Make images [N, C, R, R] in about [-1, 1].

        Args:
            w: [N, D], or [N, L, D] for a style of its own at each layer.
            noise: [N or 1, 1, h, w] for each of `noise_shapes`; None draws it.
        """
        styles = w.unbind(1) if w.ndim == 3 else [w] * self.num_layers
        noises: Sequence[Tensor | None] = noise or [None] * len(self.noise_shapes)
        x = self.constant.expand(len(w), -1, -1, -1)
        image: Tensor | None = None
        for layer, (conv, drawn) in enumerate(zip(self.convs, noises, strict=True)):
            x = conv(x, styles[layer], drawn)
            if layer % 2 == 0:  # the last convolution at this size; add its image to the others
                part = self.to_image[layer // 2](x, styles[layer + 1]).float()
                image = part if image is None else upsample(image) + part
        assert image is not None
        return image + self.image_bias


class Discriminator(nn.Module):
    """Distinguishes real images from synthetic ones of the same class."""

    def __init__(self, preset: Preset, classes: int, channels: int) -> None:
        super().__init__()
        widths = preset.channels[::-1]
        self.from_image = Conv2d(channels, widths[0], 1)
        self.blocks = nn.ModuleList(_Residual(*pair) for pair in pairwise(widths))
        last = widths[-1]
        self.conv = Conv2d(last + 1, last, 3)
        self.linear = Linear(last * 4 * 4, last, GAIN)
        self.realness = Linear(last, 1)
        self.embedding = nn.Embedding(classes, last)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """The logits [N] of images [N, C, R, R] of classes [N]; larger means more real."""
        x = F.leaky_relu(self.from_image(images), SLOPE)
        for block in self.blocks:
            x = block(x)  # [N, ., H/2, W/2]
        x = F.leaky_relu(self.conv(add_deviation(x)), SLOPE)  # [N, ., 4, 4]
        x = F.leaky_relu(self.linear(x.flatten(1)), SLOPE).float()  # [N, .]
        # Projection (Miyato & Koyama 2018, Eq. 3).
        match = (self.embedding(labels) * x).sum(1) / math.sqrt(x.shape[1])
        logits: Tensor = self.realness(x).squeeze(1).float() + match
        return logits


class _Residual(nn.Module):
    """Two convolutions beside a shortcut; halves the image (Figure 7(c), right)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = Conv2d(inputs, inputs, 3)
        self.second = Conv2d(inputs, outputs, 3, down=True)
        self.shortcut = Conv2d(inputs, outputs, 1, gain=math.sqrt(0.5), down=True, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, I, H, W] to [N, O, H/2, W/2]."""
        y = F.leaky_relu(self.first(x), SLOPE)
        y = F.leaky_relu(self.second(y), SLOPE) * math.sqrt(0.5)  # the sum keeps unit variance
        return y + cast(Tensor, self.shortcut(x))
