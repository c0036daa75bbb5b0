"""FedProx at the hospital (strategies/fedprox.py).

Li et al., MLSys 2020, arXiv:1812.06127, Eq. 2: the loss plus µ/2 ‖w − w_t‖², whose gradient
µ (w − w_t) is added directly.
"""

import torch
from torch import nn

from client_app.hospital import Hospital
from client_app.learners.plain import NOTHING, Plain, Received


class FedProx(Plain):
    """Cross-entropy and a pull towards the weights as received."""

    def __init__(self, model: nn.Module, hospital: Hospital, received: Received = NOTHING) -> None:
        super().__init__(model, hospital)
        self.mu = hospital.settings.fedprox.mu
        self.received = [parameter.detach().clone() for parameter in model.parameters()]

    @torch.no_grad()
    def before_step(self) -> None:
        """Eq. 2: add µ (w − w_t)."""
        for parameter, received in zip(self.model.parameters(), self.received, strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(parameter - received, alpha=self.mu)
