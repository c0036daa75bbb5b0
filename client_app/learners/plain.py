"""Cross-entropy on the hospital's own images: what most methods minimise."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from client_app.datasets import Samples
from client_app.hospital import Hospital


class Plain:
    """What a hospital minimises during one visit; other learners build on this one.

    Args:
        model: The network, with the weights as received.
        hospital: Where the visit is.
        buffers: Synthetic images to train on, which this learner does not.

    Attributes:
        samples: What an epoch is a pass over.
    """

    def __init__(
        self, model: nn.Module, hospital: Hospital, buffers: Sequence[Samples] = ()
    ) -> None:
        self.model = model
        self.samples = hospital.data.train

    def extend(self, batch: Samples, generator: torch.Generator) -> Samples:
        """A batch [N] of the hospital's samples and what is trained on with it; here nothing."""
        return batch

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Loss of an extended batch: images [M, C, H, W] in [-1, 1], labels [M]; a scalar."""
        return functional.cross_entropy(self.model(images), labels)

    @torch.no_grad()
    def add_penalty_gradient(self) -> None:
        """Add the gradient of the method's penalty to that of the loss; here there is none."""

    @staticmethod
    def check(hospital: Hospital) -> None:
        """Refuse, before the first hop, a hospital where this cannot be done; here none."""

    @staticmethod
    def stays_home(model: nn.Module) -> set[str]:
        """Names of the entries of the state dict that never leave the hospital; here none."""
        return set()
