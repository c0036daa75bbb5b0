"""When a model is of no use: the part of the rule that runs the network (docs/methods/run.md).

The loss of a model is the cross-entropy that nine tenths of some images stay below. So neither one
image nor one odd batch decides.

A model that arrives is of no use if its loss is beyond `HOPELESS` times that of guessing. A visit
has blown up if its loss is beyond `WORSE` times that of guessing and of the model that came.
"""

from math import inf, log

import torch
from torch import Tensor, nn
from torch.nn import functional

from learning.samples import Samples

SAMPLE, SHARE = 64, 0.9
WORSE, HOPELESS = 100.0, 1000.0
_OUTPUTS = "outputs are not finite, or the same for all images"


def sample(samples: Samples) -> Samples:
    """At most `SAMPLE` of the samples, the same ones whenever they are asked for."""
    drawn = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))[:SAMPLE]
    return samples[drawn.to(samples.labels.device)]


def random_samples(like: Samples, classes: int) -> Samples:
    """`SAMPLE` images of random pixels, of each class in turn: no patient's image decides.

    Args:
        like: Have the shape of the images, and their device.
        classes: How many there are.
    """
    shape, device = (SAMPLE, *like.shape), like.labels.device
    noise = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, shape, generator=noise, dtype=torch.uint8)
    return Samples(pixels.to(device), torch.arange(SAMPLE, device=device) % classes)


@torch.inference_mode()
def relative_loss(network: nn.Module, samples: Samples) -> float:
    """The loss that `SHARE` of the samples stay below, in times of guessing.

    It is infinite for outputs that are no numbers, and for a model that says exactly the same of
    all images though these differ: its units are dead, or the statistics of its BatchNorm absurd.

    The network is as before: its layers keep their modes, and no random number is drawn.
    """
    modes = {module: module.training for module in network.modules()}
    network.eval()
    images = samples.images
    logits: Tensor = network(images)
    for module, training in modes.items():
        module.training = training
    if (logits == logits[0]).all() and not (images == images[0]).all():
        return inf
    losses = functional.cross_entropy(logits.double(), samples.labels, reduction="none")
    found = losses.nan_to_num(nan=inf).sort().values[int(SHARE * (len(losses) - 1))]
    return found.item() / log(max(2, logits.shape[1]))


def arrival_flaw(loss: float) -> str:
    """What is wrong with a model that has arrived, in words; empty if nothing is."""
    wrong = f"{_OUTPUTS}, or the loss is beyond {HOPELESS:.0f} times that of guessing"
    return "" if loss <= HOPELESS else wrong


def visit_flaw(before: float, after: float) -> str:
    """What is wrong with a model after a visit, from its losses; empty if nothing is."""
    wrong = f"{_OUTPUTS}, or the loss is beyond {WORSE:.0f} times that of guessing and of before"
    return "" if after <= WORSE * max(1.0, before) else wrong
