"""ER: a hospital trains on new images and on kept ones, in one batch.

Chaudhry et al., "On tiny episodic memories in continual learning", arXiv:1902.10486, Algorithm 1.
With a batch (x, y) of the stream and a draw (x', y') from a reservoir, a step minimises the mean of

    ℓ(M(x), y)  over x and x'

Deviation:
 1. An image counts in the reservoir every time that it is trained on, in every epoch.
"""

import torch
from torch import Tensor
from torch.nn import functional

from learning.augmentation import Draws
from learning.learners.plain import Learner
from learning.reservoir import Reservoir
from learning.samples import Samples
from learning.settings import ReservoirSettings


class ER(Learner):
    """Cross-entropy on the stream and on kept images.

    Attributes:
        reservoir: Rows of `images` uint8 [m, C, H, W] and `labels` int64 [m].
    """

    tables: tuple[tuple[str, type], ...] = (("reservoir", ReservoirSettings),)

    def begin_visit(self) -> None:
        """Load the reservoir from the last visit."""
        chosen = self.settings.section("reservoir", ReservoirSettings)
        self.reservoir = Reservoir(chosen, self.received.rehearsal)

    def observe(self, batch: Samples, draws: Draws) -> Tensor:
        """The mean over a batch [N] and a draw; the batch is then offered to the reservoir."""
        images, labels, count = draws.view(batch.images), batch.labels[:0], len(batch)
        if len(self.reservoir):
            kept = self.reservoir.draw(draws.generator)
            images, labels = torch.cat([images, draws.view(kept["images"])]), kept["labels"]
        logits = self.model(images)
        new = count * self.cross_entropy(logits[:count], batch.labels)
        old = functional.cross_entropy(logits[count:], labels, reduction="sum")
        self.reservoir.add(draws.generator, images=batch.images, labels=batch.labels)
        return (new + old) / len(images)

    def rehearsal(self) -> dict[str, Tensor]:
        """The reservoir."""
        return self.reservoir.state()
