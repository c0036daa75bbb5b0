"""ER-ACE: replay, and a loss of new images that ignores the outputs of earlier classes.

Caccia et al., "New insights on reducing abrupt representation change in online continual
learning", ICLR 2022, arXiv:2104.05025: asymmetric cross-entropy. With a batch (x, y) of the stream
and a draw (x', y') from a reservoir, a step minimises

    ℓ(M(x), y | C)  +  ℓ(M(x'), y' | C ∪ C_old)

ℓ( | C) is the cross-entropy with a softmax over the classes C alone. C are the classes of the
batch, and C_old the classes seen before. Each term is a forward pass of its own, as in the authors'
code: BatchNorm normalises each by itself.

Deviation:
 1. Classes that were never seen stay in the softmax of the first term, as in the authors' code.
"""

import torch
from torch import Tensor
from torch.nn import functional

from learning.augmentation import Draws
from learning.learners.er import ER
from learning.reservoir import Reservoir
from learning.samples import Samples
from learning.settings import ReservoirSettings
from learning.stream import restrict


class ERACE(ER):
    """Cross-entropy on the stream without earlier classes, and on kept images with them."""

    own: ReservoirSettings

    def begin_visit(self) -> None:
        """Load the reservoir and the seen classes [c] from the last visit."""
        kept = dict(self.received.rehearsal)
        self.seen = kept.pop("classes", self.samples.labels[:0])
        self.reservoir = Reservoir(self.own, kept)

    def observe(self, batch: Samples, draws: Draws) -> Tensor:
        """Both terms; the batch [N] is then offered to the reservoir."""
        logits = self.model(draws.view(batch.images))
        self.seen = torch.cat([self.seen, batch.labels]).unique()
        absent = self.seen[~torch.isin(self.seen, batch.labels)]
        loss = self.cross_entropy(logits.index_fill(1, absent, -torch.inf), batch.labels)
        if len(self.reservoir):
            rows = self.reservoir.draw(draws.generator)
            replayed = restrict(self.seen, self.model(draws.view(rows["images"])))
            loss = loss + functional.cross_entropy(replayed, rows["labels"])
        self.reservoir.add(draws.generator, images=batch.images, labels=batch.labels)
        return loss

    def rehearsal(self) -> dict[str, Tensor]:
        """The reservoir, and the seen classes."""
        return {**super().rehearsal(), "classes": self.seen}
