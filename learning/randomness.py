"""Randomness for code without a generator of its own, such as initial weights; or no randomness."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


def secret_rng(key: bytes = b"") -> np.random.Generator:
    """A generator with a key of 128 bits: the first ones of `key`, or from the system's entropy.

    Not numpy's default: its state has been found from many of its numbers (Bouillaguet et al. 2020,
    doi:10.13154/tosc.v2020.i3.175-196). No such attack on Philox is known.
    """
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16]) if key else None))


@contextmanager
def use_seed(rng: np.random.Generator) -> Iterator[None]:
    """Seed torch's global generators from `rng` in this context; then restore them."""
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        # Without a GPU `torch.manual_seed` is slow: it records the caller's stack.
        seed = (
            torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
        )
        seed(int(rng.integers(2**63)))
        yield


class ZeroDraws(TorchDispatchMode):
    """In this context initialisers write zeros instead of random numbers.

    Drawing takes most of the time of building a network: 75 of 90 ms for a resnet18 on one core.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default):
            # Zeros are needed: truncated normals draw again until all values are in range.
            return args[0].zero_()
        return func(*args, **(kwargs or {}))


class NoMemory(TorchFunctionMode):
    """In this context weights get their shapes and no memory: they are on the device `meta`.

    With `torch.device("meta")` torchvision's RegNets cannot compute their widths.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.empty, torch.zeros, torch.ones):
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)
