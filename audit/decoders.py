"""Decoders: attacks that restore images from their embeddings.

The attacker has embeddings of other images of the same hospital, with the images and their classes.
Two decoders correct the mean image of the class: a ridge regression in closed form, and a network
of one hidden layer that draws the noise anew at each step. The penalty and the length of training
are chosen as the best ones for the attacked images themselves.

n known and m unknown embeddings of k numbers, P pixels, K classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from learning.errors import check_deadline

WORK = "The check of embeddings"  # in the error after a deadline
FEW = 5  # fewest known images of a class for a mean of its own
PENALTIES = [10.0**power for power in range(-9, 0)]  # as shares of a coordinate's variance
SMALLEST = 1e-3  # variance from which on the network sees a direction in full
HIDDEN, STEPS, BATCH, LEARNING_RATE, EVERY = 512, 600, 128, 3e-3, 100


@dataclass(frozen=True, eq=False)
class Known:
    """The attacker's training data."""

    centres: Tensor  # means of embeddings, in units of their coordinates' spread, float64 [n, k]
    noise: Tensor  # variances around these means, [n, k]
    pixels: Tensor  # pixels of the images, float [n, P]
    classes: Tensor  # the class of each image as a row with a single 1, [n, K]

    def class_means(self, rows: Tensor, classes: Tensor) -> Tensor:
        """The mean [m, .] of the rows [n, .] of each class in `classes` [m, K].

        A class with fewer than `FEW` known images has the mean of all rows.
        """
        members = self.classes.to(rows.dtype)
        counts = members.sum(0)[:, None]
        means = torch.where(counts >= FEW, members.T @ rows / counts.clamp(min=1), rows.mean(0))
        return means[classes.argmax(dim=1)]


def guesses(known: Known, values: Tensor, classes: Tensor, deadline: float) -> Iterator[Tensor]:
    """An attacker's guesses at images from embeddings; the first guess uses the class alone.

    Args:
        known: The attacker's training data.
        values: The embeddings, in the units of `known.centres`, [m, k].
        classes: Their classes, in the form of `known.classes`, [m, K].
        deadline: Time limit, on the clock of `time.monotonic`.

    Yields:
        Pixels [m, P].

    Raises:
        DeadlineError: The deadline has passed.
    """
    base = known.class_means(known.pixels, classes)
    yield base
    centres = known.centres - known.class_means(known.centres, known.classes)
    pixels = known.pixels - known.class_means(known.pixels, known.classes)
    values = values - known.class_means(known.centres, classes)
    covariance = (centres.T @ centres + torch.diag(known.noise.sum(0))) / len(centres)
    variances, directions = torch.linalg.eigh(covariance)  # [k], [k, k]
    slopes = directions.T @ (centres.T @ pixels.double() / len(centres))  # [k, P]
    for penalty in PENALTIES:
        check_deadline(deadline, WORK)
        yield base + (values @ directions @ (slopes / (variances + penalty)[:, None])).float()

    # The network sees each direction as large as any other.
    whiten = directions / (variances.clamp(min=0) + SMALLEST).sqrt()
    seen = torch.cat([values @ whiten, classes], dim=1).float()  # [m, k + K]
    last = nn.Linear(HIDDEN, pixels.shape[1])
    nn.init.zeros_(last.weight)  # it begins with the mean image
    nn.init.zeros_(last.bias)
    network = nn.Sequential(nn.Linear(seen.shape[1], HIDDEN), nn.ReLU(), last)
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=0.1)
    scale, deviations = float(pixels.std()) or 1.0, known.noise.sqrt()
    for step in range(1, STEPS + 1):
        check_deadline(deadline, WORK)
        batch = torch.randint(len(centres), (BATCH,))
        drawn = centres[batch] + deviations[batch] * torch.randn(BATCH, len(whiten))
        drawn = torch.cat([drawn @ whiten, known.classes[batch]], dim=1).float()
        loss = functional.mse_loss(network(drawn), pixels[batch] / scale)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == 0:
            with torch.no_grad():
                yield base + scale * network(seen)
