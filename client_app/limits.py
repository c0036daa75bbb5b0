"""What a run may cost a hospital's machine: the tables `models` and `machine` of its policy.

Each check comes before the memory or the disk is taken. A simulation has no policy: what arrives
there is bounded by the message alone.
"""

import os
from contextlib import suppress
from pathlib import Path

from flwr.app import RecordDict

from client_app.policy import MachineRules, Policy, at_most, uphold
from learning.packing import layout
from strategies.protocol.parcel import count_bytes

MB, GB = 1e6, 1e9
# A model in training: weights, gradients, and two more numbers for each weight (Adam).
COPIES = 4


def check_model(policy: Policy | None, architecture: str, content: RecordDict) -> None:
    """Refuse a network that is too large, before it is built.

    Args:
        policy: The hospital's.
        architecture: The network's, as JSON.
        content: The message that it came with.

    Raises:
        PolicyError: It is too large.
        ModelError: There is no such network.
    """
    if policy:
        size = sum(tensor.nbytes for tensor in layout(architecture).values())
        needed = count_bytes(content) + COPIES * size
        uphold(at_most("models.max-megabytes", size / MB, policy.models.max_megabytes))
        uphold(at_most("machine.max-memory-gb", needed / GB, policy.machine.max_memory_gb))


def check_disk(machine: MachineRules | None, store: Path, more: int) -> None:
    """Refuse to write `more` bytes into the folder of a store if it would be too large then.

    Raises:
        PolicyError: It would.
    """
    if machine:
        used = 0
        for folder, _, names in os.walk(store):
            for name in names:
                with suppress(FileNotFoundError):  # a draft of another process
                    used += Path(folder, name).lstat().st_blocks * 512
        uphold(at_most("machine.max-disk-gb", (used + more) / GB, machine.max_disk_gb))


def decoding_threads(machine: MachineRules | None, largest: int) -> int:
    """How many images may be decoded at a time if one takes at most `largest` bytes."""
    cores = os.cpu_count() or 1
    return (
        max(1, min(cores, int(machine.max_memory_gb * GB / max(1, largest)))) if machine else cores
    )
