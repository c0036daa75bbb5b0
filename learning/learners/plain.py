"""Cross-entropy on the hospital's own images: what most methods minimise."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn

from learning.augmentation import Draws
from learning.balance import class_weights, focal_losses
from learning.samples import Samples
from strategies.protocol.settings import Settings


@dataclass(frozen=True)
class Received:
    """What a visit finds beside the model and the hospital's images.

    Attributes:
        buffers: Synthetic images to train on.
        memory: What travels with the model, by name; empty at the model's first visit.
        rehearsal: What the hospital has kept for its stream, by name; empty at its first visit.
        leg: Which of a visit's trainings of one model this is, from 1.
        new_rounds: How many rounds have begun since the model's last visit.
        task: Whose images the samples are, from 1; 0 if there are no tasks.
        public: The images of the archive that the learner names; None if it names none.
    """

    buffers: Sequence[Samples] = ()
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    rehearsal: Mapping[str, Tensor] = field(default_factory=dict)
    leg: int = 1
    new_rounds: int = 0
    task: int = 0
    public: Samples | None = None


class Learner:
    """What a hospital minimises during one visit; other learners build on this one.

    The loop (learning/training.py) calls `observe` for every batch, takes the gradient of the loss
    that it returns and makes a step. A learner keeps things in three ways: `memory` travels with
    the model; the state-dict keys that `local` names stay at the hospital, for the next model that
    comes; and `rehearsal` stays at the hospital, for its stream of images.

    Args:
        model: The network, with the weights as received.
        samples: The images of the visit.
        settings: Of the run.
        received: What came with the model and what was kept here.

    Attributes:
        samples: The images that an epoch is a pass over.
        tables: The settings that the learner reads, each table by its name and frozen dataclass.
        own: Those of the first table.
        archive: The setting that names a file of public images, if the learner wants some.
        warm_up: Epochs before the first of the visit, numbered 0 and below.
        withholds: Whether the keys that `local` names do not travel.
    """

    tables: tuple[tuple[str, type[Any]], ...] = ()
    own: Any
    archive = ""
    warm_up = 0
    withholds = True

    def __init__(
        self, model: nn.Module, samples: Samples, settings: Settings, received: Received
    ) -> None:
        self.model, self.samples = model, samples
        self.settings, self.received = settings, received
        self.own = self.check(settings)
        self.begin_visit()
        weighted = settings.train.class_balance == "loss"
        self.class_weights = class_weights(self.samples.labels) if weighted else None

    def begin_visit(self) -> None:
        """Get ready to train, with all that the learner was given; here nothing."""

    def begin_epoch(self, epoch: int) -> None:
        """Put the network into its mode for an epoch, from 1 (after a warm-up)."""
        self.model.train()

    def trained(self) -> Iterable[nn.Parameter]:
        """What the optimizer changes: the network's, unless the learner has others beside them."""
        return self.model.parameters()

    def observe(self, batch: Samples, draws: Draws) -> Tensor:
        """The loss of one step, a scalar, from a batch [N] of the samples."""
        return self.cross_entropy(self.model(draws.view(batch.images)), batch.labels)

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean over own images by `train.class-balance`: logits [N, K], labels [N]."""
        losses = self.losses(logits, labels)
        if self.class_weights is None:
            return losses.mean()
        weights = self.class_weights[labels]
        return (weights * losses).sum() / weights.sum()

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """That of each image, by `train.focal-gamma`: logits [N, K], labels [N] -> [N]."""
        return focal_losses(logits, labels, self.settings.train.focal_gamma)

    def before_step(self) -> None:
        """Change the gradient before the optimizer's step; here nothing."""

    def after_step(self) -> None:
        """Note what the optimizer's step has done; here nothing."""

    def memory(self, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """What travels with the trained model, by name, in any shape; here nothing."""
        return {}

    def rehearsal(self) -> Mapping[str, Tensor]:
        """What the hospital keeps for its stream, by name, in any shape; here nothing."""
        return {}

    @classmethod
    def check(cls, settings: Settings) -> Any:
        """Those of its first table; all are read before the first hop, to refuse what is wrong."""
        found = [settings.section(*table) for table in cls.tables]
        return found[0] if found else None

    @classmethod
    def check_suited(cls, model: nn.Module, settings: Settings) -> None:
        """Refuse, before the first hop, what no visit could begin with; here nothing.

        Args:
            model: The network, perhaps on the device `meta`.
            settings: Of the run.

        Raises:
            ModelError: The learner cannot train such a network.
            SettingsError: It cannot train with such settings.
        """

    @classmethod
    def local(cls, model: nn.Module, settings: Settings) -> set[str]:
        """State-dict keys that stay local; here none.

        The next model that comes gets their values as this visit left them.
        """
        return set()


class Plain(Learner):
    """Cross-entropy alone."""


def batchnorm_keys(model: nn.Module, *, statistics_alone: bool = False) -> set[str]:
    """State-dict keys of all BatchNorm layers, or of their running statistics and counters."""
    return {
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        for name in (dict(module.named_buffers()) if statistics_alone else module.state_dict())
    }
