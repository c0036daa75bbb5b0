"""The gain of departments from sums of features (strategies/sums.py): the command `gain`.

One machine holds the folders of all departments. The images of each are split several times into
training and test images. Each split gives three kinds of classifiers, as a run of `sums` does with
the default policy, which keeps back classes of few patients:

    alone     from a department's own sums
    shared    from the sums of all departments; tested on patients of other departments
    home      from all sums, with the department's own counted 1 + κ times; tested on its patients

A department whose test images show one class has no figure, since a constant answer is right there.
λ and κ are chosen on training images. The seeds of the splits are 0, 1, ....
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from logging import INFO, WARNING
from math import isfinite, nan
from pathlib import Path
from statistics import fmean

import torch
from flwr.common import log

from client_app.authority.policy import Policy
from client_app.datasets import LocalData, open_data
from client_app.datasets.own import LISTINGS, name_images, own_data
from client_app.errors import DataError
from client_app.release.sums.own import factor_for, patients_by_class, training_images
from client_app.store import DEFAULT
from learning.closed_form import KAPPAS, RIDGES, Head, choose, solve
from learning.evaluation import score
from learning.intervals import Figure, mean_over_splits
from learning.learners.sums import Sums as Learner
from learning.sums import Sums
from pages.page import capital
from pages.verdicts.home import ABOUT_GAIN, judge_gain, points
from strategies.protocol.classes import group_spellings, quote, sort_classes
from strategies.protocol.files import expand
from strategies.protocol.names import join_names, names_of_folders
from strategies.protocol.settings import Settings, complete, rng_for
from strategies.protocol.tested import TESTED
from strategies.protocol.text import amount

SPLITS = 5
# Without the accuracy: where one class is frequent, a constant answer has a high one.
METRICS = [name for name in TESTED if name != "accuracy"]
# The names of means; no department can have a name with a space.
HOME, ELSEWHERE = "mean, own patients", "mean, patients of others"
SETTINGS = {
    "strategy": "sums",
    "num-server-rounds": 1,
    "train.freeze": "body",
    "model": "timm:tf_efficientnet_lite0",
    "pretrained": "package:efficientnet-lite0",
    "image-size": 224,
    "image-fit": "pad",  # photographs and X-rays of all shapes
    "image-channels": 3,  # one department saves X-rays in grey, another in colour
}
Metrics = dict[str, float]
Pair = tuple[float, float]  # alone, and taking part
Tests = dict[str, dict[str, Pair]]  # by place and metric


@dataclass(frozen=True)
class Gain:
    """A metric on some patients, as fractions."""

    # The metric of a classifier alone, and of one of all departments, on each split that has both
    pairs: Sequence[Pair]
    share: float  # the share of test images

    @property
    def difference(self) -> Figure:
        """The mean gain over the splits, two or more, with its 95 % interval."""
        gains = [shared - alone for alone, shared in self.pairs]
        return mean_over_splits(gains, self.share)


def measure_gains(
    folders: Sequence[Path], store: Path = DEFAULT, splits: int = SPLITS
) -> dict[str, dict[str, Gain]]:
    """The gains by place and metric.

    A place is a department's name; `HOME`, the mean over the departments on their own patients; or
    `ELSEWHERE`, the mean over all pairs of a department and the patients of another one.

    Each department has a folder or a manifest. `store` is for decoded images and features. There
    are 2 or more `splits`.

    Raises:
        ModelError: The frozen network or its weights are missing.
        DataError: The images of the departments cannot be used, or cannot be compared.
    """
    if len(folders) < 2:
        raise DataError("A gain needs two departments: name the folders of two or more.")
    settings = Settings.parse(complete(SETTINGS))
    places = [str(expand(folder).absolute()) for folder in folders]
    own = [replace(settings, dataset=own_data(place)) for place in places]
    classes = sort_classes({name for each in own for name in _list_classes(each)})
    if len(classes) == 1:  # without any class the images cannot be opened below
        raise DataError(f"All images show '{classes[0]}': a classifier needs two classes or more.")
    if alike := [join_names([*map(quote, each)]) for each in group_spellings(classes)]:
        raise DataError(f"Departments spell a class differently: {'; '.join(alike)}. Rename it.")
    opened = [
        [_open(replace(each, seed=seed), store, tuple(classes)) for each in own]
        for seed in range(splits)
    ]
    prints = [[each.train.fingerprint for each in parts] for parts in opened]
    for place, source, part, *found in zip(places, own, opened[0], *prints, strict=True):
        if len({*found}) < 2:
            patients = sum(len({*side.patients}) for side in (part.train, part.test))
            shown = join_names([*map(quote, sort_classes(_list_classes(source)))])
            raise DataError(
                f"{place}: all splits are the same. It has {amount(patients, 'patient')} and "
                f"images of {shown}. If these are departments, not classes, name each of their "
                "folders. Remove the column 'split', if there is one; else add patients."
            )
        if part.quarantined:
            few = f"{amount(part.quarantined, 'image')} cannot be used"
            log(WARNING, "%s: %s. `fedhandoff preflight` names them.", place, few)
    contents = [{*(each.train.contents or ()), *(each.test.contents or ())} for each in opened[0]]
    for (one, its), (other, theirs) in combinations(zip(places, contents, strict=True), 2):
        both = len(its & theirs)
        if 2 * both > min(len(its), len(theirs)):
            raise DataError(f"{one} and {other} have the same images: name each department once.")
        if both:
            few = f"{one} and {other} share {amount(both, 'image')}: remove them from one folder"
            log(WARNING, "%s. One department would train on test images of the other.", few)
    tests, share = [], settings.test_fraction
    for seed, parts in enumerate(opened):
        log(INFO, "Split %d of %d", seed + 1, splits)
        tests.append(_test(names_of_folders(places), parts, replace(settings, seed=seed)))

    def gain(place: str, metric: str) -> Gain:
        pairs = [each[place][metric] for each in tests]
        return Gain([pair for pair in pairs if isfinite(sum(pair))], share)

    gains = {place: {metric: gain(place, metric) for metric in METRICS} for place in tests[0]}
    if len(gains[HOME]["balanced-accuracy"].pairs) < 2:
        raise DataError(
            "At each department all test images show one class, so no classifier is better than a "
            "constant answer: add images of another class."
        )
    return gains


def _list_classes(settings: Settings) -> set[str]:
    """The classes of a department; no image is opened, which would take half an hour."""
    kind, _, path = settings.dataset.partition(":")
    with name_images(settings):
        return {entry.label for entry in LISTINGS[kind](path).entries}


def _open(settings: Settings, store: Path, classes: tuple[str, ...]) -> LocalData:
    with name_images(settings):
        return open_data(settings, 0, 1, classes, store)


def _test(names: Sequence[str], parts: Sequence[LocalData], settings: Settings) -> Tests:
    """The metrics of all classifiers on one split."""
    signs = rng_for(settings.seed, "projection")
    asked = Learner.read_settings(settings)
    images = [training_images(part, asked, signs) for part in parts]
    fewest = Policy.read().sums.min_class_patients
    large = [torch.from_numpy(patients_by_class(each) >= fewest) for each in images]
    for k, each in enumerate(images):
        added = int(large[k][each.labels].sum()) or len(each.labels)
        images[k] = replace(each, factor=factor_for(asked, added))
    sums = [each.sums() for each in images]
    sent = [own.select(chosen) for own, chosen in zip(sums, large, strict=True)]
    total = sum(sent[1:], sent[0])

    def choose_at(k: int, others: Sums, kappas: Sequence[int]) -> tuple[float, int]:
        rng = rng_for(settings.seed, "folds", hospital=names[k])
        return choose(others, images[k], RIDGES, kappas, rng)

    def solve_at(k: int, others: Sums, kappas: Sequence[int]) -> Head:
        ridge, kappa = choose_at(k, others, kappas)
        return solve(others + sums[k] * (1 + kappa), ridge)

    def test(head: Head, k: int) -> Metrics:
        held_out = parts[k].test
        if len(held_out.labels.unique()) < 2:
            return {}
        scores = head.scores(held_out.images.flatten(1)).softmax(dim=1)
        return score(scores, held_out.labels)

    every = range(len(names))
    alone = [solve_at(k, sums[k] * 0, [0]) for k in every]
    first = names.index(min(names))  # it chooses λ, as in a ring of `sums`
    shared = solve(total, choose_at(first, total - sent[first], [0])[0])
    found = {
        name: [(test(alone[k], k), test(solve_at(k, total - sent[k], KAPPAS), k))]
        for k, name in enumerate(names)
    }
    at = [test(shared, k) for k in every]
    pairs = {
        HOME: [pair for each in found.values() for pair in each],
        ELSEWHERE: [(test(alone[j], k), at[k]) for j, k in permutations(every, 2)],
    }
    return {
        place: {metric: _mean(tests, metric) for metric in METRICS}
        for place, tests in (found | pairs).items()
    }


def _mean(pairs: Sequence[tuple[Metrics, Metrics]], metric: str) -> Pair:
    """The means of a metric over the pairs that have it."""
    measured = [[test[metric] for test in pair] for pair in pairs if metric in pair[0]]
    alone, shared = zip(*measured, strict=True) if measured else ([nan], [nan])
    return fmean(alone), fmean(shared)


def describe_gains(gains: Mapping[str, Mapping[str, Gain]]) -> str:
    """The verdict on gains from `measure_gains`, and a table, as text."""
    home, elsewhere = (gains[place]["balanced-accuracy"].difference for place in (HOME, ELSEWHERE))
    width = max(map(len, gains))
    every = max(len(gain.pairs) for metrics in gains.values() for gain in metrics.values())
    lines = [judge_gain(home, elsewhere)]
    for metric in METRICS:
        title = f"{capital(TESTED[metric].heading)}, %"
        lines += ["", f"{title:{width}}  alone  taking part  difference"]
        for name, metrics in gains.items():
            gain = metrics[metric]
            if (count := len(gain.pairs)) < 2:
                some = f" on all splits but {count}" if count else ""
                lines.append(f"{name:{width}}  – (its test images show one class{some})")
                continue
            alone, shared = (100 * fmean(each) for each in zip(*gain.pairs, strict=True))
            value, interval = points(gain.difference)
            some = f"; {count} of {every} splits" if count < every else ""
            cells = f"{alone:5.1f}  {shared:11.1f}  {value} ({interval}{some})"
            lines.append(f"{name:{width}}  {cells}")
    return "\n".join([*lines, "", ABOUT_GAIN])
