r"""Writes the images of sweeps along an axis, on which methods degrade, and plots a sweep.

    uv run python -m benchmarks.axes images ~/axes --data <folder with mnist.npz and skin/>
    uv run fedhandoff reproduce axes --data ~/axes --output ~/classes --workers 2 \
        --vary "dataset=npz:{data}/classes-1.npz,npz:{data}/classes-2.npz,npz:{data}/classes-5.npz"
    uv run python -m benchmarks.axes plot ~/classes dataset --to classes.svg

The plot takes any table and any setting that varies; `round` plots over the rounds of its runs.

The archives have five hospitals, and images that a GAN can learn on a CPU:

    classes-<K>   MNIST's digits 0 to 4, K of them at each hospital: 1 = all differ, 5 = all alike
    images-<N>    the same digits, N training images at each hospital, all classes
    devices-<S>   dermoscopy of one centre (ham_vidir_modern, 32 pixels, melanoma or not), split by
                  lesion; each hospital simulates another device by colours, gamma and blur, at S %
                  of the full strength
"""

import argparse
import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms.functional import gaussian_blur

from benchmarks.reproduce import (
    TableError,
    facts_of,
    folder_name,
    newest_runs,
    read_summary,
    read_table,
)
from strategies.protocol.run_config import read_config
from strategies.protocol.settings import rng_for

HOSPITALS, CLASSES = 5, 5
TRAIN_IMAGES, TEST_IMAGES = 400, 200  # at a hospital: on the axis `classes`, for tests
STEPS = {"classes": (1, 2, 3, 5), "images": (25, 50, 100, 400), "devices": (0, 33, 67, 100)}
FIGURES = ("federation_balanced_accuracy", "personalized_balanced_accuracy")
SIDE = 32  # pixels of photographs
Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64]


def main() -> None:
    """Write the archives, or a plot."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.axes")
    commands = parser.add_subparsers(required=True)
    images = commands.add_parser("images", help="write the archives of all axes")
    images.add_argument("to", type=Path, help="the folder to write")
    images.add_argument(
        "--data", type=Path, required=True, help="the folder with mnist.npz and skin/"
    )
    images.set_defaults(command=write)
    plotted = commands.add_parser("plot", help="draw a sweep of the table 'axes'")
    plotted.add_argument("output", type=Path, help="an output folder of benchmarks.reproduce")
    plotted.add_argument("key", help="the setting that varies, or `round`")
    plotted.add_argument("--table", default="axes", help="the table of the sweep")
    plotted.add_argument("--to", type=Path, required=True, help="an SVG or PNG file")
    plotted.set_defaults(command=plot)
    arguments = parser.parse_args()
    try:
        arguments.command(arguments)
    except TableError as error:
        parser.error(str(error))


def write(arguments: argparse.Namespace) -> None:
    """Write an archive for each step of each axis."""
    data, to = arguments.data.expanduser(), arguments.to.expanduser()
    to.mkdir(parents=True, exist_ok=True)
    for count in STEPS["classes"]:
        _save(to / f"classes-{count}.npz", digits(data / "mnist.npz", TRAIN_IMAGES, count))
    for count in STEPS["images"]:
        _save(to / f"images-{count}.npz", digits(data / "mnist.npz", count, CLASSES))
    photographs = _photographs(data / "skin" / "ham_vidir_modern")
    for percent in STEPS["devices"]:
        shifted = [
            tuple((simulate_device(each, hospital, percent / 100), labels) for each, labels in both)
            for hospital, both in enumerate(photographs)
        ]
        _save(to / f"devices-{percent}.npz", shifted)


def digits(file: Path, images: int, classes: int) -> list[Any]:
    """For each hospital, training and test images of some digits, with their labels.

    Smaller sets are subsets of larger ones. Test images show a hospital's own digits.
    """
    with np.load(file) as arrays:
        pools = [(arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")]
    hospitals = []
    for hospital in range(HOSPITALS):
        own = [(hospital + step) % CLASSES for step in range(classes)]
        both = []
        for (x, y), count in zip(pools, (images, TEST_IMAGES), strict=True):
            chosen = []
            for k in own:
                share = np.flatnonzero(y == k)[hospital::HOSPITALS]
                order = rng_for(0, "digits", hop=k, hospital=str(hospital)).permutation(share)
                chosen.append(order[: count // classes])
            rows = np.concatenate(chosen)
            both.append((x[rows], y[rows]))
        hospitals.append(both)
    return hospitals


def _photographs(folder: Path) -> list[Any]:
    """For each hospital, training and test images of some lesions, with their labels."""
    with (folder / "manifest.csv").open(encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    lesions = sorted({row["lesion_id"] for row in rows})
    drawn = rng_for(0, "lesions").permutation(len(lesions))
    place = {lesions[index]: number for number, index in enumerate(drawn)}
    parts: dict[tuple[int, bool], list[tuple[Bytes, int]]] = defaultdict(list)
    for row in rows:
        number = place[row["lesion_id"]]
        with Image.open(folder / row["image"]) as image:
            small = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)
        tested = number // HOSPITALS % 4 == 0
        parts[number % HOSPITALS, tested].append((np.asarray(small), int(row["label"])))
    return [
        [
            (
                np.stack([image for image, _ in parts[hospital, tested]]),
                np.array([label for _, label in parts[hospital, tested]]),
            )
            for tested in (False, True)
        ]
        for hospital in range(HOSPITALS)
    ]


def simulate_device(images: Bytes, hospital: int, strength: float) -> Bytes:
    """Photographs [N, H, W, 3] as from a hospital's own device; strength 0 changes nothing."""
    rng = rng_for(0, "device", hospital=str(hospital))
    gain = np.exp(strength * rng.uniform(-0.4, 0.4, 3))  # of each colour
    gamma = np.exp(strength * rng.uniform(-0.5, 0.5))
    sigma = strength * rng.uniform(0, 1.2)  # pixels
    light = torch.from_numpy((images / 255) ** gamma * gain).permute(0, 3, 1, 2)
    if sigma > 0:
        light = gaussian_blur(light, [7, 7], [sigma, sigma])
    return (light.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).numpy()


def _save(path: Path, hospitals: list[Any]) -> None:
    arrays: dict[str, Any] = {}
    for index, both in enumerate(hospitals):
        for part, (images, labels) in zip(("train", "test"), both, strict=True):
            arrays |= {f"{part}_x_{index}": images, f"{part}_y_{index}": labels}
    np.savez_compressed(path, allow_pickle=False, **arrays)
    print(path)


def plot(arguments: argparse.Namespace) -> None:
    """Plot a sweep: everywhere and at home, a line for each row of the table.

    A point is the mean over seeds; the band goes from the worst seed to the best.
    """
    rows = [row["name"] for row in read_table(arguments.table)["rows"]]
    found: dict[str, dict[float, list[list[float]]]] = {}
    first: dict[str, dict[str, Any]] = {}  # by row, the facts of all its runs
    axis = arguments.key
    for folder, run in newest_runs(arguments.output.expanduser()):
        facts = facts_of(run)
        # In the folder's name, settings that vary follow the row's name.
        ends = [f"-{folder_name(key)}-" for key in facts]
        names = {row: folder_name(row) for row in rows}
        own = [
            row
            for row, of_row in names.items()
            if folder == of_row or folder.startswith(tuple(of_row + end for end in ends))
        ]
        if not own:
            raise TableError(f"{folder!r} is not a row of {arguments.table!r}: give its --table.")
        name = max(own, key=len)
        config = read_config(run / "config.toml")
        if arguments.key not in {*config, "round"}:
            raise TableError(
                f"{run} has no setting {arguments.key!r}: name one that varies, or `round`."
            )
        facts.pop(arguments.key, None)
        same = first.setdefault(name, facts)
        if others := [key for key in facts.keys() | same if facts.get(key) != same.get(key)]:
            raise TableError(
                f"Runs of {name!r} also differ in {', '.join(sorted(others))}: a line has one "
                "value of each setting but the axis. Give an output folder in which only the "
                "axis varies."
            )
        if isinstance(archive := config.get(arguments.key), str):
            axis = Path(archive).stem.rpartition("-")[0]
        line = found.setdefault(name, defaultdict(list))
        for step, values in _points(read_summary(run), config, arguments.key):
            line[step].append([100 * value for value in values])
    steps = sorted({step for line in found.values() for step in line})
    if not steps:
        raise TableError(f"{arguments.output} has no run: give the output of benchmarks.reproduce.")
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for panel, title, place in zip(panels, ("everywhere", "at home"), (0, 1), strict=True):
        for name in (row for row in rows if row in found):
            drawn = found[name]
            at = [steps.index(step) for step in sorted(drawn)]
            over_seeds = [[each[place] for each in drawn[step]] for step in sorted(drawn)]
            panel.plot(
                at, [fmean(each) for each in over_seeds], marker="o", markersize=3, label=name
            )
            panel.fill_between(at, [*map(min, over_seeds)], [*map(max, over_seeds)], alpha=0.12)
        panel.set(title=title, xlabel=axis, xticks=range(len(steps)))
        panel.set_xticklabels([f"{step:g}" for step in steps])
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("balanced accuracy, %")
    panels[1].legend(fontsize="small")
    figure.savefig(
        arguments.to.expanduser(),
        metadata={"Date": None} if arguments.to.suffix == ".svg" else None,
    )
    print(arguments.to)


def _points(
    summary: Mapping[str, Any], config: Mapping[str, Any], key: str
) -> Iterator[tuple[float, list[float]]]:
    """The places of a run on the axis, each with its figures everywhere and at home."""
    if key == "round":
        history = summary["history"]
        columns = [history["round"], *(history[each] for each in FIGURES)]
    else:
        columns = [[_step(config[key])], *([summary[each]] for each in FIGURES)]
    for step, *values in zip(*columns, strict=True):
        if None not in values:  # it was tested, and did not fail
            yield step, values


def _step(value: Any) -> float:
    """A setting as a place on an axis: itself, or the number at the end of an archive's name."""
    if not isinstance(value, str):
        return float(value)
    if not (numbers := re.findall(r"\d+(?:\.\d+)?", Path(value).stem)):
        raise TableError(f"{value!r} has no number: name a setting whose values have one.")
    return float(numbers[-1])


if __name__ == "__main__":
    main()
