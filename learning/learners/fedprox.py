"""FedProx at the hospital (strategies/fedprox.py).

Li et al., MLSys 2020, arXiv:1812.06127, Eq. 2: the loss plus µ/2 ‖w − w_t‖², whose gradient
µ (w − w_t) is added directly.
"""

from dataclasses import dataclass

import torch
from torch import nn

from learning.learners.plain import Learner, Received
from learning.samples import Samples
from strategies.protocol.settings import Settings, require


@dataclass(frozen=True)
class FedProxSettings:
    """FedProx: the keys `fedprox.*`."""

    mu: float

    def __post_init__(self) -> None:
        require(self.mu >= 0, "fedprox.mu", self.mu, "0 or more")


class FedProx(Learner):
    """Cross-entropy and a pull towards the weights as received."""

    def __init__(
        self, model: nn.Module, samples: Samples, settings: Settings, received: Received
    ) -> None:
        super().__init__(model, samples, settings, received)
        self.mu = settings.section("fedprox", FedProxSettings).mu
        self.start = [parameter.detach().clone() for parameter in model.parameters()]  # w_t

    @torch.no_grad()
    def before_step(self) -> None:
        """Eq. 2: add µ (w − w_t)."""
        for parameter, start in zip(self.model.parameters(), self.start, strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(parameter - start, alpha=self.mu)

    @staticmethod
    def check(settings: Settings) -> None:
        """Refuse a negative µ."""
        settings.section("fedprox", FedProxSettings)
