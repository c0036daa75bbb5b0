"""Cross-entropy on the hospital's own images: what most methods minimise."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from strategies.settings import Settings


class Plain:
    """What a hospital minimises during one visit; other learners build on this one.

    Args:
        model: The network, with the weights as received.
        settings: The settings of the run.
    """

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        self.model = model

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Loss of a batch: images [N, C, H, W] in [-1, 1], labels [N]; a scalar."""
        return functional.cross_entropy(self.model(images), labels)

    @torch.no_grad()
    def add_penalty_gradient(self) -> None:
        """Add the gradient of the method's penalty to that of the loss; here there is none."""

    @staticmethod
    def stays_home(model: nn.Module) -> set[str]:
        """Names of the entries of the state dict that never leave the hospital; here none."""
        return set()
