"""The handwritten digits that come with scikit-learn: 1797 images of 8 x 8 pixels, no download."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from client_app.datasets.pool import Pool


def load_digits() -> Pool:
    """Load all digits, their grey values 0..16 scaled to 0..255."""
    # sklearn.datasets.load_digits would take seconds to import; only its file is needed.
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    # A row per image: 64 pixels and the label. To read floats would take six times as long.
    table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    images = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8)
    labels = table[:, -1].copy()
    return Pool(images.reshape(-1, 1, 8, 8), labels, tuple(map(str, range(10))))
