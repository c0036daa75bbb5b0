"""The losses of the two networks.

Papers: GAN (Goodfellow et al. 2014), R1 (Mescheder et al. 2018, arXiv:1801.04406), path length
(StyleGAN2, Karras et al. 2020, arXiv:1912.04958), privacy (FedER, Pennisi et al. 2023).

Shapes: `N` images, `b` images of a batch, `D` size of a latent.
"""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from gan.networks import Discriminator, Generator

Reduction = Literal["mean", "sum"]


def discriminator_loss(real: Tensor, fake: Tensor) -> Tensor:
    """Cross-entropy of the logits [N] of real and of synthetic images."""
    # FedER, Eq. 1: with D = sigmoid(l), -log D = softplus(-l) and -log(1 - D) = softplus(l).
    return F.softplus(-real).mean() + F.softplus(fake).mean()


def generator_loss(fake: Tensor) -> Tensor:
    """The non-saturating loss of synthetic images, from their logits [N]."""
    # FedER Eq. 2 prints -E[D]; StyleGAN2-ADA, the network of FedER, minimises -E[log D].
    return F.softplus(-fake).mean()


def r1(discriminator: Discriminator, images: Tensor, labels: Tensor) -> Tensor:
    """Half the squared gradient of the logits with respect to real images [N, C, H, W]."""
    images = images.detach().requires_grad_()
    logits = discriminator(images, labels)
    (gradient,) = torch.autograd.grad(logits.sum(), images, create_graph=True)
    # Mescheder et al. 2018, Eq. 9, without γ.
    return gradient.square().sum((1, 2, 3)).mean() / 2


def path_lengths(generator: Generator, w: Tensor) -> Tensor:
    """The lengths |J_wᵀ y| [N]: the effect of the styles of w [N, D] on a random direction y.

    As in the authors' code, each layer's style is a variable of its own, and the mean of their
    squared lengths is taken. A common change of all styles has about √L times the length.
    """
    styles = w[:, None].repeat(1, generator.num_layers, 1)  # [N, L, D]
    images = generator.synthesise(styles)
    # Scaled so that lengths do not depend on the resolution (StyleGAN2, appendix B).
    y = torch.randn_like(images) / math.sqrt(images.shape[2] * images.shape[3])
    (gradient,) = torch.autograd.grad((images * y).sum(), styles, create_graph=True)  # J_wᵀ y
    return gradient.square().sum(2).mean(1).sqrt()


def path_loss(lengths: Tensor, mean: Tensor) -> Tensor:
    """Squared deviation of lengths [N] from their mean over time."""
    # StyleGAN2, Eq. 4.
    return (lengths - mean).square().mean()


def privacy(distances: Tensor, reduction: Reduction) -> Tensor:
    """The distance of synthetic from real images, which the generator increases, from all [b, b].

    "sum" is the printed equation, which grows with b; "mean" is over all pairs.
    """
    if reduction == "mean":
        return distances.mean()
    # FedER, Eq. 3.
    return distances.sum() / len(distances)
