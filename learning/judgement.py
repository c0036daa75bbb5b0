"""Whether a model is of use: the part of the rule that runs the network (docs/methods/run.md).

The loss of a model is the 90 % quantile of the cross-entropy over some images. So neither one image
nor one odd batch decides.

An arriving model is of no use if its loss is above `HOPELESS` times the loss of guessing. A visit
has diverged if its loss is above `WORSE` times the loss of guessing and of the received model. On
random pixels that limit is `HOPELESS`, too: they have no right class, so a sure model loses much.
"""

from functools import lru_cache
from math import inf, log

import torch
from torch import Tensor, nn
from torch.nn import functional

from learning.samples import Samples

SAMPLE, SHARE = 64, 0.9
WORSE, HOPELESS = 100.0, 1000.0
_OUTPUTS = "outputs are not finite, or the same for all images"


def sample(samples: Samples) -> Samples:
    """At most `SAMPLE` of the samples, the same ones at every call."""
    drawn = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))[:SAMPLE]
    return samples[drawn.to(samples.labels.device)]


def random_samples(like: Samples, classes: int) -> Samples:
    """`SAMPLE` images of random pixels, of each class in turn, from no patient.

    They have the shape and the device of `like`. If `like` has features of a frozen network, they
    are random features of length 1.
    """
    are_bytes, device = like.pixels.dtype == torch.uint8, like.labels.device
    return _random_samples((SAMPLE, *like.shape), are_bytes, classes, device)


@lru_cache(maxsize=4)  # all messages of a run need the same
def _random_samples(
    shape: tuple[int, ...], are_bytes: bool, classes: int, device: torch.device
) -> Samples:
    noise = torch.Generator().manual_seed(0)
    if are_bytes:
        pixels = torch.randint(256, shape, generator=noise, dtype=torch.uint8)
    else:
        pixels = functional.normalize(torch.randn(shape, generator=noise))
    return Samples(pixels.to(device), torch.arange(SAMPLE, device=device) % classes)


@torch.inference_mode()
def relative_loss(network: nn.Module, samples: Samples) -> float:
    """The `SHARE` quantile of the samples' losses, relative to the loss of guessing.

    It is infinite for outputs that are no numbers, and for a model with equal outputs for all of
    several different images: its units are dead, or the statistics of its BatchNorm are absurd.

    The network does not change: its layers keep their modes, and no random number is drawn.
    """
    in_training = [module for module in network.modules() if module.training]
    for module in in_training:
        module.training = False
    images = samples.images
    logits: Tensor = network(images)
    for module in in_training:
        module.training = True
    if (logits == logits[0]).all() and not (images == images[0]).all():
        return inf
    losses = functional.cross_entropy(logits.double(), samples.labels, reduction="none")
    found = losses.nan_to_num(nan=inf).sort().values[int(SHARE * (len(losses) - 1))]
    return found.item() / log(max(2, logits.shape[1]))


def arrival_flaw(loss: float) -> str:
    """The flaw of an arrived model, in words; empty if there is none."""
    wrong = f"{_OUTPUTS}, or the loss is above {HOPELESS:.0f} times the loss of guessing"
    return "" if loss <= HOPELESS else wrong


def visit_flaw(before: float, after: float, limit: float) -> str:
    """The flaw of a model after a visit, by its losses, in words; empty if there is none.

    `limit` is `WORSE` for losses on training images, and `HOPELESS` for those on random pixels.
    """
    wrong = f"{_OUTPUTS}, or the loss is above {limit:.0f} times the loss of guessing and of before"
    return "" if after <= limit * max(1.0, before) else wrong
