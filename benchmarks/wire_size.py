"""Bytes of a hop of FedER, beside Table VII of its paper: models, and buffers of 512 images.

    uv run python -m benchmarks.wire_size <folder of images>

The buffers are made of real photographs of the folder, at the paper's 256 x 256 pixels, in colour
and grey: they hold at least as much detail as what a GAN renders.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from flwr.app import RecordDict
from PIL import Image

from benchmarks.markdown import print_head, print_row
from learning.models import Architecture
from learning.packing import pack_buffer, pack_network
from learning.samples import Samples
from strategies.protocol.parcel import Manifest, count_bytes

IMAGES, SIZE = 512, 256
PAPER = {"resnet18": 45, "resnet152": 230, "grey buffer": 20, "colour buffer": 60}  # MB


def main() -> None:
    """Print a Markdown table."""
    sizes = {}
    for name in ("resnet18", "resnet152"):
        sizes[name] = model_bytes(name, half=False)
        sizes[f"{name}, float16"] = model_bytes(name, half=True)
    files = sorted(Path(sys.argv[1]).iterdir())[:IMAGES]
    for name, mode in (("grey buffer", "L"), ("colour buffer", "RGB")):
        sizes[name] = buffer_bytes(files, mode)
    print_head("", "MB", "paper, MB")
    for name, size in sizes.items():
        print_row(name, f"{size / 1e6:.1f}", PAPER.get(name, "–"))


def model_bytes(name: str, half: bool) -> int:
    """Bytes of the arrays of a model's parcel."""
    architecture = Architecture(name, 3, SIZE, SIZE, 2)
    label = Manifest("a", architecture.to_json(), ["no", "yes"])
    return count_bytes(pack_network(architecture.blank(), label, half=half))


def buffer_bytes(files: list[Path], mode: str) -> int:
    """Bytes of a buffer of these images."""
    images = [np.array(Image.open(file).convert(mode).resize((SIZE, SIZE))) for file in files]
    stacked = torch.from_numpy(np.stack(images)).view(len(files), SIZE, SIZE, -1)
    labels = torch.zeros(len(files), dtype=torch.int64)
    samples = Samples(stacked.permute(0, 3, 1, 2), labels)
    return count_bytes(RecordDict({"buffer": pack_buffer(samples, "0" * 64)}))


if __name__ == "__main__":
    main()
