"""Which of its images a hospital trains on, and which it tests on.

A simulation chooses them by the seed and the fractions of its run. Between real hospitals whoever
could choose like that would order two runs that differ in one patient, and take the difference. So
there a hospital is split once, whatever a run says (`fixed`). Each patient has a place that follows
from a secret of the hospital and the patient's images alone, and those who come first in a class
are tested on: a new patient moves hardly anybody else.
"""

import hmac
import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from client_app.datasets.pool import Indices, Pool
from client_app.errors import DataError
from strategies.protocol.settings import Settings, require, rng_for

TESTED = 0.2  # share of a real hospital's patients that is tested on; of the others, to choose by
FOLDS = 5  # of a real hospital's
Shuffle = Callable[[Indices], Indices]  # brings images, by number, into a random order


def split(
    pool: Pool,
    labels: Indices,
    own: Indices,
    settings: Settings,
    hospital: int,
    per_class: int = 0,
    secret: bytes = b"",
) -> tuple[Indices, Indices]:
    """Which of a hospital's images it trains on, and which it tests on.

    With a `validation-fraction`, or with folds, its test images are left out, and it tests on some
    of the others.

    Args:
        pool: The data set.
        labels: Of all images of the data set, [N].
        own: Which of them are the hospital's.
        settings: How they are split.
        hospital: Index of the hospital, from 0.
        per_class: How many images of each class it tests on; 0 = by `test-fraction`.
        secret: A real hospital's own; empty in a simulation.

    Raises:
        SettingsError: The run wants other folds than a real hospital's.
        DataError: The data set has no test images of its own though `test-fraction` is 0, too few
            images of a class to test on `per_class`, or too few images or groups for so many folds.
    """
    seed = settings.seed
    if secret:
        settings, per_class = fixed_settings(settings), 0
        seed = int.from_bytes(hmac.digest(secret, b"split", "sha256"))
        labels, own = pool.labels, np.sort(own)  # the server numbers classes, and cuts the pool
        places = _places(pool, secret)

    def shuffled(images: Indices, purpose: str) -> Shuffle:
        if secret:
            return lambda some: some[np.argsort(places[images[some]])]
        return rng_for(settings.seed, purpose, hospital=str(hospital)).permutation

    def chosen(images: Indices, fraction: float, purpose: str) -> NDArray[np.bool_]:
        shuffle = shuffled(images, purpose)
        groups = None if pool.groups is None else pool.groups[images]
        if purpose != "split":
            return choose_test(labels[images], fraction, shuffle, groups)
        balanced = settings.test_balanced
        return choose_test(labels[images], fraction, shuffle, groups, balanced, per_class)

    if settings.test_fraction > 0 and not pool.always_held_out:
        held_out = chosen(own, settings.test_fraction, "split")
    elif pool.held_out is not None:
        held_out = pool.held_out[own]
    else:
        raise DataError(
            f"The setting 'test-fraction' is 0, but the data set '{settings.dataset}' has no test "
            "images of its own: set it above 0, such as to 0.2."
        )
    if settings.validation_fraction > 0:
        own = own[~held_out]
        held_out = chosen(own, settings.validation_fraction, "validation")
    elif settings.num_folds > 0:
        own = own[~held_out]
        groups = own if pool.groups is None else pool.groups[own]
        rng = rng_for(seed, "folds", hospital=str(hospital))
        held_out = _fold(labels[own], groups, settings, rng)
    return own[~held_out], own[held_out]


def fixed_settings(settings: Settings) -> Settings:
    """The settings by which a real hospital is split, whatever a run says.

    Args:
        settings: Of the run, which says whether the hospital tests on its test images, or on some
            of the others (`validation-fraction`, or one of its folds).

    Raises:
        SettingsError: The run wants other folds than the hospital's.
    """
    allowed = f"0 or {FOLDS} between real hospitals, whose folds are the same in all runs"
    require(settings.num_folds in (0, FOLDS), "num-folds", settings.num_folds, allowed)
    return replace(
        settings,
        test_fraction=TESTED,
        test_balanced=False,
        test_per_class="",
        validation_fraction=TESTED if settings.validation_fraction else 0.0,
    )


def _places(pool: Pool, secret: bytes) -> NDArray[np.uint64]:
    """The place of each image [N] among all that there may ever be; one patient's have the same.

    It follows from the file that comes first of the patient's by its hash, or else from the number
    of the image in the data set: not from its form, which a run chooses.
    """
    count = len(pool.labels)
    names = pool.contents or [f"{number:09}" for number in range(count)]
    groups = range(count) if pool.groups is None else pool.groups.tolist()
    first: dict[int, str] = {}
    for group, name in zip(groups, names, strict=True):
        first[group] = min(name, first.get(group, name))
    drawn = (hmac.digest(secret, f"place {first[group]}".encode(), "sha256") for group in groups)
    return np.array([int.from_bytes(each[:8]) for each in drawn], dtype=np.uint64)


def _fold(
    labels: Indices, groups: Indices, settings: Settings, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Which images [n] are in the fold to test on; each is in one of them."""
    from sklearn.model_selection import StratifiedGroupKFold  # takes seconds

    seed = int(rng.integers(2**32))
    folds = StratifiedGroupKFold(settings.num_folds, shuffle=True, random_state=seed)
    held_out = np.zeros(len(labels), dtype=np.bool_)
    try:
        with warnings.catch_warnings(action="ignore"):  # of classes with fewer images than folds
            parts = list(folds.split(held_out, labels, groups))
    except ValueError as error:
        raise DataError(
            "The hospital's images, or their groups, are too few to be cut into "
            f"{settings.num_folds} folds (num-folds): use fewer."
        ) from error
    held_out[parts[settings.fold][1]] = True
    return held_out


def choose_test(
    labels: NDArray[np.int64],
    test_fraction: float,
    shuffle: Shuffle,
    groups: NDArray[np.int64] | None = None,
    balanced: bool = False,
    per_class: int = 0,
) -> NDArray[np.bool_]:
    """Draw `test_fraction` of the images of each class, but never its last image.

    Args:
        labels: The hospital's labels [n].
        test_fraction: Share of the images to test on, between 0 and 1.
        shuffle: Decides which images they are.
        groups: Which images [n] belong together, those of one patient for instance. A group is
            tested on as a whole or not at all, so that each class is drawn as nearly as that
            allows. None = every image is on its own.
        balanced: Whether to draw as many of each class (with groups: as nearly as that allows), and
            of the rarest no more than half.
        per_class: So many of each class instead (with groups: as nearly as that allows); 0 = not.

    Returns:
        True [n] for the images to test on.

    Raises:
        DataError: A class has no more images than `per_class`.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    wanted = np.minimum(np.rint(sizes * test_fraction), sizes - 1).astype(np.int64)  # [K]
    if per_class:
        rarest = sizes.argmin()
        if sizes[rarest] <= per_class:
            raise DataError(
                f"The setting 'test-per-class' is {per_class}, which leaves nothing to train on of "
                f"the hospital's images of class {classes[rarest]}: set it lower."
            )
        wanted[:] = per_class
    elif balanced:
        equal = round(len(labels) * test_fraction / len(classes))
        wanted[:] = min(equal, sizes.min() // 2)
    if groups is not None:
        return _choose_groups(labels, wanted, shuffle, groups)
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label, count in zip(classes, wanted, strict=True):
        images = shuffle(np.flatnonzero(labels == label))
        chosen[images[:count]] = True
    return chosen


def _choose_groups(
    labels: NDArray[np.int64],
    wanted: NDArray[np.int64],
    shuffle: Shuffle,
    groups: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Draw groups in random order, and take each that brings the classes nearer to `wanted`.

    A class that then has no test image gets the group that exceeds `wanted` least. sklearn's
    StratifiedGroupKFold does the same; here it is for any fraction, and each class keeps a
    training image.
    """
    # G groups, K classes of this hospital.
    classes, label_of = np.unique(labels, return_inverse=True)
    members, firsts, group_of = np.unique(groups, return_index=True, return_inverse=True)
    counts = np.zeros((len(members), len(classes)), dtype=np.int64)  # [G, K]
    np.add.at(counts, (group_of, label_of), 1)
    sizes = counts.sum(axis=0)  # [K]
    taken = np.zeros(len(members), dtype=np.bool_)
    tested = np.zeros_like(sizes)  # [K]

    def distance(tested: NDArray[np.int64]) -> float:
        # Relative to a class's size, or the rare ones would not count.
        return float((((wanted - tested) / sizes) ** 2).sum())

    def spares(group: int) -> bool:
        """Whether each class of this group keeps an image to train on."""
        return not np.any((tested + counts[group] == sizes) & (counts[group] > 0))

    order = group_of[shuffle(firsts)]
    for group in order:
        if spares(group) and distance(tested + counts[group]) < distance(tested):
            taken[group] = True
            tested += counts[group]
    for label in np.argsort(sizes, kind="stable"):
        candidates = [group for group in order if counts[group, label] and spares(group)]
        if wanted[label] > 0 and tested[label] == 0 and candidates:
            group = min(candidates, key=lambda group: distance(tested + counts[group]))
            taken[group] = True
            tested += counts[group]
    return taken[group_of]
