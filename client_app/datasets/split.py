"""How a hospital chooses its validation images, and its test images unless the data set does."""

import numpy as np
from numpy.typing import NDArray


def choose_test(
    labels: NDArray[np.int64],
    test_fraction: float,
    rng: np.random.Generator,
    groups: NDArray[np.int64] | None = None,
) -> NDArray[np.bool_]:
    """Draw `test_fraction` of the images of each class, but never its last image.

    Args:
        labels: The hospital's labels [n].
        test_fraction: Share of the images to test on, between 0 and 1.
        rng: Decides which images they are.
        groups: Which images [n] belong together, those of one patient for instance. A group is
            tested on as a whole or not at all, so that each class is drawn as nearly as that
            allows. None = every image is on its own.

    Returns:
        True [n] for the images to test on.
    """
    if groups is not None:
        return _choose_groups(labels, test_fraction, rng, groups)
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        images = rng.permutation(np.flatnonzero(labels == label))
        chosen[images[: _wanted(len(images), test_fraction)]] = True
    return chosen


def _wanted(images: int, test_fraction: float) -> int:
    """How many images of a class to test on."""
    return min(round(images * test_fraction), images - 1)


def _choose_groups(
    labels: NDArray[np.int64],
    test_fraction: float,
    rng: np.random.Generator,
    groups: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Take groups in random order, each one that brings the classes nearer to what is wanted.

    A class that is still without a test image then gets the group that goes least beyond. What
    sklearn's StratifiedGroupKFold does, for any fraction and with a training image for each class.
    """
    # G groups, K classes of this hospital.
    classes, label_of = np.unique(labels, return_inverse=True)
    members, group_of = np.unique(groups, return_inverse=True)
    counts = np.zeros((len(members), len(classes)), dtype=np.int64)  # [G, K]
    np.add.at(counts, (group_of, label_of), 1)
    sizes = counts.sum(axis=0)  # [K]
    wanted = np.array([_wanted(int(size), test_fraction) for size in sizes], dtype=np.int64)
    taken = np.zeros(len(members), dtype=np.bool_)
    tested = np.zeros_like(sizes)  # [K]

    def distance(tested: NDArray[np.int64]) -> float:
        # Relative to a class's size, or the rare ones would not count.
        return float((((wanted - tested) / sizes) ** 2).sum())

    def spares(group: int) -> bool:
        """Whether each class of this group keeps an image to train on."""
        return not np.any((tested + counts[group] == sizes) & (counts[group] > 0))

    order = rng.permutation(len(members))
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
