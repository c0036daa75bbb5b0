"""How a hospital chooses its test images, where the data set does not say."""

import numpy as np
from numpy.typing import NDArray


def choose_test(
    labels: NDArray[np.int64], test_fraction: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw `test_fraction` of the images of each class, but never its last image.

    Args:
        labels: The hospital's labels [n].
        test_fraction: Share of the images to test on, between 0 and 1.
        rng: Decides which images they are.

    Returns:
        True [n] for the images to test on.
    """
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        images = rng.permutation(np.flatnonzero(labels == label))
        chosen[images[: min(round(len(images) * test_fraction), len(images) - 1)]] = True
    return chosen
