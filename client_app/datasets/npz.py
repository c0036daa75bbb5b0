"""Images in a NumPy archive, in one of two forms.

1. One set for all: `x_train, y_train, x_test, y_test`. Both become one pool, which marks the images
   of the test set.
2. One set per hospital: `train_x_i, train_y_i, test_x_i, test_y_i` for i = 0, 1, ... The pool also
   has the hospital of each image, and hospitals always keep these test sets.

Images are uint8 [N, H, W] or [N, H, W, C] with 1 or 3 channels, H and W above 0; labels whole
numbers [N] from 0.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_app.datasets.pool import Pool, numbered_classes
from client_app.errors import DataError
from strategies.protocol.archive import load
from strategies.protocol.files import reason_of


def load_npz(file: str) -> Pool:
    """Load the archive at the absolute path `file`.

    Raises:
        DataError: There is no such file, or it has neither form, or no image.
    """
    arrays = _read(file)
    one_set = "x_train" in arrays
    pairs = (
        [("x_train", "y_train"), ("x_test", "y_test")]
        if one_set
        else [
            (f"{part}_x_{i}", f"{part}_y_{i}")
            for i in range(max(1, len(arrays) // 4))
            for part in ("train", "test")
        ]
    )
    if set(arrays) != {key for pair in pairs for key in pair}:
        raise DataError(
            f"The file '{file}' must hold either the arrays x_train, y_train, x_test, y_test, or "
            "train_x_i, train_y_i, test_x_i, test_y_i for the hospitals i = 0, 1, ...",
            f"It holds {', '.join(sorted(arrays)) or 'none'}.",
        )
    images = [_images(file, x, arrays[x]) for x, _ in pairs]
    labels = [_labels(file, y, arrays[y], x, len(arrays[x])) for x, y in pairs]
    if len({array.shape[1:] for array in images}) > 1:
        raise DataError(f"The images in '{file}' differ in size or channels between its arrays.")

    merged = np.concatenate(labels)
    if not len(merged):
        raise DataError(f"The file '{file}' holds no image.")
    part = np.repeat(np.arange(len(pairs)), list(map(len, labels)))  # [N], even = train, odd = test
    return Pool(
        images=np.concatenate(images),
        labels=merged,
        classes=numbered_classes(merged),
        sites=None if one_set else part // 2,
        held_out=part % 2 == 1,
        always_held_out=not one_set,
    )


def _read(file: str) -> dict[str, NDArray[Any]]:
    path = Path(file)
    if not path.is_absolute():
        raise DataError(
            f"The file '{file}' of the setting 'dataset' must be an absolute path, since the "
            "working directory of a Flower process is not yours."
        )
    if not path.is_file():
        raise DataError(f"There is no file '{file}'; the setting 'dataset' names it.")
    try:
        return load(path)
    except (OSError, ValueError) as error:
        raise DataError(
            f"The file '{file}' cannot be read as an archive of plain arrays, which numpy.savez "
            "writes.",
            f"{reason_of(error)}",
        ) from error


def _images(file: str, key: str, array: NDArray[Any]) -> NDArray[np.uint8]:
    """Check the images of an array and return them as [N, C, H, W]."""
    grey, colour = array.ndim == 3, array.ndim == 4 and array.shape[-1] in (1, 3)
    if array.dtype != np.uint8 or not (grey or colour) or 0 in array.shape[1:]:
        raise DataError(
            f"Images in '{file}' must be uint8 [N, H, W] or [N, H, W, C] with H and W above 0, and "
            "1 or 3 channels.",
            f"The array '{key}' is {array.dtype} {list(array.shape)}.",
        )
    return array[:, None] if grey else np.moveaxis(array, -1, 1)


def _labels(file: str, key: str, array: NDArray[Any], images: str, count: int) -> NDArray[np.int64]:
    """Check the labels of an array and return them as [N]."""
    if array.dtype.kind not in "iu" or array.shape != (count,):
        raise DataError(
            f"Labels in '{file}' must be whole numbers, one for each image.",
            f"The array '{key}' is {array.dtype} {list(array.shape)}, with {count} images in "
            f"'{images}'.",
        )
    return array.astype(np.int64)
