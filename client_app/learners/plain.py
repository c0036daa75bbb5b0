"""Cross-entropy on the hospital's own images: what most methods minimise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from client_app.datasets import Samples
from client_app.hospital import Hospital
from strategies.settings import Settings


@dataclass(frozen=True)
class Received:
    """What came with a model.

    Attributes:
        buffers: Synthetic images to train on.
        memory: What the method carries beside the model, by name; empty at its first visit.
        new_rounds: How many rounds have begun since its last visit.
    """

    buffers: Sequence[Samples] = ()
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    new_rounds: int = 0


NOTHING = Received()


class Plain:
    """What a hospital minimises during one visit; other learners build on this one.

    Args:
        model: The network, with the weights as received.
        hospital: Where the visit is.
        received: What came with it, which this learner has no use for.

    Attributes:
        samples: What an epoch is a pass over.
        withholds: Whether the entries that `owns` names never leave the hospital.
    """

    withholds = True

    def __init__(self, model: nn.Module, hospital: Hospital, received: Received = NOTHING) -> None:
        self.model = model
        self.samples = hospital.data.train

    def begin_epoch(self, epoch: int) -> None:
        """Put the network into its mode for an epoch, from 1."""
        self.model.train()

    def extend(self, batch: Samples, generator: torch.Generator) -> Samples:
        """A batch [N] of the hospital's samples and what is trained on with it; here nothing."""
        return batch

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Loss of an extended batch: images [M, C, H, W] in [-1, 1], labels [M]; a scalar."""
        return functional.cross_entropy(self.model(images), labels)

    def before_step(self) -> None:
        """Add the gradient of the method's penalty to that of the loss; here there is none."""

    def after_step(self) -> None:
        """Take note of what a step of the optimizer has done; here nothing."""

    def memory(self, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """What the method carries on beside the trained model, by name; here nothing."""
        return {}

    @staticmethod
    def check(hospital: Hospital) -> None:
        """Refuse, before the first hop, a hospital where this cannot be done; here none."""

    @staticmethod
    def owns(model: nn.Module, settings: Settings) -> set[str]:
        """Names of the entries of the state dict that every hospital has its own of; here none.

        What the last visit left there takes the place of what arrives.
        """
        return set()
