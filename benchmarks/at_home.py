"""Compares rules by which a hospital chooses a model at home after a run.

    uv run python -m benchmarks.at_home <output folder of benchmarks.reproduce>

The table needs a row "standalone", in which each hospital trains alone as long as in other rows. A
rule chooses on one half of a hospital's test images, drawn by patients, and is tested on the other
half, and vice versa, in `SPLITS` random splits. Figures are balanced accuracies at home in percent:
the mean over hospitals and runs, and the difference from the own model with its 95 % interval
(Student's t over the runs, one for each seed).

`--own <output folder>` takes the hospitals' own models in ensembles and mixtures from another
table, of one row. With `--rows standalone --vary num-server-rounds=1` these are the models before
the first hand-off, as in `predict`.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from benchmarks.markdown import commit, machine, print_head, print_row
from benchmarks.membership import models_of, settings_of
from benchmarks.reproduce import newest_runs
from client_app.datasets import LocalData, open_data
from client_app.hospital import simulated_name
from learning.evaluation import probabilities
from learning.mixture import mixture_weights
from pages.figures import ROUNDING
from server_app.summary import Summary
from strategies.protocol.settings import rng_for

SPLITS = 20
Scores = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Models:
    """Probabilities of the models at a hospital for some of its test images."""

    alone: Scores  # of its own model, which trained alone as long, [N, K]
    own: Scores  # of its own model in ensembles and mixtures, [N, K]
    held: Scores  # of the model that it trained last, or of the ensemble if there is none, [N, K]
    handed: Scores  # of all models of the run, [M, N, K]

    def select(self, images: NDArray[np.bool_]) -> "Models":
        """The probabilities for some of the images, [N]."""
        alone, own, held = (each[images] for each in (self.alone, self.own, self.held))
        return Models(alone, own, held, self.handed[:, images])

    @property
    def all_models(self) -> Scores:
        """The probabilities of the run's models and of its own, [M + 1, N, K]."""
        return np.concatenate([self.handed, self.own[None]])


def best(seen: Scores, labels: Labels, new: Scores) -> Scores:
    """The probabilities for `new` images of the model that is best on the `seen` ones.

    Args:
        seen: Probabilities for labelled images, [M, N, K].
        labels: Their labels, [N].
        new: Probabilities for new images, [M, N', K].
    """
    return new[np.argmax([balanced_accuracy(each, labels) for each in seen])]  # type: ignore[no-any-return]


def mixture(seen: Scores, labels: Labels, new: Scores) -> Scores:
    """The probabilities for `new` images of a mixture fitted to the `seen` ones; as in `best`."""
    weights = mixture_weights(torch.from_numpy(seen), torch.from_numpy(labels))
    return np.tensordot(weights.numpy(), new, 1)


# By name of the rule, its probabilities for new images, from labelled images and new ones.
RULES: dict[str, Callable[[Models, Labels, Models], Scores]] = {
    "its own, alone": lambda seen, labels, new: new.alone,
    "the one it trained last": lambda seen, labels, new: new.held,
    "the mean of all": lambda seen, labels, new: new.handed.mean(0),
    "the best of all": lambda seen, labels, new: best(seen.handed, labels, new.handed),
    "a mixture of all": lambda seen, labels, new: mixture(seen.handed, labels, new.handed),
    "the mean of all and its own": lambda seen, labels, new: new.all_models.mean(0),
    "the best of all and its own": lambda seen, labels, new: best(
        seen.all_models, labels, new.all_models
    ),
    "a mixture of all and its own": lambda seen, labels, new: mixture(
        seen.all_models, labels, new.all_models
    ),
    "half its own, half the mean": lambda seen, labels, new: (new.own + new.handed.mean(0)) / 2,
}


def main() -> None:
    """Print a row for each row of the table, a column for each rule."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.at_home")
    parser.add_argument("output", type=Path, help="an output folder of benchmarks.reproduce")
    parser.add_argument(
        "--own", type=Path, help="another output folder, of one row: the hospitals' own models"
    )
    arguments = parser.parse_args()
    alone, runs = split_off_alone(arguments.output)
    own_runs = runs_of(arguments.own).popitem()[1] if arguments.own else alone
    print(f"Commit {commit()}; {machine()}.\n")
    print_head("", "seeds", *RULES)
    for row, by_seed in runs.items():
        seeds = sorted(by_seed.keys() & alone.keys() & own_runs.keys())
        measured = [measure(alone[seed], own_runs[seed], by_seed[seed]) for seed in seeds]
        figures = [each for each in measured if each]
        own = [each["its own, alone"] for each in figures]
        cells = []
        for rule in RULES:
            ours = [each[rule] for each in figures]
            gains = [ours_ - own_ for ours_, own_ in zip(ours, own, strict=True)]
            gain = interval(gains) if gains and rule != "its own, alone" else ""
            cells.append(f"{100 * fmean(ours):.1f}{gain}" if ours else "–")
        print_row(row, len(figures), *cells)


def split_off_alone(output: Path) -> tuple[dict[int, Path], dict[str, dict[int, Path]]]:
    """The runs of a table's row "standalone", and the runs of its other rows."""
    runs = runs_of(output)
    if "standalone" not in runs:
        raise SystemExit(f"{output} has no run of a row 'standalone': run that row, too.")
    return runs.pop("standalone"), runs


def runs_of(output: Path) -> dict[str, dict[int, Path]]:
    """The runs of a table's rows, by seed; without rows whose models lack layers."""
    runs: dict[str, dict[int, Path]] = {}
    for row, run in newest_runs(output.expanduser()):
        settings = settings_of(run)
        if settings.strategy not in ("fedbn", "centralized"):  # layers at hospitals; one place
            runs.setdefault(row, {})[settings.seed] = run
    return runs


def interval(gains: list[float]) -> str:
    """The mean gain in points, with its interval if there are several that differ, or only 0."""
    mean = fmean(gains)
    if len(gains) < 2 or (mean and max(gains) - min(gains) < ROUNDING):
        return f" ({100 * mean:+.1f})"
    half = float(stats.t.ppf(0.975, len(gains) - 1) * stats.sem(gains))
    return f" ({100 * mean:+.1f}; {100 * (mean - half):.1f} to {100 * (mean + half):.1f})"


def measure(alone: Path, own: Path, run: Path) -> dict[str, float]:
    """The balanced accuracy of each rule after a run, mean over the hospitals that have one.

    In `alone` each hospital trained alone as long. `own` has the hospitals' own models in ensembles
    and mixtures.
    """
    figures: dict[str, list[float]] = {rule: [] for rule in RULES}
    handed = read_probabilities(run)
    for name, data in images_of(run).items():
        by = {lineage: scores[name] for lineage, (_, scores) in handed.items()}
        last = [lineage for lineage, (visited, _) in handed.items() if visited[-1:] == [name]]
        scores = np.stack([*by.values()])
        mine, ours = (read_probabilities(each)[name][1][name] for each in (alone, own))
        models = Models(mine, ours, by[last[0]] if last else scores.mean(0), scores)
        labels = data.test.labels.numpy()
        for rule, figure in judge(models, labels, data.test.patients, settings_of(run).seed):
            figures[rule].append(figure)
    return {rule: fmean(each) for rule, each in figures.items() if each}


def judge(
    models: Models, labels: Labels, patients: Labels, seed: int
) -> Iterator[tuple[str, float]]:
    """The balanced accuracy of each rule on images that the rule did not use.

    There is none if no split has two classes in both halves: all images of a class may be of one
    patient.
    """
    worth: dict[str, list[float]] = {rule: [] for rule in RULES}
    for split in range(SPLITS):
        rng = rng_for(seed, "halves", split)
        everyone = np.unique(patients)
        first = np.isin(patients, rng.permutation(everyone)[: len(everyone) // 2])
        for half in (first, ~first):
            if len(np.unique(labels[half])) < 2 or len(np.unique(labels[~half])) < 2:
                continue  # no balanced accuracy there
            seen, new = models.select(half), models.select(~half)
            for rule, use in RULES.items():
                scores = use(seen, labels[half], new)
                worth[rule].append(balanced_accuracy(scores, labels[~half]))
    for rule, figures in worth.items():
        if figures:
            yield rule, fmean(figures)


def balanced_accuracy(scores: Scores, labels: Labels) -> float:
    """The mean recall over the classes that occur."""
    right = scores.argmax(1) == labels
    return fmean(float(right[labels == k].mean()) for k in np.unique(labels))


@cache
def images_of(run: Path) -> dict[str, LocalData]:
    """The images of each hospital of a run, by its name."""
    summary, settings = Summary.read(run, any_version=True), settings_of(run)
    count, classes = len(summary.hospitals), tuple(summary.classes)
    return {  # the order of names in a summary differs from that of the data set
        simulated_name(settings.dataset, index, count): open_data(settings, index, count, classes)
        for index in range(count)
    }


@cache
def read_probabilities(run: Path) -> dict[str, tuple[list[str], dict[str, Scores]]]:
    """By lineage the hospitals that trained a model, and its probabilities for their images."""
    found = {}
    for label, network in models_of(run, torch.device("cpu")):
        scores = {
            name: probabilities(network, data.test.images, math.inf).double().numpy()
            for name, data in images_of(run).items()
        }
        found[label.lineage] = (list(label.visited), scores)
    return found


if __name__ == "__main__":
    main()
