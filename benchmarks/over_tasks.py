"""Measures how a network changes over the tasks of a row: the thesis, Figs. 2.3 and 2.6.

    uv run python -m benchmarks.over_tasks <table> <row> --data <folder> --before <archive.npz>
    uv run python -m benchmarks.over_tasks <table> <row> --data <folder> --maps maps.png

The first prints Fig. 2.3: the distance of features to those of the first network, and whether they
still tell the classes of the archive on which that network was trained. The second prints Fig. 2.6
for a row with a saliency network: its similarity to the oracle, beside the classifier's accuracy.
It also prints how much the saliency maps, and the classifier's Grad-CAM maps, still are as they
were after the image's own task. `--maps` draws them: an image of each task, its saliency maps after
each task, and below them those of Grad-CAM.

One hospital trains, in this process, so the row must have `strategy='standalone'`. The first
network is that of `pretrained`, or has random weights.
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context, RecordDict
from numpy.typing import NDArray
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn
from torch.nn import functional
from torchvision.utils import save_image

from benchmarks.markdown import commit_and_machine, print_head, print_row
from benchmarks.reproduce import TableError, check_table, choose, read_table
from client_app.authority.node_config import simulate
from client_app.datasets import open_public
from client_app.errors import DataError, line_of
from client_app.hospital import Hospital, open_hospital
from learning.evaluation import probabilities, score
from learning.learners import LEARNERS
from learning.learners.plain import Received
from learning.learners.ser import open_oracle
from learning.models.saliency import SaliencyNetwork
from learning.models.taps import points, tap
from learning.samples import Samples
from learning.settings import SERSettings
from learning.training import train
from strategies.protocol.settings import SettingsError, complete, rng_for
from strategies.registry import strategy_of

IMAGES = 1000  # of the archive, for features; half of them are the neighbours
NEIGHBOURS = 5
BATCH = 64
# The saliency maps and the Grad-CAM maps, each for the test images of each task so far.
Maps = tuple[list[Tensor], list[Tensor]]


def main() -> None:
    """Train the row, and print a line before the first task and after each task."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.over_tasks")
    parser.add_argument("table", help="a table of benchmarks/, or a TOML file")
    parser.add_argument("row", help="the row's name in the table")
    parser.add_argument("--data", type=Path, required=True, help="the folder {data} of the table")
    parser.add_argument("--vary", action="append", default=[], help="another setting, as key=value")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--before", type=Path, help="Fig. 2.3: an archive of the classes before")
    parser.add_argument("--maps", type=Path, help="Fig. 2.6: the picture to write")
    chosen = parser.parse_args()
    if (chosen.before is None) == (chosen.maps is None):
        parser.error("Give --before for Fig. 2.3, or --maps for Fig. 2.6.")
    try:
        described = read_table(chosen.table, chosen.vary)
        rows = choose(described["rows"], chosen.row)
        (row,) = check_table(described | {"rows": rows}, [chosen.data]).rows
        simulate()
        own: dict[str, bool | float | int | str] = {"partition-id": 0, "num-partitions": 1}
        settings = complete({**row.settings, "seed": chosen.seed})
        hospital = open_hospital(Context(1, 1, own, RecordDict(), settings))
        if hospital.settings.strategy != "standalone" or hospital.settings.tasks < 2:
            raise TableError(f"The row '{row.name}' is not a row of 'standalone' over tasks.")
        print(f"Row {row.name}; {commit_and_machine()}\n")
        if chosen.before:
            print_features(hospital, chosen.before)
        else:
            print_saliency(hospital, chosen.maps)
    except (TableError, SettingsError, DataError) as error:
        parser.error(line_of(error))


def trained_over_tasks(hospital: Hospital) -> Iterator[tuple[int, nn.Module]]:
    """The network before the first task (0), and after each; it is the same object each time."""
    settings, network = hospital.settings, hospital.first_model().to(hospital.device)
    yield 0, network
    memory: Mapping[str, Tensor] = {}
    rehearsal: Mapping[str, Tensor] = {}
    rounds, learner = settings.num_server_rounds // settings.tasks, strategy_of(settings).learner
    for task in range(1, settings.tasks + 1):
        samples = hospital.select_task(task).data.train
        for number in range(rounds):
            rng = rng_for(settings.seed, "visit", task, number)
            received = Received(memory=memory, rehearsal=rehearsal, task=task)
            visit = LEARNERS[learner](network, samples, settings, received)
            train(visit, settings.train, settings.train.epochs, rng, math.inf)
            memory, rehearsal = visit.memory(rng), visit.rehearsal()
        yield task, network.eval()


def accuracy(hospital: Hospital, network: nn.Module, task: int) -> str:
    """The accuracy on the test images of all tasks up to `task`, in percent."""
    test = hospital.select_task(task).data.test
    found = score(probabilities(network, test.images, math.inf), test.labels)
    return f"{100 * found['accuracy']:.1f}"


def print_features(hospital: Hospital, archive: Path) -> None:
    """Print Fig. 2.3: 1 − CKA and the accuracy of nearest neighbours, at each point."""
    before = open_public(str(archive), hospital.settings, hospital.data).to(hospital.device)
    drawn = np.random.default_rng(0).permutation(len(before))[:IMAGES]
    images, labels = before.images[torch.from_numpy(drawn)], before.labels[drawn].cpu().numpy()
    first: list[NDArray[np.float64]] = []
    for task, network in trained_over_tasks(hospital):
        network.eval()
        features = features_of(network, images)
        if not first:
            names = range(1, len(features) + 1)
            distances = (f"1 − CKA at point {name}" for name in names)
            print_head("task", "accuracy", *distances, *(f"kNN at point {name}" for name in names))
            first = features
        moved = [1 - cka(*each) for each in zip(first, features, strict=True)]
        near = [neighbour_accuracy(each, labels) for each in features]
        own = accuracy(hospital, network, task) if task else "–"
        print_row(task, own, *(f"{x:.2f}" for x in moved), *(f"{100 * x:.1f}" for x in near))


@torch.no_grad()
def features_of(network: nn.Module, images: Tensor) -> list[NDArray[np.float64]]:
    """The features of images uint8 [n, C, H, W] at each point after its ReLU, [n, d_l]."""
    parts = [tap(network, batch)[1] for batch in images.split(BATCH)]
    return [
        torch.cat([each.relu().flatten(1) for each in point]).double().cpu().numpy()
        for point in zip(*parts, strict=True)
    ]


def cka(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Linear centred kernel alignment of features [n, d] and [n, e] of the same images.

    Kornblith et al., arXiv:1905.00414: 1 if they are equal but for a rotation and a scale.
    """
    a, b = (each @ each.T for each in (x - x.mean(axis=0), y - y.mean(axis=0)))
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def neighbour_accuracy(features: NDArray[np.float64], labels: NDArray[np.integer]) -> float:
    """The share of the second half [n / 2, d] whose class the nearest of the first half tell."""
    half = len(features) // 2
    model = KNeighborsClassifier(NEIGHBOURS).fit(features[:half], labels[:half])
    return float(model.score(features[half:], labels[half:]))


def print_saliency(hospital: Hospital, picture: Path) -> None:
    """Print Fig. 2.6, and draw the maps of the first test image of each task."""
    settings = hospital.settings
    last = hospital.select_task(settings.tasks).data.test
    oracle = open_oracle(settings.section("ser", SERSettings).oracle, last.shape)
    tasks = range(1, settings.tasks + 1)
    tests = [last[torch.from_numpy(np.flatnonzero(last.tasks == task))] for task in tasks]
    history: list[Maps] = []  # after each task
    print_head("task", "accuracy", "to the oracle", "saliency as before", "Grad-CAM as before")
    for task, network in trained_over_tasks(hospital):
        if not isinstance(network, SaliencyNetwork):
            raise TableError("The network has no saliency network: the row's model must be ser-.")
        if not task:
            continue
        seen = tests[:task]
        salient = [saliency(network, each) for each in seen]
        cams = [grad_cam(network, each) for each in seen]
        history.append((salient, cams))
        # The maps of each task's images after that task.
        salient_then, cams_then = ([history[t][kind][t] for t in range(task)] for kind in (0, 1))
        figures = (
            mean_similarity(salient, [oracle(each.images) for each in seen]),
            mean_similarity(salient, salient_then),
            mean_similarity(cams, cams_then),
        )
        own_accuracy = accuracy(hospital, network, task)
        print_row(task, own_accuracy, *(f"{each:.3f}" for each in figures))
    draw([each.images[0] for each in tests], history, picture)


def draw(images: Sequence[Tensor], history: Sequence[Maps], picture: Path) -> None:
    """Draw an image [C, H, W] of each task, and both kinds of its maps after each task.

    The first map of a task is that of its image.
    """
    blank = torch.zeros(images[0].shape[1:])
    strips = []
    for place, image in enumerate(images):
        for kind, first in enumerate((image.float().mean(dim=0), blank)):
            found = [maps[kind] for maps in history]
            shown = [maps[place][0] if place < len(maps) else blank for maps in found]
            strips += [each.cpu() / each.max().clamp(min=1e-9).cpu() for each in (first, *shown)]
    save_image(torch.stack(strips)[:, None], picture, nrow=len(history) + 1)


def mean_similarity(maps: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """The mean SIM over the images of all tasks; each part [n, H, W] has the maps of one task."""
    pairs = zip(maps, others, strict=True)
    return float(torch.cat([similarity(*pair) for pair in pairs]).mean())


@torch.no_grad()
def saliency(network: SaliencyNetwork, samples: Samples) -> Tensor:
    """The saliency network's maps [n, H, W] of some images."""
    parts = [
        network.look(samples.images[batch])[0] for batch in torch.arange(len(samples)).split(BATCH)
    ]
    return torch.cat(parts)


def grad_cam(network: SaliencyNetwork, samples: Samples) -> Tensor:
    """Grad-CAM [n, H, W] of the images' own classes, at the last point of the classifier.

    Selvaraju et al., arXiv:1610.02391: features, weighted by their mean gradients, where positive.
    """
    found: list[Tensor] = []
    relu, _ = points(network.classifier)[-1]
    hook = relu.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    maps = []
    try:
        for batch in torch.arange(len(samples)).split(BATCH):
            logits = network(samples.images[batch])
            own = logits.gather(1, samples.labels[batch][:, None]).sum()
            (gradients,) = torch.autograd.grad(own, found[-1])
            weights = gradients.mean(dim=(2, 3), keepdim=True)
            small = (weights * found[-1].relu()).sum(dim=1, keepdim=True).relu().detach()
            maps.append(functional.interpolate(small, samples.shape[1:], mode="bilinear")[:, 0])
    finally:
        hook.remove()
    return torch.cat(maps)


def similarity(maps: Tensor, others: Tensor) -> Tensor:
    """The SIM of maps [n, H, W], [n]: 1 if both have the same shares, 0 without overlap.

    Bylinskii et al., arXiv:1604.03605. A map without any value has no overlap.
    """
    a, b = (
        each.flatten(1) / each.flatten(1).sum(1, keepdim=True).clamp(min=1e-9)
        for each in (maps, others)
    )
    return torch.minimum(a, b).sum(dim=1)


if __name__ == "__main__":
    main()
