"""Naive rehearsal: a hospital trains again on a share of the images of each earlier task.

Hsu et al., arXiv:1810.12488; a baseline of FIL-VER (arXiv:2110.09695, section 5.1). The loss of a
step is the mean over a batch of new images and the kept ones beside it (learning/stream.py).
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from learning.augmentation import Draws
from learning.learners.plain import Learner
from learning.samples import Samples, round_up
from learning.settings import RehearsalSettings
from learning.stream import add_task, draw_rows, earlier_samples, replay_size
from strategies.protocol.settings import Settings


class NaiveRehearsal(Learner):
    """Cross-entropy on new images and on kept ones."""

    tables = (("rehearsal", RehearsalSettings),)
    own: RehearsalSettings

    @classmethod
    def memory_of_a_visit(cls, settings: Settings, images: int) -> tuple[int, int, int]:
        """Images in a batch, kept images (`round_up`), and copies of the weights."""
        share, own = cls.read_settings(settings).share, settings.train.batch_size
        kept = math.ceil(share * images)
        beside = math.ceil(share * own * (settings.tasks - 1))
        return max(own, beside), round_up(kept), cls.copies

    def begin_visit(self) -> None:
        """Find the kept images of earlier tasks."""
        self.kept = earlier_samples(self.received.rehearsal, self.received.task)

    def observe(self, batch: Samples, draws: Draws) -> Tensor:
        """The loss of a batch [N] and of kept images beside it."""
        if self.kept is None:
            return super().observe(batch, draws)
        count = replay_size(batch, self.samples, self.kept, self.received.min_batch)
        # The batch has its view first, as with every learner: SER looks at the same view.
        images, old = draws.view(batch.images), draws.draw(self.kept, count)
        logits = self.model(torch.cat([images, draws.view(old.images)]))
        new = self.cross_entropy(logits[: len(batch)], batch.labels)
        kept = functional.cross_entropy(logits[len(batch) :], old.labels)
        return (len(batch) * new + count * kept) / (len(batch) + count)

    def rehearsal(self) -> dict[str, Tensor]:
        """A share of each task's images, and their labels."""
        share, seed, task = self.own.share, self.settings.seed, self.received.task
        rows = draw_rows(len(self.samples), share, seed, task, self.received.least_kept)
        return add_task(self.received.rehearsal, self.samples, rows, task)
