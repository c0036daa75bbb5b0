"""DER++: replay of kept images against their labels, and against what the network once said.

Buzzega et al., "Dark experience for general continual learning: a strong, simple baseline",
NeurIPS 2020, arXiv:2004.07211, Eq. 6. With a batch (x, y) of the stream, and two independent draws
(x', z') and (x'', y'') from a reservoir, a step minimises

    ℓ(M(x), y)  +  α ‖M(x') − z'‖²  +  β ℓ(M(x''), y'')

The reservoir holds images, labels, and the logits z that the network gave when an image came by. It
belongs to the hospital's stream, whichever models come. Each of the three is a forward pass of its
own, as in the authors' code: BatchNorm normalises each by itself.

Deviations, both as in the authors' code:
 1. The squared norm is the mean over the logits, not their sum.
 2. An image counts once for each time that it is trained on, in each epoch.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional

from learning.augmentation import Draws
from learning.learners.plain import Learner
from learning.reservoir import Reservoir
from learning.samples import Samples
from learning.settings import DERppSettings, ReservoirSettings


class DERpp(Learner):
    """Cross-entropy on the stream, and on kept images cross-entropy and distillation.

    Attributes:
        reservoir: Rows of `images` uint8 [m, C, H, W], `labels` int64 [m], `logits` [m, K].
        drawn: How many of them are in a draw, or all if there are fewer.
    """

    tables: tuple[tuple[str, type[Any]], ...] = (
        ("derpp", DERppSettings),
        ("reservoir", ReservoirSettings),
    )
    own: DERppSettings

    def begin_visit(self) -> None:
        """Take up the reservoir as the hospital's last visit left it."""
        chosen = self.settings.section("reservoir", ReservoirSettings)
        self.reservoir = Reservoir(chosen.size, self.received.rehearsal)
        self.drawn = chosen.batch_size

    def observe(self, batch: Samples, draws: Draws) -> Tensor:
        """The loss of a batch [N]."""
        return self.replay_loss(batch, self.model(draws.view(batch.images)), draws)

    def replay_loss(self, batch: Samples, logits: Tensor, draws: Draws) -> Tensor:
        """Eq. 6, from the logits [N, K] of a batch; then it comes by at the reservoir."""
        loss = self.cross_entropy(logits, batch.labels)
        if len(self.reservoir):
            loss = loss + self.replay_term(draws)
        self.keep(batch, logits.detach(), draws)
        return loss

    def replay_term(self, draws: Draws) -> Tensor:
        """α ‖M(x') − z'‖² + β ℓ(M(x''), y'')."""
        first = self.reservoir.draw(self.drawn, draws.generator)
        distance = self.distance(self.model(draws.view(first["images"])), first)
        second = self.reservoir.draw(self.drawn, draws.generator)
        replay = functional.cross_entropy(
            self.model(draws.view(second["images"])), second["labels"]
        )
        return self.own.alpha * distance + self.own.beta * replay

    def distance(self, outputs: Tensor, kept: Mapping[str, Tensor]) -> Tensor:
        """‖M(x') − z'‖²: outputs [m, K] for kept rows, whose `logits` are z'."""
        return functional.mse_loss(outputs, kept["logits"])

    def keep(self, batch: Samples, logits: Tensor, draws: Draws) -> None:
        """Let a batch [N], and what the network says of it [N, K], come by at the reservoir."""
        rows = {"images": batch.images, "labels": batch.labels, "logits": logits}
        self.reservoir.add(draws.generator, **rows)

    def rehearsal(self) -> dict[str, Tensor]:
        """The reservoir."""
        return self.reservoir.state()
