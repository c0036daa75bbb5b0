"""Data sets of the Hugging Face hub, or of a local folder in a format of the hub.

The simplest formats are image files in one folder per class, and parquet files.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.authority.limits import check_images
from client_app.authority.policy import MachineRules
from client_app.datasets.files import read_file, read_pixels
from client_app.datasets.image import UnusableImage
from client_app.datasets.pool import Pool, numbered_classes
from client_app.datasets.resize import Form, stack
from client_app.errors import DataError

SITE = ("site", "center")  # columns of sites; Flower's copy of FLamby's data has "center"


def load_hub(source: str, form: Form, machine: MachineRules | None = None) -> Pool:
    """Load all splits of `source`, a name on the hub or an absolute folder: train, test, others.

    The images of a split `test` are the data set's own test images. The image column `image` has
    the images, or else the first one. The class column `label` has the labels, or else the first
    one, or else the column `label` has them as whole numbers. A column `site` or `center` has the
    sites. Each image is brought to `form` as soon as it is decoded, so that memory holds only small
    images.

    Raises:
        DataError: `source` cannot be reached or read, or its images differ in size.
        DataError, PolicyError: The images would not fit into memory (`check_images`).
    """
    import datasets  # takes seconds

    table, held_out = _read(source)
    columns = {name: kind for name, kind in table.features.items() if name not in SITE}
    site = next((name for name in SITE if name in table.features), None)
    image = _find(columns, datasets.Image, "image")
    label = _find(columns, datasets.ClassLabel, "label") or "label"
    if image is None or label not in columns:
        raise DataError(
            f"The data set '{source}' must have a column of images, and a column of classes or a "
            "column 'label' of whole numbers.",
            f"It has the columns {', '.join(table.column_names)}.",
        )
    names = table[site][:] if site else []
    if None in names:
        raise DataError(f"The column '{site}' of '{source}' is empty for some images: fill it in.")
    if form.size:
        check_images(machine, len(table), (3, form.size, form.size))
    labels = np.asarray(table[label][:])  # [N]
    if labels.dtype.kind != "i":
        text = f"The column of labels of '{source}' must hold a whole number everywhere."
        raise DataError(text, f"It is '{label}'.")
    return Pool(
        images=_images(source, table.cast_column(image, datasets.Image(decode=False))[image], form),
        labels=labels,
        classes=tuple(getattr(columns[label], "names", numbered_classes(labels))),
        # Numbers of the sites in the order of their names
        sites=np.unique(names, return_inverse=True)[1] if site else None,
        held_out=held_out,
    )


def _read(source: str) -> tuple[Any, NDArray[np.bool_] | None]:
    """All splits of `source` as one `datasets.Dataset`, and True [N] for rows of split `test`."""
    import datasets

    if Path(source).is_absolute() and not Path(source).is_dir():
        raise DataError(f"There is no folder '{source}'; the setting 'dataset' names it.")
    try:
        # flwr_datasets.FederatedDataset would report the path of a hospital's folder to Flower.
        splits = datasets.load_dataset(source)
        order = sorted(splits, key=lambda name: {"train": 0, "test": 1}.get(name, 2))
        parts = [splits[name] for name in order]
        tested = np.repeat([name == "test" for name in order], list(map(len, parts)))
        return datasets.concatenate_datasets(parts), tested if "test" in order else None
    except ConnectionError as error:
        raise DataError(
            f"The Hugging Face hub cannot be reached for '{source}': connect this machine, or set "
            "'dataset' to hf:<absolute folder> or npz:<absolute file>."
        ) from error
    except Exception as error:  # errors of the network and of file formats have many types
        raise DataError(
            f"'{source}' cannot be read as a data set ({type(error).__name__}): it must be a name "
            "on the Hugging Face hub, or an absolute folder of images or parquet files."
        ) from error


def _find(columns: dict[str, Any], kind: type, name: str) -> str | None:
    """The column of a kind with this name, or else the first one of the kind."""
    found = [each for each, feature in columns.items() if isinstance(feature, kind)]
    return name if name in found else next(iter(found), None)


def _images(source: str, files: Iterable[dict[str, Any]], form: Form) -> NDArray[np.uint8]:
    """Decode, form and stack images: [N, C, H, W]."""
    images: list[NDArray[np.uint8]] = []
    for file in files:
        try:
            content = file["bytes"] or read_file(Path(file["path"]))
            image = torch.from_numpy(read_pixels(content, size=form.size))
            images.append(form.apply(image[None])[0].numpy())
        except (UnusableImage, OSError, TypeError) as error:  # TypeError: there is no image
            reason = str(error) if isinstance(error, UnusableImage) else "is not there"
            raise DataError(
                f"An image of '{source}' cannot be used; the hospital's own log says which.",
                f"Image {len(images)}, counted from 0, {reason}.",
            ) from error
    return stack(source, images)
