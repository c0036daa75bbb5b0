"""Writes two archives of the handwritten digits: 0 to 5, and 6 to 9 with labels from 0 on.

    uv run python -m benchmarks.held_out <folder>

The tables `mah_digits` and `twf_small` use them: the first archive has the tasks. The second has
the auxiliary classes of MAH, and the training images of TwF's teacher: other classes, and no
download.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

PARTS = {"digits_0_to_5": range(6), "digits_6_to_9": range(6, 10)}


def write(folder: Path) -> None:
    """Write both archives into a folder, which may be new; a fifth of each is for testing."""
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = load_digits(return_X_y=True)
    pixels = (images * 15.9375).astype(np.uint8).reshape(-1, 8, 8)  # from 0 to 16, to 255
    for name, digits in PARTS.items():
        some = np.isin(labels, digits)
        names = ("x_train", "x_test", "y_train", "y_test")
        parts = train_test_split(
            pixels[some],
            labels[some] - digits[0],
            test_size=0.2,
            random_state=0,
            stratify=labels[some],
        )
        np.savez(folder / name, allow_pickle=False, **dict(zip(names, parts, strict=True)))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
