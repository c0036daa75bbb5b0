"""Cross-entropy on the hospital's own images: the objective of most methods."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn

from learning.augmentation import Draws
from learning.balance import class_weights, focal_losses
from learning.errors import ModelError
from learning.models import Architecture
from learning.samples import Samples
from learning.settings import ReservoirSettings
from strategies.protocol.settings import Settings


@dataclass(frozen=True)
class Received:
    """The input of a visit beside the model and the hospital's images."""

    buffers: Sequence[Samples] = ()  # synthetic images to train on
    # Tensors that travel with the model, by name; empty at the model's first visit
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    # Tensors that the hospital has kept for its stream, by name; empty at its first visit
    rehearsal: Mapping[str, Tensor] = field(default_factory=dict)
    leg: int = 1  # number of the training of one model in a visit, from 1
    # The optimizer's state that travels with the model; empty for a new optimizer
    optimizer: Mapping[str, Tensor] = field(default_factory=dict)
    new_rounds: int = 0  # rounds that have begun since the model's last visit
    task: int = 0  # number of the task of the samples, from 1; 0 if there are no tasks
    # Images of the archive that the learner names; None if it names none
    public: Samples | None = None
    # int64 [n], the patient of each of the hospital's training images; None: each is a patient
    owners: Tensor | None = None
    fewest: int = 1  # least number of patients behind a mean of a class that leaves
    least_kept: int = 1  # least number of images that are kept of a task
    min_batch: int = 1  # least number of the hospital's images in a step, kept or new
    deadline: float = math.inf  # time limit of the visit, on the clock of `time.monotonic`


class Learner:
    """A hospital's objective during one visit; other learners build on this one.

    The loop (learning/training.py) calls `observe` for every batch, and makes a step with the
    gradient of the returned loss. A learner keeps state in three ways. `memory` travels with the
    model. The state-dict keys of `local` stay at the hospital, for the next model that comes.
    `rehearsal` stays at the hospital, for its stream of images. `received` is the input that came
    with the model or was kept here.

    Attributes:
        samples: The images of an epoch.
        tables: The settings that the learner reads: each table's name and frozen dataclass.
        own: The settings of the first table.
        needs: The kind of network that the learner trains, and the refusal of others.
        optimizer: The optimizer's state after training, if it travels (training.py writes it).
        archive: The setting for a file of public images, if the learner uses one.
        counted: Number of own images, the first of `samples`, if they alone count for the least
            number of images in a step; None if all images count.
        warm_up: Epochs before the first of the visit, with the numbers 0 and below.
        withholds: Whether the keys of `local` do not travel.
        copies: Copies of the weights in a visit: networks from before, importances, anchors.
        draws: Draws from the reservoir in a step, each with a pass of its own, if it has one.
    """

    tables: tuple[tuple[str, type[Any]], ...] = ()
    own: Any
    needs: tuple[type[nn.Module], str] = nn.Module, ""
    archive = ""
    counted: int | None = None
    warm_up = 0
    withholds = True
    copies = 0
    draws = 1

    def __init__(
        self, model: nn.Module, samples: Samples, settings: Settings, received: Received
    ) -> None:
        self._check_kind(model)
        self.model, self.samples = model, samples
        self.settings, self.received = settings, received
        self.optimizer: Mapping[str, Tensor] = {}
        self.own = self.read_settings(settings)
        self.begin_visit()
        weighted = settings.train.class_balance == "loss"
        self.class_weights = class_weights(self.samples.labels) if weighted else None

    def begin_visit(self) -> None:
        """Prepare the training; here nothing."""

    def begin_epoch(self, epoch: int) -> None:
        """Set the network's mode for an epoch, numbered from 1 (after a warm-up)."""
        self.set_mode(training=True)

    def set_mode(self, training: bool) -> None:
        """Set the network's mode; BatchNorm's statistics may be frozen (`train.freeze`)."""
        self.model.train(training)
        if self.settings.train.freeze == "statistics":
            for module in batchnorm_layers(self.model).values():
                module.eval()

    def trained_parameters(self) -> Iterable[nn.Parameter]:
        """The parameters that the optimizer changes; here the network's."""
        return self.model.parameters()

    def observe(self, batch: Samples, draws: Draws) -> Tensor:
        """The loss of one step, a scalar, from a batch [N] of the samples."""
        return self.cross_entropy(self.model(draws.view(batch.images)), batch.labels)

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of own images, by `train.class-balance`: logits [N, K], labels [N]."""
        losses = self.losses(logits, labels)
        if self.class_weights is None:
            return losses.mean()
        weights = self.class_weights[labels]
        return (weights * losses).sum() / weights.sum()

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each image, by `train.focal-gamma`: logits [N, K], labels [N] -> [N]."""
        return focal_losses(logits, labels, self.settings.train.focal_gamma)

    def before_step(self) -> None:
        """Change the gradient before the optimizer's step; here nothing."""

    def after_step(self) -> None:
        """Use the result of the optimizer's step; here nothing."""

    def memory(self, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """The tensors that travel with the trained model, by name, in any shape; here none."""
        return {}

    def rehearsal(self) -> Mapping[str, Tensor]:
        """The tensors that the hospital keeps for its stream, by name, in any shape; here none."""
        return {}

    @classmethod
    def read_settings(cls, settings: Settings) -> Any:
        """The settings of the first table; all tables are read, to refuse wrong values."""
        found = [settings.section(*table) for table in cls.tables]
        return found[0] if found else None

    @classmethod
    def check_suited(cls, model: nn.Module, settings: Settings) -> None:
        """Refuse, before the first hop, a network or settings that no visit can use.

        Here it is a network of another kind. The network may be on the device `meta`.

        Raises:
            ModelError: The learner cannot train such a network.
            SettingsError: The learner cannot train with such settings.
        """
        cls._check_kind(model)

    @classmethod
    def _check_kind(cls, model: nn.Module) -> None:
        kind, refusal = cls.needs
        if not isinstance(model, kind):
            raise ModelError(refusal)

    @classmethod
    def memory_of_a_visit(cls, settings: Settings, images: int) -> tuple[int, int, int]:
        """Images in a batch, images that the learner keeps, and its copies of the weights.

        These are upper estimates for a hospital with this number of training `images`.
        """
        own = settings.train.batch_size
        if settings.train.dp.noise_multiplier:  # a gradient for each image
            return own, 0, cls.copies + own
        if "reservoir" not in dict(cls.tables):
            return own, 0, cls.copies
        kept = settings.section("reservoir", ReservoirSettings)
        batch = max(own, min(kept.batch_size, kept.size))
        # Two draws make three passes where other learners make two.
        return batch + batch // 2 * (cls.draws - 1), kept.size, cls.copies

    @classmethod
    def bytes_beside(cls, architecture: Architecture, settings: Settings, kept: int) -> int:
        """Bytes of a visit beside the network and so many kept images; here none."""
        return 0

    @classmethod
    def local(cls, model: nn.Module, settings: Settings) -> set[str]:
        """The state-dict keys that stay local; here none.

        The next model that comes gets their values from the end of this visit.
        """
        return set()


class Plain(Learner):
    """Cross-entropy alone."""


def batchnorm_layers(model: nn.Module) -> dict[str, nn.Module]:
    """All BatchNorm layers, by name."""
    kind = nn.modules.batchnorm._BatchNorm
    return {name: module for name, module in model.named_modules() if isinstance(module, kind)}


def batchnorm_keys(model: nn.Module, *, statistics_alone: bool = False) -> set[str]:
    """State-dict keys of all BatchNorm layers, or of their running statistics and counters."""
    return {
        f"{prefix}.{name}"
        for prefix, module in batchnorm_layers(model).items()
        for name in (dict(module.named_buffers()) if statistics_alone else module.state_dict())
    }
