"""Limits on memory and disk: the tables `models` and `machine` of a hospital's policy.

Each check comes before the memory or the disk is used. A simulation has no policy: only the size
of a message limits its content. Memory is estimated. The estimate leaves out the memory of torch
and its libraries, and of a GAN's training.
"""

import math
import os
from collections.abc import Callable
from pathlib import Path

from flwr.app import RecordDict

from client_app.authority.policy import MachineRules, Policy
from client_app.errors import DataError
from client_app.store import GB, disk_used
from learning.evaluation import batch_size
from learning.models import Architecture, activations, layout
from learning.models.rotation import TURNS
from learning.samples import round_up
from strategies.protocol.records import count_bytes

MB = 1e6
# A model in training: weights, gradients, and two more numbers for each weight (Adam).
COPIES = 4


def check_model(
    policy: Policy | None,
    architecture: str,
    content: RecordDict,
    batch: int = 0,
    kept: int = 0,
    copies: int = 0,
    beside: Callable[[Architecture, int], int] = lambda network, kept: 0,
) -> None:
    """Refuse a network that needs too much memory, before it is built.

    The estimate is for full batches. So a refusal does not reveal the number of images.

    `content` came in the message with the network. `batch` and `kept` are numbers of images (or
    vectors of features): in a training batch, and in the learner's memory and the buffers. The
    learner also keeps `copies` of the network's weights, and bytes `beside` network and images.

    Raises:
        PolicyError: The network is too large.
        ModelError: There is no such network, or it does not support its own image size.
    """
    if policy:
        network = Architecture.from_json(architecture)
        size = sum(tensor.nbytes for tensor in layout(network).values())
        policy.models.uphold("max-megabytes", size / MB)
        weights = (COPIES + copies) * size
        needed = count_bytes(content) + weights + _activation_bytes(network, batch)
        value = 4 if network.whole else 1  # bytes: a feature is a float32
        each = value * network.channels * network.height * network.width
        needed += kept * each + beside(network, kept)
        policy.machine.uphold("max-memory-gb", needed / GB)


def _activation_bytes(network: Architecture, batch: int) -> int:
    """Bytes of the activations of a network for a batch of images."""
    kept, largest = activations(network)
    at_a_time = batch_size(network.channels * network.height * network.width)
    # Training counts twice, for a replayed batch or the gradients; rotation networks take an image
    # in all its turns. Testing counts a layer's input, its output, and a skip connection.
    views = 2 * (TURNS if network.name.startswith("rotation-") else 1)
    return max(views * batch * kept, 3 * at_a_time * largest)


def check_pass(machine: MachineRules | None, network: Architecture, images: int) -> None:
    """Refuse a pass of a network, without training, as `check_model` does."""
    if machine:
        weights = sum(tensor.nbytes for tensor in layout(network).values())
        needed = weights + 3 * images * activations(network)[1]  # 3: see `_activation_bytes`
        machine.uphold("max-memory-gb", needed / GB)


def check_images(machine: MachineRules | None, images: int, size: tuple[int, ...]) -> None:
    """Refuse to resize images in memory, each to `size` (C, H, W), if they would not fit into it.

    A policy counts a rounded number of images (`round_up`).

    Raises:
        PolicyError: They need more than the policy allows.
        DataError: There is no policy, and they need more than the machine has.
    """
    each = math.prod(size) / GB
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") / GB
    if machine:
        machine.uphold("max-memory-gb", round_up(images) * each)
    elif images * each > there:
        raise DataError(
            f"With image-size {size[-1]} the images need {images * each:.0f} GB of memory, and the "
            f"machine has {there:.0f} GB: choose a smaller image-size."
        )


def check_disk(machine: MachineRules | None, store: Path, more: int) -> None:
    """Raise a `PolicyError` if `more` bytes would make a store too large."""
    if machine:
        machine.uphold("max-disk-gb", (disk_used(store) + more) / GB)


def decoding_threads(machine: MachineRules | None, largest: int) -> int:
    """The number of images to decode at a time if an image takes at most `largest` bytes."""
    cores = os.cpu_count() or 1
    return (
        max(1, min(cores, int(machine.max_memory_gb * GB / max(1, largest)))) if machine else cores
    )
