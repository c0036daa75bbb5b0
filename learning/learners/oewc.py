"""Online EWC: a pull of each weight towards its value after the task before, by its importance.

Schwarz et al., "Progress & compress", ICML 2018, arXiv:1805.06370, section 3.1, after Kirkpatrick
et al., arXiv:1612.00796. With F_t the diagonal of the Fisher information after task t, and w* the
weights after task t − 1, a step of task t minimises

    ℓ(M(x), y)  +  λ Σ_i F*_i (w_i − w*_i)²,        F* = F_{t−1} + γ F_{t−2} + γ² F_{t−3} + ...

A hospital does not know which visit of a task is the last. So each visit prepares F* and w* for the
next task, and replaces those of the visit before. The first visit of the next task takes them up.
Both belong to the hospital and serve all models that come.

Deviations:
 1. λ stands for λ/2, and F* is not weighted with γ once more in the loss: both as in mammoth.
 2. The F_t are not normalised: as in mammoth.
 3. F_t is a mean over some images, with one label each (learning/learners/importance.py).
"""

import torch
from torch import Tensor

from learning.learners.importance import fisher_information
from learning.learners.plain import Learner
from learning.packing import check_layout, part
from learning.settings import OnlineEWCSettings
from strategies.protocol.settings import rng_for


class OnlineEWC(Learner):
    """Cross-entropy, and a pull towards the weights after the task before.

    Raises:
        ParcelError: The hospital has kept the state of another network.
    """

    tables = (("oewc", OnlineEWCSettings),)
    own: OnlineEWCSettings
    copies = 4

    def begin_visit(self) -> None:
        """Read F* and w*; there are none before the second task."""
        kept = self.received.rehearsal
        self.weights = dict(self.model.named_parameters())
        self.task = torch.tensor(self.received.task)
        later = bool(kept) and bool(kept["task"] != self.task)
        self.fisher, self.anchor = (
            part(kept, f"{'next-' if later else ''}{what}.") for what in ("fisher", "anchor")
        )
        for each in (self.fisher, self.anchor):
            if each:
                check_layout(each, self.weights, "The hospital's memory of earlier tasks")

    @torch.no_grad()
    def before_step(self) -> None:
        """Add 2 λ F* (w − w*), the gradient of the pull, to that of the task."""
        for name, fisher in self.fisher.items():
            weight = self.weights[name]
            if weight.grad is not None:
                drift = weight - self.anchor[name]
                weight.grad.addcmul_(fisher, drift, value=2 * self.own.strength)

    def rehearsal(self) -> dict[str, Tensor]:
        """F* and w* of this task, and of the next one."""
        rng = rng_for(self.settings.seed, "fisher", self.received.task)
        information = fisher_information(self.model, self.samples, rng)
        kept = {"task": self.task}
        for (name, weight), new in zip(self.weights.items(), information, strict=True):
            old = self.fisher.get(name)
            kept[f"next-fisher.{name}"] = new if old is None else self.own.decay * old + new
            kept[f"next-anchor.{name}"] = weight.detach().clone()
            if old is not None:
                kept[f"fisher.{name}"], kept[f"anchor.{name}"] = old, self.anchor[name]
        return kept
