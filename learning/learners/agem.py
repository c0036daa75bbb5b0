"""A-GEM: a step may not increase the loss of kept images.

Chaudhry et al., "Efficient lifelong learning with A-GEM", ICLR 2019, arXiv:1812.00420, Eq. 11. With
g the gradient of ℓ(M(x), y), and g_ref that of a draw from the images of earlier tasks, a step goes
along

    g − (gᵀ g_ref / g_refᵀ g_ref) g_ref    if gᵀ g_ref < 0, and otherwise along g

A hospital keeps `reservoir.size` / `tasks` random images of each task.

Deviation:
 1. A hospital does not know which visit of a task is the last. So it draws a task's images once.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from learning.augmentation import Draws
from learning.learners.plain import Learner
from learning.samples import Samples
from learning.settings import ReservoirSettings
from learning.stream import add_task, draw_rows, earlier_samples
from strategies.protocol.settings import Settings, require


class TaskMemory(Learner):
    """A learner that keeps equally many images of each task.

    Attributes:
        kept: Kept images of earlier tasks; None in the first task.
        rows: The rows of this task's images to keep, int64 [m].
    """

    tables: tuple[tuple[str, type], ...] = (("reservoir", ReservoirSettings),)

    def begin_visit(self) -> None:
        """Find the kept images of earlier tasks, and draw those of this task."""
        self.chosen = self.settings.section("reservoir", ReservoirSettings)
        self.kept = earlier_samples(self.received.rehearsal, self.received.task)
        count, task = len(self.samples), self.received.task
        share = min(1, self.chosen.size // self.settings.tasks / count)
        self.rows = draw_rows(count, share, self.settings.seed, task) if share else None

    @classmethod
    def check_suited(cls, model: nn.Module, settings: Settings) -> None:
        """Refuse a reservoir with one image of a task: BatchNorm cannot train on one."""
        size, least = settings.section("reservoir", ReservoirSettings).size, 2 * settings.tasks
        allowed = f"0, or {least} or more: 2 images of each of the run's tasks"
        require(not size or size >= least, "reservoir.size", size, allowed)

    def draw_kept(self, draws: Draws) -> Samples | None:
        """A draw of `reservoir.batch-size` kept images; None in the first task."""
        if self.kept is None:
            return None
        return draws.draw(self.kept, min(self.chosen.batch_size, len(self.kept)))

    def rehearsal(self) -> dict[str, Tensor]:
        """The kept images, and those of this task."""
        if self.rows is None:
            return {}
        return add_task(self.received.rehearsal, self.samples, self.rows, self.received.task)


class AGEM(TaskMemory):
    """Cross-entropy, in a direction that does not forget."""

    def observe(self, batch: Samples, draws: Draws) -> Tensor:
        """The loss of a batch [N]; kept images are drawn for the step."""
        loss = super().observe(batch, draws)
        drawn = self.draw_kept(draws)
        self.reference = drawn and Samples(draws.view(drawn.images), drawn.labels)
        return loss

    def before_step(self) -> None:
        """Eq. 11."""
        if self.reference is None:
            return
        weights = [each for each in self.trained_parameters() if each.grad is not None]
        loss = functional.cross_entropy(self.model(self.reference.images), self.reference.labels)
        wanted = torch.autograd.grad(loss, weights, materialize_grads=True)
        gradients = [each.grad for each in weights if each.grad is not None]
        product = sum((g * r).sum() for g, r in zip(gradients, wanted, strict=True))
        if product < 0:
            norm = sum(each.square().sum() for each in wanted)
            torch._foreach_add_(gradients, torch._foreach_mul(wanted, -product / norm))
