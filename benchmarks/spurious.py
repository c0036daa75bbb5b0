"""Writes an archive with spurious brightness in its training images: the thesis, Table 2.13.

    uv run python -m benchmarks.spurious <folder>/imagenet10.npz

writes <folder>/imagenet10_spurious.npz. Each training image of class c is brighter by 5 (c + 1), of
values from 0 to 255; a value is at most 255. Test images stay as they are.
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def brighten(images: NDArray[np.uint8], labels: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Images uint8 [n, ...] of classes [n], with the offset of their class."""
    offsets = 5 * (labels.astype(int) + 1).reshape(-1, *[1] * (images.ndim - 1))
    bright: NDArray[np.uint8] = np.minimum(images.astype(int) + offsets, 255).astype(np.uint8)
    return bright


def write(path: Path) -> None:
    """Write the biased archive beside an archive x_train, y_train, x_test, y_test."""
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays["x_train"] = brighten(arrays["x_train"], arrays["y_train"])
    np.savez(path.with_name(f"{path.stem}_spurious.npz"), allow_pickle=False, **arrays)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
