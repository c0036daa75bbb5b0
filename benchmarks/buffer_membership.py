"""How often the attack before a release refuses a buffer, and of which buffers it does.

Buffers are made by hand: images that nobody holds, as a generator without a memory would render,
of which a share is replaced by mirrored copies of training images with noise of 20 grey levels.

    uv run python -m benchmarks.buffer_membership --mnist /data/mnist.npz
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from benchmarks.markdown import print_head, print_row
from client_app.buffer.attack import attacked, leaky

LIMIT = 0.05  # release.max-membership
SHARES = (0.0, 0.1, 0.25, 0.5, 1.0)
DIGITS = ((24, 6, 64), (48, 12, 64), (144, 36, 64), (144, 36, 256), (600, 150, 256))
MNIST = ((800, 200, 512), (4000, 1000, 512))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mnist", type=Path, help="an archive with x_train")
    parser.add_argument("--repeats", type=int, default=100)
    arguments = parser.parse_args()
    pools = [("digits", torch.from_numpy((load_digits().images * 255 / 16).astype(np.uint8)))]
    if arguments.mnist:
        with np.load(arguments.mnist, allow_pickle=False) as archive:
            pools.append(("MNIST", torch.from_numpy(archive["x_train"])))
    head = ("images", "training", "test", "buffer", *(f"{share:.0%} copies" for share in SHARES))
    print_head(*head, "cannot tell", "CPU s")
    for name, pool in pools:
        for sizes in DIGITS if name == "digits" else MNIST:
            print_row(name, *sizes, *_rates(pool[:, None], sizes, arguments.repeats))


def _rates(pool: Tensor, sizes: Sequence[int], repeats: int) -> list[str]:
    """The share of buffers that is refused, by that of copies; and of those without, untold."""
    refused, small, spent = np.zeros(len(SHARES)), 0, 0.0
    for repeat in range(repeats):
        order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(repeat))
        members, test, fresh = pool[order[: sum(sizes)]].split(list(sizes))
        halves = (test[::2], test[1::2])
        for k, share in enumerate(SHARES):
            buffer = leaky(fresh, members, share, seed=repeat + 1)
            start = time.process_time()
            found = attacked(members, halves, buffer, LIMIT, seed=0)
            spent += time.process_time() - start
            refused[k] += found.leaks
            small += share == 0 and found.verdict == "too small to tell"
    calls = repeats * len(SHARES)
    rates = [f"{each / repeats:.2f}" for each in refused]
    return [*rates, f"{small / repeats:.2f}", f"{spent / calls:.2f}"]


if __name__ == "__main__":
    main()
