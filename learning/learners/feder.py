"""FedER at the hospital (strategies/feder.py).

Pennisi et al., arXiv:2206.10048, Eq. 5. A step takes B of the hospital's images x and B images x'
of the buffer that came with the model, as one batch of 2B, and minimises

    λ · mean over B of ℓ(M(x), y)  +  (1 − λ) · mean over B of ℓ(M(x'), y')

For λ = 0.5 this is the mean over the 2B images, as in the authors' code. `train.class-balance`
changes the first term alone: a buffer has equally many images of each class.
"""

from torch import Tensor

from learning.augmentation import Draws
from learning.learners.plain import Learner
from learning.samples import Samples, concatenate
from learning.settings import ReplaySettings


class FedER(Learner):
    """Cross-entropy on the hospital's images and on a replayed buffer.

    If there are no images (FedER-B), the hospital's own buffer, the first one, takes their place.
    """

    tables = (("feder", ReplaySettings),)
    own: ReplaySettings

    def begin_visit(self) -> None:
        """Choose the images to train on, and the buffer to replay."""
        buffers = list(self.received.buffers)
        if buffers and not len(self.samples):
            self.samples = buffers.pop(0)
        self.replay = buffers[0] if buffers and self.own.replay_weight > 0 else None

    def observe(self, batch: Samples, draws: Draws) -> Tensor:
        """The loss of Eq. 5, for a batch [N] and N random images of the buffer."""
        if self.replay is None:
            return super().observe(batch, draws)
        both = concatenate([batch, draws.draw(self.replay, len(batch))])
        logits = self.model(draws.view(both.images))
        (own, replayed), labels = logits.chunk(2), both.labels.chunk(2)
        weight = self.own.replay_weight
        replay = self.losses(replayed, labels[1]).mean()
        return (1 - weight) * self.cross_entropy(own, labels[0]) + weight * replay
