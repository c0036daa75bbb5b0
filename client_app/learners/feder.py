"""FedER at the hospital (strategies/feder.py).

Pennisi et al., arXiv:2206.10048, Eq. 5, on batches of B of the hospital's images and as many out of
the buffer that came with the model, which a network sees as one batch (for λ = 0.5 its loss is the
mean over 2B images, as in the authors' code):

    λ · mean over B of ℓ(M(x), y)  +  (1 − λ) · mean over B of ℓ(M(x'), y')
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from client_app.datasets import Samples, joined
from client_app.hospital import Hospital
from client_app.learners.plain import NOTHING, Plain, Received


class FedER(Plain):
    """Cross-entropy on the hospital's images and on a replayed buffer.

    Args:
        model: The network, with the weights as received.
        hospital: Where the visit is.
        received: A buffer, if there is one. With the variant `synthetic-only` the hospital's own
            comes before it, in the place of the hospital's images.
    """

    def __init__(self, model: nn.Module, hospital: Hospital, received: Received = NOTHING) -> None:
        super().__init__(model, hospital)
        feder, buffers = hospital.settings.feder, received.buffers
        if feder.variant == "synthetic-only":
            self.samples, *buffers = buffers
        self.weight = feder.replay_weight  # 1 − λ
        self.replay = buffers[0] if buffers and self.weight > 0 else None

    def extend(self, batch: Samples, generator: torch.Generator) -> Samples:
        """Add as many random images of the buffer: [N] -> [2N]."""
        if self.replay is None:
            return batch
        times = -(-len(batch) // len(self.replay))  # a buffer smaller than the batch is repeated
        drawn = torch.randperm(times * len(self.replay), generator=generator)[: len(batch)]
        drawn = (drawn % len(self.replay)).to(batch.labels.device)
        return joined([batch, self.replay[drawn]])

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Eq. 5 for a batch that `extend` has made."""
        if self.replay is None:
            return super().loss(images, labels)
        losses = functional.cross_entropy(self.model(images), labels, reduction="none")  # [2N]
        own, replayed = losses.chunk(2)
        return (1 - self.weight) * own.mean() + self.weight * replayed.mean()
