"""The split of a hospital's images into training and test images.

In a simulation, the seed and the fractions of the run determine the split. Between real hospitals
this would allow an attack: two runs with splits that differ in one patient reveal that patient. So
a real hospital has one split for all runs (`fixed_settings`). Each patient gets a place, which
follows from a secret of the hospital and the patient's images alone. The first patients of a class
are tested on. A new patient therefore moves hardly any other patient.
"""

import hmac
import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from client_app.datasets.pool import Indices, Pool
from client_app.errors import DataError
from strategies.protocol.settings import Settings, require, rng_for, turn_value

# A real hospital's share of test patients; of the others, its share for validation.
TEST_SHARE = 0.2
FOLDS = 5  # of a real hospital
Shuffle = Callable[[Indices], Indices]  # brings images, by number, into a random order


def split(
    pool: Pool,
    labels: Indices,
    own: Indices,
    settings: Settings,
    hospital: int,
    secret: bytes = b"",
) -> tuple[Indices, Indices]:
    """Return the indices of a hospital's training images, and of its test images.

    With a `validation-fraction`, or with folds, the hospital's test images are left out. The
    hospital then tests on some of the others. Of `test-per-class` the first value counts.

    `labels` [N] are those of all images of the data set, and `own` the indices of the hospital's
    images. `hospital` is its index, from 0. In a simulation there is no secret.

    Raises:
        SettingsError: The run wants other folds than those of a real hospital.
        DataError: `test-fraction` is 0 and the data set has no test images of its own. Or a class
            has too few images for `test-per-class`, or there are too few images or groups for the
            folds.
    """
    if not len(own):
        return own, own
    seed = settings.seed
    if secret:
        settings = fixed_settings(settings)
        seed = int.from_bytes(hmac.digest(secret, b"split", "sha256"))
        labels = pool.labels  # the server numbers the classes
        places = _places(pool, secret)

    def draw(
        images: Indices, fraction: float, purpose: str, balanced: bool = False, per_class: int = 0
    ) -> NDArray[np.bool_]:
        rng = rng_for(settings.seed, purpose, hospital=str(hospital))

        def shuffle(some: Indices) -> Indices:
            return some[np.argsort(places[images[some]])] if secret else rng.permutation(some)

        groups = None if pool.groups is None else pool.groups[images]
        return choose_test(labels[images], fraction, shuffle, groups, balanced, per_class)

    if settings.test_fraction > 0 and not pool.always_held_out:
        per_class = int(turn_value(settings.test_per_class, 0) or 0)
        held_out = draw(own, settings.test_fraction, "split", settings.test_balanced, per_class)
    elif pool.held_out is not None:
        held_out = pool.held_out[own]
    else:
        raise DataError(
            f"The setting 'test-fraction' is 0, but the data set '{settings.dataset}' has no test "
            "images of its own: set it above 0, such as to 0.2."
        )
    if settings.validation_fraction > 0:
        own = own[~held_out]
        held_out = draw(own, settings.validation_fraction, "validation")
    elif settings.num_folds > 0:
        own = own[~held_out]
        groups = own if pool.groups is None else pool.groups[own]
        rng = rng_for(seed, "folds", hospital=str(hospital))
        held_out = _fold(labels[own], groups, settings, rng)
    return own[~held_out], own[held_out]


def fixed_settings(settings: Settings) -> Settings:
    """Return the settings of a real hospital's split, which no run can change.

    The run chooses only between the hospital's test images and some of the others
    (`validation-fraction`, or one of the hospital's folds).

    Raises:
        SettingsError: The run wants other folds than those of the hospital.
    """
    allowed = f"0 or {FOLDS} between real hospitals, whose folds are the same in all runs"
    require(settings.num_folds in (0, FOLDS), "num-folds", settings.num_folds, allowed)
    return replace(
        settings,
        test_fraction=TEST_SHARE,
        test_balanced=False,
        test_per_class="",
        validation_fraction=TEST_SHARE if settings.validation_fraction else 0.0,
    )


def _places(pool: Pool, secret: bytes) -> NDArray[np.uint64]:
    """The place of each image [N] in a random order; images of one patient have the same place.

    The place follows from the smallest file hash of the patient. Without files, it follows from
    the number of the image in the data set. It never follows from the form of the image, since a
    run chooses the form.
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
    """True [n] for the images of the test fold; each image is in exactly one fold."""
    from sklearn.model_selection import StratifiedGroupKFold  # takes seconds

    seed = int(rng.integers(2**32))
    folds = StratifiedGroupKFold(settings.num_folds, shuffle=True, random_state=seed)
    held_out = np.zeros(len(labels), dtype=np.bool_)
    try:
        with warnings.catch_warnings(action="ignore"):  # for classes with fewer images than folds
            parts = list(folds.split(held_out, labels, groups))
    except ValueError as error:
        raise DataError(
            f"The hospital has too few images or groups for {settings.num_folds} folds "
            "(num-folds): use fewer folds."
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
    """Draw `test_fraction` of the images of each class, but never its last image: True [n].

    With `balanced`, the same number is drawn from each class, and at most half of the rarest class.
    With `per_class` above 0, this number is drawn from each class.

    The images have labels [n] and perhaps groups [n], for example their patients. All images of a
    group are drawn, or none; the numbers of each class are then approximate.

    Raises:
        DataError: A class has no more images than `per_class`.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    wanted = np.minimum(np.rint(sizes * test_fraction), sizes - 1).astype(np.int64)  # [K]
    if per_class:
        rarest = sizes.argmin()
        if sizes[rarest] <= per_class:
            raise DataError(
                f"The setting 'test-per-class' is {per_class}, which leaves no training image of "
                f"class {classes[rarest]} at the hospital: set it lower."
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

    A class without a test image then gets the group that exceeds `wanted` least. sklearn's
    StratifiedGroupKFold is similar; this function allows any fraction, and each class keeps a
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
        # Relative to the size of a class; otherwise rare classes would not count.
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
