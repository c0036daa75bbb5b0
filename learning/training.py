"""The one training loop: a visit of a model at a hospital."""

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from learning.augmentation import AUGMENTATIONS, Draws
from learning.balance import class_weights
from learning.dp_sgd import PrivateSteps, noise_alone
from learning.errors import check_deadline
from learning.learners.plain import Learner
from learning.randomness import use_seed
from strategies.protocol.optimizer import PARTS
from strategies.protocol.settings import TrainSettings

OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


def train(
    learner: Learner,
    settings: TrainSettings,
    epochs: int,
    rng: np.random.Generator,
    deadline: float,
    after_epoch: Callable[[int], None] = lambda epoch: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    fewest: int = 2,
    private: PrivateSteps | None = None,
) -> dict[str, float]:
    """Train a model on a hospital's images, with a new optimizer or the state that came.

    Args:
        learner: The local objective, with the model and the images on one device.
        settings: Batch size, optimizer, augmentation and class balance.
        epochs: Passes over the images, after the learner's warm-up.
        rng: Decides on the order of the images, on all draws of the learner, and on dropout.
        deadline: Time limit, on the clock of `time.monotonic`.
        after_epoch: Called at the end of each epoch with its number, from 1.
        progress: Called after every step with the numbers of finished and of all images.
        fewest: Fewest different images of a step (see also `Learner.counted`).
        private: The steps of DP-SGD, which draw their own images and ignore `fewest`; the network
            has passed `check_network`.

    Returns:
        `train-loss`, the mean loss of the last epoch without the method's penalty; `num-examples`.

    Raises:
        DeadlineError: The deadline has passed.
    """
    samples = learner.samples
    device = samples.labels.device
    optimizer = make_optimizer(learner, settings)
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
    augment = AUGMENTATIONS[settings.augment]
    if private and settings.augment != "none":
        augment = private.augment_alone(augment)
    draws = Draws(generator, augment)
    done = seen = 0
    dtype = torch.double if private else torch.float
    stepping = private.wrap(learner.model, optimizer) if private else nullcontext(optimizer)
    with use_seed(rng), stepping as stepper:
        for epoch in range(1 - learner.warm_up, epochs + 1):
            learner.begin_epoch(epoch)
            total = torch.zeros((), dtype=dtype, device=device)  # read once, not at every step
            if private:
                cut = private.batches()
            else:
                order = epoch_order(samples.labels, settings, generator)
                cut = batches(order, settings.batch_size, fewest, learner.counted)
            seen = sum(map(len, cut))
            most = done + (epochs + 1 - epoch) * seen
            for batch in cut:
                check_deadline(deadline, "Training")
                stepper.zero_grad()
                if len(batch):
                    loss = learner.observe(samples[batch.to(device)], draws)
                    loss.backward()
                    total += loss.detach().to(dtype) * len(batch)
                else:
                    noise_alone(learner.trained_parameters())
                learner.before_step()
                stepper.step()
                learner.after_step()
                done += len(batch)
                progress(done, most)
            if epoch > 0:
                after_epoch(epoch)
    if settings.optimizer_state == "travels":
        learner.optimizer = {
            f"{name}.{part}": optimizer.state[parameter][part]
            for name, parameter in learner.model.named_parameters()
            if optimizer.state[parameter]
            for part in PARTS
        }
    return {"train-loss": total.item() / max(1, seen), "num-examples": len(samples)}


def make_optimizer(learner: Learner, settings: TrainSettings) -> torch.optim.Optimizer:
    """A new optimizer, or one with the state that came with the model."""
    optimizer: torch.optim.Optimizer = OPTIMIZERS[settings.optimizer](
        learner.trained_parameters(),
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    came = learner.received.optimizer
    for name, parameter in learner.model.named_parameters():
        if f"{name}.step" in came:
            optimizer.state[parameter] = {part: came[f"{name}.{part}"] for part in PARTS}
    return optimizer


def epoch_order(labels: Tensor, settings: TrainSettings, generator: torch.Generator) -> Tensor:
    """The images of an epoch, int64 [n] on the CPU: each once, in random order.

    With `train.class-balance` = "sampler" they are n draws with replacement, in which each class
    is equally likely.
    """
    if settings.class_balance == "sampler":
        chances = class_weights(labels)[labels].cpu()
        return torch.multinomial(chances, len(labels), replacement=True, generator=generator)
    return torch.randperm(len(labels), generator=generator)


def batches(order: Tensor, size: int, fewest: int = 2, counted: int | None = None) -> list[Tensor]:
    """The numbers of images [n], cut into batches of `size`, which is `fewest` or more.

    BatchNorm cannot train on one image, and a manipulated model can learn from one step alone. So a
    last batch of fewer than `fewest` images joins the batch before, and a batch with repeats has
    further images until `fewest` are different.

    If `counted` is given, only images with a number below it count for `fewest`. The others fill
    the batches; the last of them are left out if there are too many.
    """
    if counted is not None:
        own, others = order[order < counted], order[order >= counted]
        each = max(fewest, size * len(own) // len(order))
        own_parts = _cut(own, each, fewest, counted)
        other_parts = others[: len(own_parts) * max(0, size - each)].tensor_split(len(own_parts))
        return [torch.cat(parts) for parts in zip(own_parts, other_parts, strict=True)]
    return _cut(order, size, fewest, len(order))


def _cut(order: Tensor, size: int, fewest: int, images: int) -> list[Tensor]:
    """The batches of images that all count; their numbers are below `images`."""
    parts = [*order.split(size)]
    if len(parts) > 1 and len(parts[-1]) < fewest:
        parts[-2:] = [torch.cat(parts[-2:])]
    if len(order.unique()) == len(order):
        return parts
    for k, part in enumerate(parts):
        if (missing := fewest - len(part.unique())) > 0:
            # The next images of the order; after them images that were not drawn.
            others = torch.cat([order.roll(-size * (k + 1)), torch.arange(images)])
            more = dict.fromkeys(others[~torch.isin(others, part)].tolist())
            parts[k] = torch.cat([part, torch.tensor([*more][:missing], dtype=part.dtype)])
    return parts
