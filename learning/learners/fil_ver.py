"""FIL-VER at a hospital, and at the server (strategies/fil_ver.py).

Park et al., arXiv:2110.09695. The encoder and a classifier are trained together on the first task:

    E_z[ℓ(f_cls(z), y)] + β KL(N(µ, σ²) ‖ N(0, I)),    z = µ + σ ⊙ ε,  ε ~ N(0, I)    (Eq. 9 and 4)

Afterwards the encoder does not change, and the classifier is trained on embeddings. A hospital uses
embeddings of its images, mixed with kept embeddings of earlier tasks. The server uses embeddings
that hospitals have sent. ε is drawn anew at every step. With the network `ebr`, z is f(x), and
there is no KL term.
"""

import torch
from torch import Tensor
from torch.nn import functional

from learning.augmentation import Draws
from learning.evaluation import split
from learning.learners.plain import Learner
from learning.models.embedding import EmbeddingNetwork
from learning.samples import Samples
from learning.settings import EmbeddingSettings
from learning.stream import add_task, draw_rows, earlier_samples, replay_size


class _EmbeddingLearner(Learner):
    """The common part of the learners of this file."""

    tables = (("filver", EmbeddingSettings),)
    own: EmbeddingSettings
    needs = (EmbeddingNetwork, "The network has no encoder: set 'model' to vee or ebr.")
    model: EmbeddingNetwork

    def classify(self, embeddings: Tensor, draws: Draws) -> Tensor:
        """Embeddings [N, P, d] -> logits [N, K]."""
        logits: Tensor = self.model.classifier(draw(embeddings, draws))
        return logits


class Encoding(_EmbeddingLearner):
    """The loss of Eq. 9, for the encoder and a classifier on the images of the first task."""

    archive = "filver.pretrain"

    def observe(self, batch: Samples, draws: Draws) -> Tensor:
        """The loss of a batch of images [N]."""
        embeddings = self.model.embed(draws.view(batch.images))
        loss = self.cross_entropy(self.classify(embeddings, draws), batch.labels)
        return loss + self.own.beta * divergence(embeddings)


class Rehearsal(_EmbeddingLearner):
    """Cross-entropy of the classifier on embeddings alone: training at the server."""

    def observe(self, batch: Samples, draws: Draws) -> Tensor:
        """The loss of a batch of embeddings [N, P, d]."""
        return self.cross_entropy(self.classify(batch.images, draws), batch.labels)


class FilVer(Rehearsal):
    """Cross-entropy of the classifier on new and on kept embeddings of a hospital's images."""

    def begin_visit(self) -> None:
        """Encode the images once: the encoder is not trained."""
        self.samples = encode(self.model, self.samples)
        self.kept = earlier_samples(self.received.rehearsal, self.received.task)
        share, seed, task = self.own.share, self.settings.seed, self.received.task
        self.chosen = draw_rows(len(self.samples), share, seed, task)  # to be sent

    def observe(self, batch: Samples, draws: Draws) -> Tensor:
        """The mean loss of a batch and of kept embeddings; an epoch is a pass over both."""
        new = super().observe(batch, draws)
        if self.kept is None:
            return new
        count = replay_size(batch, self.samples, self.kept, self.received.min_batch)
        old = draws.draw(self.kept, count)
        replayed = functional.cross_entropy(self.classify(old.images, draws), old.labels)
        return (len(batch) * new + count * replayed) / (len(batch) + count)

    def rehearsal(self) -> dict[str, Tensor]:
        """(µ, log σ, y), or (f(x), y), of a share of each task's images."""
        share, seed, task = self.own.share, self.settings.seed, self.received.task
        rows = draw_rows(len(self.samples), share, seed, task, self.received.least_kept)
        return add_task(self.received.rehearsal, self.samples, rows, task)


@torch.no_grad()
def encode(network: EmbeddingNetwork, samples: Samples) -> Samples:
    """Embeddings in the place of images: float32 [n, P, 256]."""
    network.eval()
    parts = [network.embed(batch) for batch in split(samples.images)]
    return Samples(torch.cat(parts), samples.labels)


def draw(embeddings: Tensor, draws: Draws) -> Tensor:
    """Draw z [N, d] by Eq. 4 from µ and log σ, [N, 2, d]; [N, 1, d] is z already."""
    if embeddings.shape[1] == 1:
        return embeddings[:, 0]
    means, log_sigmas = embeddings.unbind(dim=1)
    noise = torch.randn(means.shape, generator=draws.generator).to(means.device)
    return means + log_sigmas.exp() * noise


def divergence(embeddings: Tensor) -> Tensor:
    """KL(N(µ, σ²) ‖ N(0, I)) = ½ Σ (µ² + σ² − 1 − 2 log σ), the mean of N; 0 if P is 1."""
    if embeddings.shape[1] == 1:
        return embeddings.new_zeros(())
    means, log_sigmas = embeddings.unbind(dim=1)
    terms = means**2 + (2 * log_sigmas).exp() - 1 - 2 * log_sigmas
    return terms.sum(dim=1).mean() / 2
