"""Runs PLAN's membership inference attack (MIA) on the models of a table, as one more table.

    uv run python -m benchmarks.membership <output folder of benchmarks.reproduce> [networks]

Training members are the training images of a hospital, even if a model has seen only synthetic
images made from them. The others are its test images. The attack is audit.model.network_attack,
which follows PLAN's protocol, with five networks, each with a split of its own; chance is 50 %. A
row's figure is the mean over all its networks, runs and hospitals.

A second column has the attack by loss; its threshold is the mean loss of members.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import torch
from torch import nn

from audit.membership import accuracy
from audit.model import Predictions, network_attack
from benchmarks.markdown import commit, machine, print_head, print_row
from benchmarks.reproduce import cell, mean_and_std, newest_runs
from client_app.datasets import open_data
from learning.evaluation import probabilities
from learning.packing import unpack_network
from learning.samples import Samples
from server_app.summary import Summary
from strategies.protocol.parcel import Manifest, check_parcel, load
from strategies.protocol.run_config import read_config
from strategies.protocol.settings import Settings

NETWORKS, EPOCHS = 5, 400  # our choice, and that of MemGuard's code; the thesis names neither
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main() -> None:
    """Attack every model of the newest completed run of each row and repeat."""
    output = Path(sys.argv[1]).expanduser()
    networks = int(sys.argv[2]) if len(sys.argv) > 2 else NETWORKS
    rows: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row, run in newest_runs(output):
        rows[row] += attack(run, networks)
    print(f"Commit {commit()}; {machine()}.\n")
    print_head("", "MIA by network, %", "MIA by loss, %")
    for row, figures in rows.items():
        columns = zip(*figures, strict=True)
        print_row(row, *(cell(mean_and_std(list(each)), 100) for each in columns))


def attack(run: Path, networks: int = NETWORKS) -> Iterator[tuple[float, float]]:
    """The accuracies of both attacks on each model of a run, at each hospital."""
    settings = settings_of(run)
    hospitals = len(Summary.read(run, any_version=True).hospitals)
    for _, network in models_of(run, DEVICE):
        for index in range(hospitals):
            data = open_data(settings, index, hospitals, tuple(settings.class_names))
            members, others = (_probabilities(network, each) for each in (data.train, data.test))
            by_network = mean(
                network_attack(members, others, seed, EPOCHS).accuracy["value"]
                for seed in range(networks)
            )
            own = members.scores()
            by_loss = accuracy(own, others.scores(), threshold=float(own.mean()))
            yield by_network, by_loss["value"]


def settings_of(run: Path) -> Settings:
    """The settings of a run, from its result folder."""
    return Settings.parse(read_config(run / "config.toml"))


def models_of(run: Path, device: torch.device) -> Iterator[tuple[Manifest, nn.Module]]:
    """The models of a run, each with its label."""
    for path in sorted((run / "parcels").glob("*.npz")):
        parcel = load(path)
        label = check_parcel(parcel)
        yield label, unpack_network(parcel, label, {}, device)


def _probabilities(network: nn.Module, samples: Samples) -> Predictions:
    labels = samples.labels.to(DEVICE)
    return Predictions(probabilities(network, samples.images.to(DEVICE), math.inf), labels)


if __name__ == "__main__":
    main()
