"""CWC at the hospital (strategies/cwc.py): a penalty on changing what was important elsewhere.

arXiv:2405.10647, Eq. 3 to 5. The matrix C travels in the parcel's `memory`, an array for each
parameter, in the parameters' own shapes; what is no parameter, such as the running statistics of
BatchNorm, travels with the model outside C.
"""

import numpy as np
import torch
from torch import Tensor, nn

from client_app.hospital import Hospital
from client_app.learners.importance import IMPORTANCE
from client_app.learners.plain import NOTHING, Plain, Received
from strategies.parcel import ParcelError


class CWC(Plain):
    """Cross-entropy and a pull towards the weights as received, each as strong as it is important.

    Args:
        model: The network, with the weights w̃ as received.
        hospital: Where the visit is.
        received: The consolidation matrix C; none at the first visit.

    Raises:
        ParcelError: C has negative entries.
    """

    def __init__(self, model: nn.Module, hospital: Hospital, received: Received = NOTHING) -> None:
        super().__init__(model, hospital)
        settings = hospital.settings.cwc
        self.strength = settings.strength
        self.parameters: dict[str, Tensor] = dict(model.named_parameters())
        self.weights = list(self.parameters.values())
        self.received = [weight.detach().clone() for weight in self.weights]
        # Eq. 5: C^{1,r+1} = γ (C^{K,r} + Ω^{K,r}); within a round nothing decays.
        kept = settings.decay**received.new_rounds
        memory = received.memory or self._zeros()
        self.consolidation = [kept * memory[name] for name in self.parameters]
        if any((entries < 0).any() for entries in self.consolidation):
            raise ParcelError("The consolidation matrix in the parcel has negative entries.")
        self.importance = IMPORTANCE[settings.importance](model, settings)
        # w − w̃ now, and room for it after the next step: a step of a small network takes about a
        # millisecond, a good part of which fresh memory would cost.
        self.drift, self.next_drift = list(self._zeros().values()), list(self._zeros().values())

    def _zeros(self) -> dict[str, Tensor]:
        return {name: torch.zeros_like(weight) for name, weight in self.parameters.items()}

    @torch.no_grad()
    def before_step(self) -> None:
        """Eq. 3: add 2 σ C (w − w̃) to the gradient of the task."""
        gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        self.importance.before_step(gradients)
        torch._foreach_addcmul_(gradients, self.consolidation, self.drift, value=2 * self.strength)

    @torch.no_grad()
    def after_step(self) -> None:
        """Follow the weights."""
        torch._foreach_copy_(self.next_drift, self.weights)
        torch._foreach_sub_(self.next_drift, self.received)
        torch._foreach_sub_(self.drift, self.next_drift)  # now it is minus the step
        self.importance.after_step(self.drift)
        self.drift, self.next_drift = self.next_drift, self.drift

    def memory(self, rng: np.random.Generator) -> dict[str, Tensor]:
        """Eq. 4: C^{k+1,r} = C^{k,r} + Ω^{k,r}."""
        importance = self.importance.estimate(self.drift, self.samples, rng)
        total = torch._foreach_add(self.consolidation, importance)
        return dict(zip(self.parameters, total, strict=True))
