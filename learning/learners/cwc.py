"""CWC at the hospital (strategies/cwc.py): a penalty on changes of weights that matter elsewhere.

arXiv:2405.10647, Eq. 3 to 5. The matrix C travels as the parcel's `memory`: an array for each
parameter, in the parameter's own shape. Running statistics of BatchNorm are not parameters: they
travel with the model, and C has no entries for them.
"""

import numpy as np
import torch
from torch import Tensor

from learning.learners.importance import SynapticIntelligence, fisher_information
from learning.learners.plain import Learner
from learning.packing import check_layout
from learning.settings import CWCSettings
from strategies.protocol.records import ParcelError, useless_unless_valid


class CWC(Learner):
    """Cross-entropy, and a pull of each weight towards its received value, by its importance.

    Raises:
        UselessError: C is not of the parameters' shapes, or has negative entries.
    """

    tables = (("cwc", CWCSettings),)
    own: CWCSettings
    copies = 7

    def begin_visit(self) -> None:
        """Keep the received weights, and read C."""
        self.parameters: dict[str, Tensor] = dict(self.model.named_parameters())
        self.weights = list(self.parameters.values())
        self.start = [weight.detach().clone() for weight in self.weights]  # w̃
        # Eq. 5: C^{1,r+1} = γ (C^{K,r} + Ω^{K,r}); within a round nothing decays.
        kept = self.own.decay**self.received.new_rounds
        memory = self.received.memory or self._zeros()
        with useless_unless_valid():
            check_layout(memory, self.parameters, "The consolidation matrix")
            if any((entries < 0).any() for entries in memory.values()):
                raise ParcelError("The consolidation matrix has negative entries.")
        self.consolidation = [kept * memory[name] for name in self.parameters]
        self.path: SynapticIntelligence | None = None  # EWC does not follow the steps
        if self.own.importance == "si":
            self.path = SynapticIntelligence(self.model, self.own.damping)
        # w − w̃ now, and memory for it after the next step. A small network's step takes about a
        # millisecond; an allocation in each step would take a good part of that.
        self.drift, self.next_drift = list(self._zeros().values()), list(self._zeros().values())

    def _zeros(self) -> dict[str, Tensor]:
        return {name: torch.zeros_like(weight) for name, weight in self.parameters.items()}

    @torch.no_grad()
    def before_step(self) -> None:
        """Eq. 3: add 2 σ C (w − w̃) to the gradient of the task."""
        gradients = [
            # The loss does not use this parameter, and the optimizer skips it.
            torch.zeros_like(weight) if weight.grad is None else weight.grad
            for weight in self.weights
        ]
        if self.path:
            self.path.before_step(gradients)
        strength = 2 * self.own.strength
        torch._foreach_addcmul_(gradients, self.consolidation, self.drift, value=strength)

    @torch.no_grad()
    def after_step(self) -> None:
        """Measure the movement of the weights."""
        torch._foreach_copy_(self.next_drift, self.weights)
        torch._foreach_sub_(self.next_drift, self.start)
        torch._foreach_sub_(self.drift, self.next_drift)  # now it is minus the step
        if self.path:
            self.path.after_step(self.drift)
        self.drift, self.next_drift = self.next_drift, self.drift

    def memory(self, rng: np.random.Generator) -> dict[str, Tensor]:
        """Eq. 4: C^{k+1,r} = C^{k,r} + Ω^{k,r}."""
        importance = (
            self.path.estimate(self.drift)
            if self.path
            else fisher_information(self.model, self.samples, rng)
        )
        total = torch._foreach_add(self.consolidation, importance)
        return dict(zip(self.parameters, total, strict=True))
