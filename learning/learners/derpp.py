"""DER++ and DER: replay of kept images, with earlier logits of the network, and with their labels.

Buzzega et al., "Dark experience for general continual learning: a strong, simple baseline",
NeurIPS 2020, arXiv:2004.07211, Eq. 6. With a batch (x, y) of the stream, and two independent draws
(x', z') and (x'', y'') from a reservoir, a step minimises

    ℓ(M(x), y)  +  α ‖M(x') − z'‖²  +  β ℓ(M(x''), y'')

The reservoir holds images, labels, and the network's logits z when an image was offered. It belongs
to the hospital's stream and serves all models that come. Each of the three terms is a forward pass
of its own, as in the authors' code: BatchNorm normalises each by itself. With `derpp.one-pass` one
draw serves both terms, in one pass with the batch, as TwF has it (twf.py).

DER (Eq. 5) is the same without the last term.

Deviations, both as in the authors' code:
 1. The squared norm is the mean over the logits, not their sum.
 2. An image counts every time that it is trained on, in every epoch.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from learning.augmentation import Draws
from learning.learners.er import ER
from learning.samples import Samples
from learning.settings import DERppSettings


class DERpp(ER):
    """Cross-entropy on the stream, and on kept images cross-entropy and distillation.

    Attributes:
        reservoir: As in ER, with `logits` [m, K].
    """

    tables = (("derpp", DERppSettings), *ER.tables)
    own: DERppSettings
    draws = 2

    def observe(self, batch: Samples, draws: Draws) -> Tensor:
        """The loss of Eq. 6 of a batch [N]; keeps images of the batch."""
        images, count = draws.view(batch.images), len(batch)
        if self.own.one_pass and len(self.reservoir):
            kept = self.reservoir.draw(draws.generator)
            outputs = self.model(torch.cat([images, draws.view(kept["images"])]))
            logits, replay = outputs[:count], self.weigh(outputs[count:], kept)
        else:
            logits = self.model(images)
            replay = self.replay_term(draws) if len(self.reservoir) else torch.zeros(())
        loss = self.cross_entropy(logits, batch.labels) + replay.to(logits.device)
        self.keep(batch, logits.detach(), draws)
        return loss

    def replay_term(self, draws: Draws) -> Tensor:
        """α ‖M(x') − z'‖² + β ℓ(M(x''), y'')."""
        first = self.reservoir.draw(draws.generator)
        distance = self.distance(self.model(draws.view(first["images"])), first)
        second = self.reservoir.draw(draws.generator)
        replay = functional.cross_entropy(
            self.model(draws.view(second["images"])), second["labels"]
        )
        return self.own.alpha * distance + self.own.beta * replay

    def weigh(self, outputs: Tensor, kept: Mapping[str, Tensor]) -> Tensor:
        """Both terms of one draw, from its outputs [m, K]."""
        replay = functional.cross_entropy(outputs, kept["labels"])
        return self.own.alpha * self.distance(outputs, kept) + self.own.beta * replay

    def distance(self, outputs: Tensor, kept: Mapping[str, Tensor]) -> Tensor:
        """‖M(x') − z'‖² of outputs [m, K] and the `logits` z' of kept rows."""
        return functional.mse_loss(outputs, kept["logits"])

    def keep(self, batch: Samples, logits: Tensor, draws: Draws) -> None:
        """Offer a batch [N], with the network's logits [N, K], to the reservoir."""
        self.reservoir.add(draws.generator, images=batch.images, labels=batch.labels, logits=logits)


class DER(DERpp):
    """Cross-entropy on the stream, and distillation on kept images."""

    draws = 1

    def replay_term(self, draws: Draws) -> Tensor:
        """α ‖M(x') − z'‖²."""
        kept = self.reservoir.draw(draws.generator)
        return self.weigh(self.model(draws.view(kept["images"])), kept)

    def weigh(self, outputs: Tensor, kept: Mapping[str, Tensor]) -> Tensor:
        """The term of a draw, from its outputs [m, K]."""
        return self.own.alpha * self.distance(outputs, kept)
