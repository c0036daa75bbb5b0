"""What a run may cost a hospital's machine: the tables `models` and `machine` of its policy.

Each check comes before the memory or the disk is taken. A simulation has no policy: what arrives
there is bounded by the message alone. Memory is estimated: what torch and its libraries take
themselves, and a GAN's training, is not in it.
"""

import os
from pathlib import Path

from flwr.app import RecordDict

from client_app.authority.policy import MachineRules, Policy
from client_app.store import GB, disk_used
from learning.evaluation import batch_size
from learning.models import Architecture
from learning.models.rotation import TURNS
from learning.packing import activations, layout
from strategies.protocol.parcel import count_bytes

MB = 1e6
# A model in training: weights, gradients, and two more numbers for each weight (Adam).
COPIES = 4


def check_model(
    policy: Policy | None, architecture: str, content: RecordDict, batch: int = 0
) -> None:
    """Refuse a network that is too large, or computes too much at a time, before it is built.

    Batches are full ones: a refusal tells nobody how many images a hospital has.

    Args:
        policy: The hospital's.
        architecture: The network's, as JSON.
        content: The message that it came with.
        batch: How many images it is to be trained on at a time.

    Raises:
        PolicyError: It is too large.
        ModelError: There is no such network, or it cannot take images of the size that it names.
    """
    if policy:
        size = sum(tensor.nbytes for tensor in layout(architecture).values())
        policy.models.uphold("max-megabytes", size / MB)
        needed = count_bytes(content) + COPIES * size + _computed(architecture, batch)
        policy.machine.uphold("max-memory-gb", needed / GB)


def _computed(architecture: str, batch: int) -> int:
    """Bytes of what a network computes of a batch of images."""
    network = Architecture.from_json(architecture)
    kept, largest = activations(network)
    at_a_time = batch_size(network.channels * network.height * network.width)
    # In training twice: a replayed batch beside it, or the gradients; an image in all its turns.
    # In testing a layer's input and output, and what goes around it.
    views = 2 * (TURNS if network.name.startswith("rotation-") else 1)
    return max(views * batch * kept, 3 * at_a_time * largest)


def check_disk(machine: MachineRules | None, store: Path, more: int) -> None:
    """Refuse to write `more` bytes into the folder of a store if it would be too large then.

    Raises:
        PolicyError: It would.
    """
    if machine:
        machine.uphold("max-disk-gb", (disk_used(store) + more) / GB)


def decoding_threads(machine: MachineRules | None, largest: int) -> int:
    """How many images may be decoded at a time if one takes at most `largest` bytes."""
    cores = os.cpu_count() or 1
    return (
        max(1, min(cores, int(machine.max_memory_gb * GB / max(1, largest)))) if machine else cores
    )
