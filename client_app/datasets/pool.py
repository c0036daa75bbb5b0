"""A data set before the cut over hospitals (`Pool`), and images of one hospital (`LocalSamples`).

Shapes: `N` images of a data set, `n` of them at one hospital, `C` channels, `H, W` pixels.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.errors import DataError
from learning.models import Architecture
from learning.samples import Samples

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Pool:
    """All images of a data set, before they are cut over hospitals.

    Raises:
        DataError: A label is no class, or a class has no image.
    """

    images: NDArray[Any]  # uint8 [M, C, H, W], in memory or mapped from a file
    labels: NDArray[np.int64]  # int64 [N], an index into `classes`
    classes: tuple[str, ...]  # names of the classes; each has an image
    # int64 [N], site of each image; None if the data set names no sites
    sites: NDArray[np.int64] | None = None
    # bool [N], True for the data set's own test images; None if it has none
    held_out: NDArray[np.bool_] | None = None
    # Whether hospitals test on these images at any `test-fraction`; else only if it is 0
    always_held_out: bool = False
    # int64 [N], group of each image, for example its patient. At one hospital, a group is only
    # trained on or only tested on; a cut over hospitals may divide it. None if every image is on
    # its own.
    groups: NDArray[np.int64] | None = None
    # int64 [N], task in which each image arrives, from 1; 0 = unknown. None if unknown for all
    # images.
    tasks: NDArray[np.int64] | None = None
    # int64 [N], row of each image in `images`; None = in the same order, M = N
    rows: NDArray[np.int64] | None = None
    quarantined: int = 0  # number of further images that cannot be used
    # Hash that changes with the images of a real hospital, or of own files; else empty
    fingerprint: str = ""
    # Hashes of the images' files, [N]; None if they are not a hospital's own files
    contents: list[str] | None = None
    # SHA-256 of the pixels of each image, [N], if `images` has features; else None
    pixel_hashes: list[str] | None = None
    kind: str = ""  # kind of the images (`strategies.protocol.data_sets.KINDS`)
    # The network whose frozen part made features of the images (client_app.datasets.features):
    # `images` is then float32 [N, d, 1, 1]. None if they are images.
    whole: Architecture | None = None

    def __post_init__(self) -> None:
        count = len(self.classes)
        if ((self.labels < 0) | (self.labels >= count)).any():
            raise DataError(
                "There are labels of no class: number the classes from 0 without gaps, and leave "
                "out images without a label."
            )
        sizes = np.bincount(self.labels, minlength=count)
        missing = [name for name, size in zip(self.classes, sizes, strict=True) if size == 0]
        if missing:
            raise DataError(
                "A class has no image: number the classes from 0 without gaps, and leave out those "
                "without an image.",
                f"No image has the class {', '.join(map(repr, missing))}.",
            )


@dataclass(frozen=True, eq=False)
class LocalSamples(Samples):
    """The training or the test images of one hospital."""

    fingerprint: str = ""  # hash of the selection, the form and the labels
    groups: Indices | None = None  # [n], as `Pool.groups`
    # Hashes of the images' files, [n]; without files those of the pixels behind features
    contents: list[str] | None = None
    manifest_tasks: Indices | None = None  # [n], as `Pool.tasks`
    tasks: Indices | None = None  # [n], task in which each image arrived, from 1; None = no tasks

    @property
    def patients(self) -> Indices:
        """Patient of each image, [n]; without groups, each image is one patient."""
        return np.arange(len(self)) if self.groups is None else self.groups

    @property
    def strata(self) -> Indices:
        """Number for the class and the task of each image, [n]."""
        labels: Indices = self.labels.cpu().numpy()
        return labels if self.tasks is None else labels + (labels.max(initial=0) + 1) * self.tasks

    def select(self, chosen: Indices) -> "LocalSamples":
        """Some of the samples, by int64 [m]; their pixels are not copied."""
        places = torch.from_numpy(chosen).to(self.labels.device)
        return replace(
            self,
            labels=self.labels[places],
            rows=places if self.rows is None else self.rows[places],
            contents=self.contents and [self.contents[place] for place in chosen],
            groups=None if self.groups is None else self.groups[chosen],
            manifest_tasks=None if self.manifest_tasks is None else self.manifest_tasks[chosen],
            tasks=None if self.tasks is None else self.tasks[chosen],
        )


def numbered_classes(labels: NDArray[np.int64]) -> tuple[str, ...]:
    """The class names "0".."max" for labels [N] without names."""
    # N labels have at most N classes. `Pool` refuses a larger label, such as a code of 10^9.
    last = min(int(labels.max(initial=-1)), len(labels))
    return tuple(str(number) for number in range(last + 1))


def are_too_many(unusable: int, images: int, allowed: float) -> bool:
    """Whether more than an `allowed` share (`max-quarantined`) of the images cannot be used."""
    return images > 0 and unusable / images > allowed  # not multiplied: 0.29 * 100 < 29


def are_too_few(train: Indices, test: Indices) -> bool:
    """Whether there are fewer than 2 images to train on, or none to test on."""
    return len(train) < 2 or len(test) < 1


def large_class_rows(patients: Indices, labels: Indices, smallest: int) -> Indices:
    """Indices of the images [n] in classes with at least `smallest` patients."""
    count = labels.max(initial=0) + 1
    classes = np.unique(patients * count + labels) % count  # each class of a patient once
    return np.flatnonzero(np.bincount(classes)[labels] >= smallest)


def least_patients(patients: Indices, strata: Indices, group: int) -> int:
    """A lower bound of the number of patients, for a rule on images that a server chooses.

    The number in each stratum is rounded down to whole groups; a patient counts in one stratum. So
    a refusal reveals no more than rounded numbers, whichever strata are chosen. `patients` [n] and
    `strata` [n] are those of the images.
    """
    first = np.unique(patients, return_index=True)[1]
    counts = np.unique(strata[first], return_counts=True)[1]
    return int((counts // group * group).sum())
