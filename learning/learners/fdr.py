"""FDR: on kept images the network keeps the predictions that it had after their task.

Benjamin et al., "Measuring and regularizing networks in function space", ICLR 2019,
arXiv:1805.08289. With p = softmax M(x') for a draw of m images of earlier tasks, and p* the same
after their task, a step minimises

    ℓ(M(x), y)  +  α ( 1/m Σ_x' ‖p − p*‖² )^½

the empirical distance of both networks as functions. A hospital keeps `reservoir.size` / `tasks`
random images of each task.

Deviation:
 1. A hospital does not know which visit of a task is the last. Each visit computes p* of the task's
    images again.
"""

import math

import torch
from torch import Tensor

from learning.augmentation import Draws
from learning.evaluation import split
from learning.learners.agem import TaskMemory
from learning.samples import Samples
from learning.settings import FDRSettings, ReservoirSettings


class FDR(TaskMemory):
    """Cross-entropy, and the distance of the predictions for kept images from earlier ones."""

    tables = (("fdr", FDRSettings), ("reservoir", ReservoirSettings))
    own: FDRSettings

    def begin_visit(self) -> None:
        """Find the kept images and their p* [M, K]."""
        super().begin_visit()
        if self.kept is not None:
            before = self.received.rehearsal
            self.wanted = before["predictions"][before["tasks"] != self.received.task]
            places = torch.arange(len(self.kept), device=self.kept.labels.device)
            self.kept = Samples(self.kept.pixels, places)  # a draw gives their places

    def observe(self, batch: Samples, draws: Draws) -> Tensor:
        """The loss of a batch [N] and of a draw."""
        loss = super().observe(batch, draws)
        if (drawn := self.draw_kept(draws)) is None:
            return loss
        found = self.model(draws.view(drawn.images)).softmax(dim=1)
        distance: Tensor = torch.linalg.vector_norm(found - self.wanted[drawn.labels])
        return loss + self.own.alpha * distance / math.sqrt(len(drawn))

    @torch.no_grad()
    def rehearsal(self) -> dict[str, Tensor]:
        """The kept images with p*."""
        if not (kept := super().rehearsal()):
            return {}
        self.model.eval()
        present = kept["values"][kept["tasks"] == self.received.task]
        found = [self.model(part).softmax(dim=1) for part in split(present)]
        earlier = [] if self.kept is None else [self.wanted]
        return {**kept, "predictions": torch.cat([*earlier, *found])}
