"""DP-SGD: a visit of which no patient's part can be told (Abadi et al. 2016, arXiv:1607.00133).

Each step draws every patient by itself (Poisson sampling, as the accountant assumes) and one image
of each that is drawn; where patients are not known every image is one. Each image's gradient is
clipped to a norm C, and noise of σ C is added to their sum (opacus). What is released is the model:
the loss of a visit and all test figures are not covered.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from learning.augmentation import AUGMENTATIONS, Draws
from learning.errors import DeadlineError, ModelError
from learning.learners.plain import Learner
from learning.randomness import seeded
from learning.training import OPTIMIZERS
from strategies.protocol.settings import TrainSettings


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


def train_privately(
    learner: Learner,
    settings: TrainSettings,
    epochs: int,
    plan: Plan,
    rng: np.random.Generator,
    secret: np.random.Generator,
    deadline: float,
    after_epoch: Callable[[int], None] = lambda epoch: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Train a model on a hospital's images by DP-SGD, with a new optimizer.

    Args:
        learner: Its loss is a mean over images, each of which stands for itself.
        settings: Of the visit, with its table `dp`.
        epochs: Passes over the images, on average.
        plan: What is drawn in a step.
        rng: Decides on augmentation and dropout.
        secret: Decides on what is drawn and on the noise; whoever can draw it again can subtract
            the noise.
        deadline: When to give up, in the time of `time.monotonic`.
        after_epoch: Called with the number of each epoch, from 1, at its end.
        progress: Called after every step with how many steps are done, and of how many.

    Returns:
        `train-loss`, the mean over what the last epoch drew, and `num-examples`.

    Raises:
        ModelError: The network mixes images of a batch.
        DeadlineError: The deadline has passed.
    """
    from opacus.grad_sample import GradSampleModule  # takes seconds
    from opacus.optimizers import DPOptimizer

    check_network(learner.model)
    samples = learner.samples
    device = samples.labels.device
    watched = GradSampleModule(learner.model)
    inner = OPTIMIZERS[settings.optimizer](
        learner.trained(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
    )
    noise = torch.Generator(device).manual_seed(int(secret.integers(2**63)))
    optimizer = DPOptimizer(
        inner,
        noise_multiplier=settings.dp.noise_multiplier,
        max_grad_norm=settings.dp.clipping_norm,
        expected_batch_size=plan.rate * len(np.unique(plan.owners)),
        generator=noise,
    )
    draws = Draws(
        torch.Generator().manual_seed(int(rng.integers(2**63))), AUGMENTATIONS[settings.augment]
    )
    total, seen = 0.0, 0
    with seeded(rng), warnings.catch_warnings():
        # opacus needs the gradients of outputs alone: of the first layer torch has no others.
        warnings.filterwarnings("ignore", "Full backward hook is firing")
        for epoch in range(1, epochs + 1):
            learner.begin_epoch(epoch)
            total, seen = 0.0, 0
            for step in range(plan.steps):
                if time.monotonic() > deadline:
                    raise DeadlineError("Training took longer than allowed (hop-timeout).")
                optimizer.zero_grad()
                drawn = torch.from_numpy(plan.draw(secret)).to(device)
                if len(drawn):
                    loss = learner.observe(samples[drawn], draws)
                    loss.backward()
                    total += loss.item() * len(drawn)
                else:  # a step of noise alone, as nobody was drawn
                    for parameter in optimizer.params:
                        parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))
                optimizer.step()
                seen += len(drawn)
                progress((epoch - 1) * plan.steps + step + 1, epochs * plan.steps)
            after_epoch(epoch)
    watched.to_standard_module()
    return {"train-loss": total / max(1, seen), "num-examples": len(samples)}
