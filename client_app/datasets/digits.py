"""The handwritten digits that come with scikit-learn: 1797 images of 8 x 8 pixels, no download."""

import numpy as np

from client_app.datasets.pool import Pool


def load_digits() -> Pool:
    """Load all digits, their grey values 0..16 scaled to 0..255."""
    from sklearn import datasets  # takes seconds

    digits = datasets.load_digits()
    return Pool(
        images=np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None],  # [N, 1, 8, 8]
        labels=digits.target.astype(np.int64),
        classes=tuple(map(str, digits.target_names)),
    )
