"""FedProx at the hospital (strategies/fedprox.py).

Li et al., MLSys 2020, arXiv:1812.06127, Eq. 2: the loss plus µ/2 ‖w − w_t‖², whose gradient
µ (w − w_t) is added directly.
"""

import torch

from learning.learners.plain import Learner
from learning.settings import FedProxSettings


class FedProx(Learner):
    """Cross-entropy and a pull towards the weights as received."""

    tables = (("fedprox", FedProxSettings),)
    own: FedProxSettings
    copies = 1

    def begin_visit(self) -> None:
        """Keep the received weights."""
        self.start = [weight.detach().clone() for weight in self.model.parameters()]  # w_t

    @torch.no_grad()
    def before_step(self) -> None:
        """Eq. 2: add µ (w − w_t)."""
        for parameter, start in zip(self.model.parameters(), self.start, strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(parameter - start, alpha=self.own.mu)
