"""The one training loop: a visit of a model at a hospital."""

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from learning.augmentation import AUGMENTATIONS, Draws
from learning.errors import DeadlineError
from learning.learners.plain import Learner
from learning.randomness import seeded
from strategies.protocol.settings import TrainSettings

OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


def train(
    learner: Learner,
    settings: TrainSettings,
    epochs: int,
    rng: np.random.Generator,
    deadline: float,
    after_epoch: Callable[[int], None] = lambda epoch: None,
) -> dict[str, float]:
    """Train a model on a hospital's images, with a new optimizer.

    Args:
        learner: The local objective; holds the model and the images, on one device.
        settings: Batch size, optimizer and augmentation.
        epochs: Passes over the images.
        rng: Decides on the order of the images, on all draws of the learner, and on dropout.
        deadline: When to give up, in the time of `time.monotonic`.
        after_epoch: Called with the number of each epoch, from 1, at its end.

    Returns:
        `train-loss`, the mean over the last epoch without the method's penalty, and `num-examples`.

    Raises:
        DeadlineError: The deadline has passed.
    """
    samples = learner.samples
    device = samples.labels.device
    optimizer = OPTIMIZERS[settings.optimizer](
        learner.model.parameters(),
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
    draws = Draws(generator, AUGMENTATIONS[settings.augment])
    with seeded(rng):
        for epoch in range(1, epochs + 1):
            learner.begin_epoch(epoch)
            total = torch.zeros((), device=device)  # read once, not at every step
            for batch in batches(len(samples), settings.batch_size, generator):
                if time.monotonic() > deadline:
                    raise DeadlineError("Training took longer than allowed (hop-timeout).")
                optimizer.zero_grad()
                loss = learner.observe(samples[batch.to(device)], draws)
                loss.backward()
                learner.before_step()
                optimizer.step()
                learner.after_step()
                total += loss.detach() * len(batch)
            after_epoch(epoch)
    return {"train-loss": total.item() / len(samples), "num-examples": len(samples)}


def batches(count: int, size: int, generator: torch.Generator) -> list[Tensor]:
    """The numbers 0 to `count` - 1 in random order, cut into batches of `size`.

    A single image left over joins the batch before it: BatchNorm cannot train on one.
    """
    cut = list(torch.randperm(count, generator=generator).split(size))
    if len(cut) > 1 and len(cut[-1]) == 1:
        cut[-2:] = [torch.cat(cut[-2:])]
    return cut
