"""Whether a buffer's images are of the classes that it calls them: what real images teach says so.

    uv run python -m benchmarks.buffer_labels <output folder of benchmarks.reproduce>

For a table with a row "standalone", in which each hospital trains alone, and rows with buffers. The
model that a hospital trained alone on its real images classifies its own buffer, and beside it its
own test images: balanced accuracies in percent, mean and standard deviation over a row's runs.
Buffers whose classes are as clear as those of real images have as much or more.
"""

import argparse
import math
from pathlib import Path

import torch

from benchmarks.at_home import alone_and_others, balanced_accuracy, images_of, settings_of
from benchmarks.markdown import commit, machine, table_head, table_row
from benchmarks.reproduce import cell, mean_and_std
from client_app.buffer import make_buffer
from client_app.hospital import Hospital
from client_app.store import Store
from learning.evaluation import probabilities
from learning.packing import unpack_network
from learning.samples import Samples
from strategies.feder import FedERSettings
from strategies.protocol.parcel import check_parcel, load
from strategies.protocol.settings import Settings

DEVICE = torch.device("cpu")


def main() -> None:
    """Print a row for each row with buffers, a column for each hospital."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.buffer_labels")
    parser.add_argument("output", type=Path, help="of benchmarks.reproduce")
    output = parser.parse_args().output.expanduser()
    alone, runs = alone_and_others(output)
    names = list(images_of(next(iter(alone.values()))))
    print(f"Commit {commit()}; {machine()}.\n")
    print(table_head(["buffer / test images, %", *names]))
    for row, by_seed in runs.items():
        of_buffers = {seed: run for seed, run in by_seed.items() if has_buffers(settings_of(run))}
        told = [
            clear(alone[seed], of_buffers[seed], output / "store/fedhandoff")
            for seed in sorted(of_buffers.keys() & alone.keys())
        ]
        if told:
            cells = [
                " / ".join(
                    cell(mean_and_std(list(each)), 100)
                    for each in zip(*(run[name] for run in told), strict=True)
                )
                for name in names
            ]
            print(table_row([row, *cells]), flush=True)


def has_buffers(settings: Settings) -> bool:
    """Whether a run with these settings hands buffers on."""
    return settings.strategy == "feder" and buffer_size(settings) > 0


def buffer_size(settings: Settings) -> int:
    """How many images a buffer has."""
    return settings.section("feder", FedERSettings).buffer_size


def clear(alone: Path, run: Path, store: Path) -> dict[str, tuple[float, float]]:
    """By hospital: the balanced accuracies of its own model on its buffer and its test images.

    Args:
        alone: The run in which each hospital trained alone.
        run: A run with buffers.
        store: The hospitals' stores of that table, in which their buffers are kept.
    """
    settings, found = settings_of(run), {}
    for name, data in images_of(run).items():
        if not (store / name / "gan").is_dir():  # it would be trained anew
            raise SystemExit(f"{store / name}: no GAN is kept here; give the folder of the runs.")
        hospital = Hospital(name, settings, data, DEVICE, settings.model, Store(store / name))
        buffer = make_buffer(hospital, buffer_size(settings), math.inf).samples
        parcel = load(alone / "parcels" / f"{name}.npz")
        network = unpack_network(parcel, check_parcel(parcel), {}, DEVICE)
        found[name] = (right(network, buffer), right(network, data.test))
    return found


def right(network: torch.nn.Module, samples: Samples) -> float:
    """The balanced accuracy of a network on images."""
    scores = probabilities(network, samples.images, math.inf).double().numpy()
    return balanced_accuracy(scores, samples.labels.numpy())


if __name__ == "__main__":
    main()
