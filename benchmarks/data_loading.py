"""A hospital's image files: import, second start, and an epoch beside torchvision's usual one.

    uv run python -m benchmarks.data_loading <folder of images> [--count 10000] [--size 64]

Copies the images into a folder of two classes, again and again up to a count, each with a few bytes
of its own at its end so that no two are the same file. An epoch reads every image once in random
order, in batches of 32 in [-1, 1], and does nothing with them. torchvision's epoch is ImageFolder
with a resize, in a DataLoader with a worker for each core or with none, whichever is faster.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from benchmarks.markdown import print_head, print_row, where
from client_app.datasets.own import survey
from client_app.datasets.resize import Form
from learning.models.pixels import symmetric
from learning.samples import Samples
from learning.training import batches

BATCH = 32


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data_loading")
    parser.add_argument("images", type=Path, help="a folder of JPEG files")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder, store = Path(place) / "images", Path(place) / "store"
        fill(folder, sorted(arguments.images.expanduser().rglob("*.jpg")), arguments.count)

        def opened() -> Samples:
            found = survey("folder", str(folder), Form(arguments.size), store)
            rows = torch.from_numpy(found.opened.rows)
            return Samples(torch.from_numpy(found.opened.pixels), torch.zeros(len(rows)), rows)

        first, second = seconds(opened), seconds(opened)
        samples = opened()
        ours = min(seconds(lambda: epoch(samples)) for _ in range(3))
        theirs = min(
            seconds(partial(usual_epoch, folder, arguments.size, workers))
            for workers in (0, os.cpu_count() or 1)
        )
    count = arguments.count
    print(f"{where()}, {count} images, {arguments.size} x {arguments.size}\n")
    print_head("", "s", "images per s")
    for what, each in (
        ("import", first),
        ("second start", second),
        ("epoch", ours),
        ("epoch of ImageFolder and DataLoader", theirs),
    ):
        print_row(what, f"{each:.2f}", f"{count / each:,.0f}")
    print(f"\nratio of the epochs: {theirs / ours:.1f}")


def fill(folder: Path, images: list[Path], count: int) -> None:
    """Copy `count` images into two classes."""
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
    for number in range(count):
        content = images[number % len(images)].read_bytes() + number.to_bytes(8, "big")
        (folder / "ab"[number % 2] / f"{number}.jpg").write_bytes(content)


def epoch(samples: Samples) -> None:
    """Read the images as learning/training.py does."""
    for batch in batches(torch.randperm(len(samples)), BATCH):
        symmetric(samples[batch].images)


def usual_epoch(folder: Path, size: int, workers: int) -> None:
    """Read the images as PyTorch's tutorials do."""
    whole = [v2.ToImage(), v2.Resize((size, size)), v2.ToDtype(torch.float32, scale=True)]
    transform = v2.Compose([*whole, v2.Normalize([0.5] * 3, [0.5] * 3)])
    data = ImageFolder(folder, transform)
    for _ in DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=workers):
        pass


def seconds(work: Callable[[], object]) -> float:
    """Wall time of `work`."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
