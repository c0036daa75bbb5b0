"""LwF: distillation, on a task's own images, from the network as it was before the task.

Li and Hoiem, "Learning without forgetting", ECCV 2016, arXiv:1606.09282, Figure 3 and Eq. 2 to 4.
With M_old the network at the start of the task, and T = 2, a step minimises

    ℓ(M(x), y)  −  α Σ_k p_k log q_k,    p = softmax(M_old(x) / T),  q = softmax(M(x) / T)

with p and q over the classes of earlier tasks. No image is kept. A warm-up comes first: it trains
only the outputs of the task's classes, by cross-entropy among these classes. All other weights and
the statistics of BatchNorm stay.

Deviations:
 1. The paper has an output layer for each task; here all classes share one. So ℓ is over all
    classes that the hospital has had, as in mammoth; in the paper it is over the task's classes. In
    the warm-up `train.weight-decay` acts on the whole layer.
 2. M_old is kept and runs at every step; the paper records its outputs once. It gets the images
    without `train.augment`, so the result is the same.
 3. The warm-up lasts a number of epochs; in the paper it lasts until convergence.
 4. M_old is the first model that comes to the hospital in a task. It serves all visits of the task,
    also visits of other models.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional

from learning.augmentation import Draws
from learning.learners.plain import Learner
from learning.models.taps import last_layer
from learning.packing import check_layout, part
from learning.samples import Samples
from learning.settings import LwFSettings
from learning.stream import restrict
from strategies.protocol.settings import Settings, require

TEMPERATURE = 2.0  # T
KEPT = "network."  # prefix of the kept network's keys


class FromBefore(Learner):
    """A learner that keeps the network from before the task.

    Raises:
        ParcelError: The kept network is another one.

    Attributes:
        present: int64, the classes of the samples; `new`: those of them that came with this visit.
        classes: int64 [c], classes that the hospital has had; `since` [c]: the first task of each.
        earlier: Classes of earlier tasks.
        old: M_old; None in the first task.
        first: Whether this is the hospital's first visit of the task.
    """

    copies = 1

    def begin_visit(self) -> None:
        """Find the new classes, and M_old."""
        kept, task, none = self.received.rehearsal, self.received.task, self.samples.labels[:0]
        had, since = kept.get("classes", none), kept.get("since", none)
        self.present = self.samples.labels.unique()
        self.new = self.present[~torch.isin(self.present, had)]
        self.classes = torch.cat([had, self.new])
        self.since = torch.cat([since, torch.full_like(self.new, task)])
        self.earlier = had[since != task]
        self.old: nn.Module | None = None
        self.first = not kept or bool(kept["task"] != task)
        if not len(self.earlier):
            return
        self.old = deepcopy(self.model).eval().requires_grad_(False)
        if not self.first:
            state = part(kept, KEPT)
            check_layout(state, self.old.state_dict(), "The network that the hospital keeps to")
            self.old.load_state_dict(state)

    def rehearsal(self) -> dict[str, Tensor]:
        """The classes, the first task of each, and M_old."""
        task = torch.tensor(self.received.task)
        kept = {"task": task, "classes": self.classes, "since": self.since}
        state = self.old.state_dict() if self.old is not None else {}
        return {**kept, **{KEPT + name: each for name, each in state.items()}}


class LwF(FromBefore):
    """Cross-entropy, and distillation from the network before the task.

    Raises:
        ModelError: The network does not end in a linear layer, so it cannot be warmed up.
    """

    tables = (("lwf", LwFSettings),)
    own: LwFSettings

    def begin_visit(self) -> None:
        """Find M_old, and whether the outputs of new classes are to be warmed up."""
        super().begin_visit()
        self.warming = False
        if self.old is not None and self.first and len(self.new) and self.own.warm_up:
            self.warm_up, self.outputs = self.own.warm_up, last_layer(self.model)

    @classmethod
    def check_suited(cls, model: nn.Module, settings: Settings) -> None:
        """Refuse a network that cannot be warmed up for the later tasks.

        In a warm-up an optimizer's state that travels would move the outputs of earlier classes.
        """
        if settings.tasks > 1 and cls.read_settings(settings).warm_up:
            last_layer(model)
            state = settings.train.optimizer_state
            allowed = "fresh with lwf, unless lwf.warm-up is 0"
            require(state == "fresh", "train.optimizer-state", state, allowed)

    def begin_epoch(self, epoch: int) -> None:
        """Warm up in epochs below 1, and then train."""
        self.warming = epoch < 1
        self.set_mode(not self.warming)

    def observe(self, batch: Samples, draws: Draws) -> Tensor:
        """The loss of a batch [N]."""
        logits = self.model(draws.view(batch.images))
        if self.warming:
            return self.cross_entropy(restrict(self.present, logits), batch.labels)
        loss = self.cross_entropy(restrict(self.classes, logits), batch.labels)
        if self.old is None:
            return loss
        before = self.old(batch.images)[:, self.earlier]
        return loss + self.own.alpha * distillation(logits[:, self.earlier], before)

    def before_step(self) -> None:
        """Remove the gradients of all weights that the warm-up leaves alone."""
        if self.warming:
            for parameter in {*self.model.parameters()} - {*self.outputs.parameters()}:
                parameter.grad = None


def distillation(logits: Tensor, before: Tensor) -> Tensor:
    """The loss of Eq. 2 to 4 from logits [N, c]: the mean over N of − Σ_k p_k log q_k."""
    targets = (before / TEMPERATURE).softmax(dim=1)
    return functional.cross_entropy(logits / TEMPERATURE, targets)
