"""Randomness for what takes no generator of its own: initial weights and dropout."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(rng: np.random.Generator) -> Iterator[None]:
    """Inside, torch's global generators are seeded from `rng`; afterwards they are as before."""
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(int(rng.integers(2**63)))
        yield
