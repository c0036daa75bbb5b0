"""The release check of embeddings: they are attacked at the hospital before they leave it.

The encoder comes from another site, and may be made so that embeddings reveal images. Three
attackers know the encoder, and the class of each image:

- The first has the hospital's training images, and looks for the image of an embedding. The answer
  is the image with the highest likelihood (`embedding-linked`).
- The second has embeddings of other images of the hospital, and these images, and trains decoders
  (`embedding-inverted`, audit/decoders.py).
- The third has no limits. The information of N(µ, σ²) about its image is bounded, on average over
  the images, by its Kullback-Leibler divergence from any common distribution. Here that is the
  normal distribution with the mean and the variance of all embeddings (`embedding-bits`; Alemi et
  al. 2017, Deep variational information bottleneck, arXiv:1612.00410). T draws for one image reveal
  up to T times as much, so an image's embedding may leave once.

Without noise (`ebr`, and `stats`, which also has σ²) there is no such bound, and each embedding is
linked.

n images, embeddings of m of them leave, d coordinates of µ, k numbers that leave for an image.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, one_hot

from audit.decoders import WORK, Known, guesses
from audit.report import Report
from learning.errors import check_deadline
from learning.randomness import use_seed
from learning.samples import Samples

ATTACKED, CANDIDATES = 1000, 20_000  # most embeddings that are attacked; most candidate images
LEARNT, FEWEST = 2000, 50  # most and fewest other images that decoders are trained on
SIDE = 32  # pixels: most height and width of the images that decoders restore
FINEST = 1e-4  # least noise for the first two attackers, as a share of a coordinate's spread
LEAST = 1e-100  # least variance for the third one, so that the information is finite
TIE = 1e-3  # difference of log-likelihoods that counts as none
BLOCK = 100  # embeddings that are compared at once


@dataclass(frozen=True, eq=False)
class Encoded:
    """An encoder's output for all training images of a hospital."""

    # The numbers that leave for an image, a key of `strategies.protocol.embeddings.PARTS`:
    # `sampled` µ + σε, `stats` µ and σ², `ebr` f(x)
    kind: str
    samples: Samples  # the images and their classes, n
    means: Tensor  # µ or f(x), [n, d]
    variances: Tensor  # σ², [n, d]; 0 for `ebr`

    def outgoing_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the numbers that would leave for each image, float64 [n, k]."""
        means, variances = self.means.double().cpu(), self.variances.double().cpu()
        if self.kind == "stats":
            means = torch.cat([means, variances], dim=1)
        return means, variances if self.kind == "sampled" else torch.zeros_like(means)


def audit_embeddings(
    encoded: Encoded, rows: Tensor, values: Tensor, rng: np.random.Generator, deadline: float
) -> Report:
    """Attack embeddings that are about to leave.

    Nothing can be measured if numbers are not finite, or if fewer than `FEWEST` images stay.

    Args:
        encoded: All training images.
        rows: The images of which embeddings leave, int64 [m], each once.
        values: These embeddings, [m, k].
        rng: Decides on the attacked embeddings, and on the decoders.
        deadline: Time limit, on the clock of `time.monotonic`.

    Returns:
        The figures, NaN if nothing can be measured.

    Raises:
        DeadlineError: The deadline has passed.
    """
    rows, values = rows.cpu(), values.double().cpu()
    means, variances = encoded.outgoing_moments()
    stays = torch.ones(len(means), dtype=torch.bool)
    stays[rows] = False
    finite = all(bool(each.isfinite().all()) for each in (values, means, variances))
    if not finite or not len(rows) or int(stays.sum()) < FEWEST:
        names = ("embedding-linked", "embedding-inverted")
        return Report(dict.fromkeys(names, math.nan))
    # In units of each coordinate's spread, so that nothing hides in a small one.
    centre, spread = means.mean(0), (means.var(0) + variances.mean(0)).sqrt()
    spread[spread == 0] = 1.0
    means, values = (means - centre) / spread, (values - centre) / spread
    variances = variances / spread.square()
    figures = _bits(means[rows], variances[rows]) if encoded.kind == "sampled" else {}
    variances = variances.clamp(min=FINEST**2)
    with use_seed(rng):
        chosen = torch.randperm(len(rows))[:ATTACKED]
        rows, values, rest = rows[chosen], values[chosen], stays.nonzero().flatten()
        rest = rest[torch.randperm(len(rest))]
        candidates = torch.cat([rows, rest])[:CANDIDATES]
        asked = means[candidates], variances[candidates]
        figures["embedding-linked"] = _linkage(values, *asked, deadline)
        learnt = rest[:LEARNT]
        device, cpu = encoded.samples.labels.device, torch.device("cpu")
        known, attacked = (encoded.samples[x.to(device)].to(cpu) for x in (learnt, rows))
        classes = one_hot(torch.cat([known.labels, attacked.labels]))  # [., K]
        pixels = _reduce(known.images).flatten(1)
        attacker = Known(means[learnt], variances[learnt], pixels, classes[: len(learnt)])
        every = guesses(attacker, values, classes[len(learnt) :], deadline)
        figures["embedding-inverted"] = _inversion(every, _reduce(attacked.images).flatten(1))
    return Report(figures)


def _bits(means: Tensor, variances: Tensor) -> dict[str, float]:
    """The information of embeddings about their images, in bits; in units of the spread, [m, d]."""
    # KL(N(µ, σ²) ‖ N(0, 1)), as the mean of all is 0 and their variance 1.
    nats = 0.5 * (means.square() + variances - 1 - variances.clamp(min=LEAST).log()).sum(dim=1)
    bits = nats / math.log(2)
    return {"embedding-bits-most": bits.max().item(), "embedding-bits-median": bits.median().item()}


def _linkage(values: Tensor, means: Tensor, variances: Tensor, deadline: float) -> float:
    """The share of embeddings [m, k] that are linked to their image: embedding i to i of [n, k]."""
    precision, shares = 1 / variances, []
    for begin in range(0, len(values), BLOCK):
        check_deadline(deadline, WORK)
        some = values[begin : begin + BLOCK]
        images = torch.arange(begin, begin + len(some))[:, None]
        # -2 log N(z; µ, σ²), up to a constant.
        surprise = some.square() @ precision.T - 2 * some @ (means * precision).T
        surprise += (means.square() * precision + variances.log()).sum(dim=1)
        best = surprise.min(dim=1, keepdim=True).values
        fits = surprise <= best + 2 * TIE
        # Of several images that fit equally well, one is named at random.
        shares.append(fits.gather(1, images)[:, 0] / fits.sum(dim=1))
    return torch.cat(shares).mean().item()


def _inversion(every: Iterator[Tensor], truth: Tensor) -> float:
    """The share of images [m, P] that the best guess adds to the first one."""
    errors = [(guess - truth).square().mean(dim=1).mean() for guess in every]
    return 1 - (min(errors) / errors[0]).item() if errors[0] else 0.0


def _reduce(images: Tensor) -> Tensor:
    """Images uint8 [n, C, H, W] with at most `SIDE` pixels a side, float in [0, 1]."""
    height, width = images.shape[2:]
    return adaptive_avg_pool2d(images.float() / 255, (min(height, SIDE), min(width, SIDE)))
