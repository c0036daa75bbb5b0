"""LPIPS of all pairs of two batches: ours against the lpips package, called on every pair.

    uv run python -m benchmarks.lpips_matrix

Both run with one thread and the same untrained networks, one right after the other. The package
gets the pairs in batches of as many images as there are in a set.
"""

import os
import time
import warnings

import lpips
import torch
from torch import Tensor

from benchmarks.markdown import print_head, print_row, where
from gan.perceptual import Net, PairwiseLPIPS

IMAGES = 32
WORKLOADS: tuple[tuple[Net, int], ...] = (("squeeze", 64), ("alex", 64), ("vgg", 64))
WORKLOADS += (("squeeze", 256),)


@torch.inference_mode()
def main() -> None:
    """Print a Markdown table."""
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    print(f"{where()}, load average {load:.2f} at the start\n")
    print_head("network", "images", "package, s", "ours, s", "ratio", "largest difference")
    for net, size in WORKLOADS:
        generator = torch.Generator().manual_seed(0)
        x, y = torch.rand(2, IMAGES, 3, size, size, generator=generator) * 2 - 1
        ours = PairwiseLPIPS(net, "untrained")
        package = package_with(ours, net)
        ours(x[:2], y[:2])  # the first call of a process is slower
        start = time.perf_counter()
        matrix = ours(x, y)
        middle = time.perf_counter()
        expected = torch.stack([package(image.expand_as(y), y).flatten() for image in x])
        theirs, own = time.perf_counter() - middle, middle - start
        difference = (matrix - expected).abs().max().item()
        images = f"{IMAGES} x {IMAGES}, {size} x {size}"
        seconds = (f"{theirs:.2f}", f"{own:.3f}", f"{theirs / own:.1f}")
        print_row(net, images, *seconds, f"{difference:.1e}")


def package_with(ours: PairwiseLPIPS, net: Net) -> lpips.LPIPS:
    """The package's LPIPS with our network's weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it calls torchvision in a way that is about to go
        package = lpips.LPIPS(net=net, pnet_rand=True, verbose=False)
    state: dict[str, Tensor] = ours.layers.state_dict()
    for name, parameter in package.net.named_parameters():
        parameter.copy_(state[name.partition(".")[2]])  # "slice1.0.weight" is our "0.weight"
    return package


if __name__ == "__main__":
    main()
