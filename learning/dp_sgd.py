"""DP-SGD: a visit of which no patient's part can be told (Abadi et al. 2016, arXiv:1607.00133).

Each step draws every patient by itself (Poisson sampling, as the accountant assumes) and one image
of each that is drawn; where patients are not known every image is one. Each image's gradient is
clipped to a norm C, and noise of σ C is added to their sum (opacus). What is released is the model:
the loss of a visit and all test figures are not covered.
"""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from learning.errors import ModelError
from strategies.protocol.settings import DPSettings


@dataclass(frozen=True, eq=False)
class Plan:
    """The noised steps of a visit.

    Attributes:
        owners: Whose each image is, [N].
        rate: The chance of a patient to be drawn in a step.
        steps: In an epoch: so many that a patient is drawn once in it, on average.
    """

    owners: NDArray[np.int64]
    rate: float
    steps: int

    @classmethod
    def of(cls, owners: NDArray[np.int64], batch_size: int) -> "Plan":
        """Of a batch size, which batches have on average."""
        patients = len(np.unique(owners))
        return cls(owners, min(1.0, batch_size / patients), max(1, round(patients / batch_size)))

    def draw(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """The images of a step: one of each patient that is drawn."""
        order = rng.permutation(len(self.owners))
        whose, first = np.unique(self.owners[order], return_index=True)
        return np.asarray(order[first[rng.random(len(whose)) < self.rate]])


def check_network(network: nn.Module) -> None:
    """Refuse a network in which images of a batch mix.

    Raises:
        ModelError: It has BatchNorm, or a layer that opacus cannot take.
    """
    from opacus.validators import ModuleValidator  # takes seconds

    if errors := ModuleValidator.validate(network.train(), strict=False):
        raise ModelError(
            "With 'train.dp.noise-multiplier' above 0 no layer may mix the images of a batch, as "
            f"BatchNorm does ({len(errors)} layers of the network do): choose the model 'mlp', or "
            "one of torchvision without BatchNorm, such as 'squeezenet1_1' or 'vgg11'."
        )


@dataclass(frozen=True, eq=False)
class PrivateSteps:
    """What DP-SGD changes in the training loop (learning/training.py).

    The loss is to be a mean over images, each of which stands for itself.

    Attributes:
        plan: What is drawn in a step.
        settings: Noise and clipping.
        secret: Decides on what is drawn and on the noise; whoever can draw it again can subtract
            the noise.
    """

    plan: Plan
    settings: DPSettings
    secret: np.random.Generator

    def batches(self) -> list[Tensor]:
        """The images of each step of an epoch; a step may draw nobody."""
        return [torch.from_numpy(self.plan.draw(self.secret)) for _ in range(self.plan.steps)]

    @contextmanager
    def over(
        self, network: nn.Module, optimizer: torch.optim.Optimizer
    ) -> Iterator[torch.optim.Optimizer]:
        """The optimizer with clipping and noise; inside, gradients are computed image by image.

        Raises:
            ModelError: The network mixes images of a batch.
        """
        from opacus.grad_sample import GradSampleModule  # takes seconds
        from opacus.optimizers import DPOptimizer

        check_network(network)
        watched = GradSampleModule(network)
        device = next(network.parameters()).device
        noised = DPOptimizer(
            optimizer,
            noise_multiplier=self.settings.noise_multiplier,
            max_grad_norm=self.settings.clipping_norm,
            expected_batch_size=self.plan.rate * len(np.unique(self.plan.owners)),
            generator=torch.Generator(device).manual_seed(int(self.secret.integers(2**63))),
        )
        with warnings.catch_warnings():
            # opacus needs the gradients of outputs alone: of the first layer torch has no others.
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            yield noised
        watched.to_standard_module()


def noise_alone(parameters: Iterable[nn.Parameter]) -> None:
    """Give a private step the gradients of no image."""
    for parameter in parameters:
        parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))  # type: ignore[attr-defined]
