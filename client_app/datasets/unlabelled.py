"""Images for a model to predict: in any folder, prepared as in training, and not stored."""

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from client_app.datasets.files import read_file
from client_app.datasets.image import UnusableImage
from client_app.datasets.library import prepare
from client_app.datasets.listing import (
    Entry,
    Listing,
    Unusable,
    images_below,
    list_manifest,
    to_utf8,
)
from client_app.datasets.resize import Form
from client_app.errors import DataError
from strategies.protocol.data_sets import manifests_in

CHUNK, BYTES = 256, 2**27  # images in memory at a time, and their bytes


def list_images(path: Path) -> Listing:
    """List one image, all images of a manifest, or all images in a folder and below.

    If a folder has a manifest.csv, the manifest lists the images; it needs no labels. Otherwise a
    file is an image by its suffix, or by the first bytes of DICOM.

    Raises:
        DataError: There is no such file or folder, or it holds no image.
    """
    path = path.absolute()
    if path.suffix.lower() in (".csv", ".tsv", ".txt") or manifests_in(path):
        return list_manifest(str(path), needed=["image"])
    if path.is_file():
        return Listing(path.parent, [Entry(path.name, path, label="")])
    if not path.is_dir():
        raise DataError(f"There is no file or folder '{path}' with images.")
    listing = Listing(path)

    def note(error: OSError) -> None:
        reason = f"cannot be read ({type(error).__name__})"
        listing.unusable.append(Unusable(str(error.filename), reason))

    for file in images_below(listing, note):
        listing.entries.append(Entry(to_utf8(file.relative_to(path)), file, label=""))
    if not listing.entries and not listing.unusable:
        raise DataError(f"The folder '{path}' holds no image file.")
    return listing


def read_images(
    entries: Sequence[Entry], form: Form, shape: tuple[int, int, int]
) -> Iterator[tuple[list[Entry], Tensor, list[Unusable]]]:
    """Decode images in chunks; each must have the shape (C, H, W) in the form.

    Yields:
        The entries that can be used, their images, uint8 [n, C, H, W], and the other entries.
    """
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        at_a_time = max(1, min(CHUNK, BYTES // math.prod(shape)))
        for start in range(0, len(entries), at_a_time):
            chunk = entries[start : start + at_a_time]
            found = list(threads.map(partial(_read, form=form, shape=shape), chunk))
            pairs = list(zip(chunk, found, strict=True))
            images = [image for image in found if isinstance(image, Tensor)]
            yield (
                [entry for entry, image in pairs if isinstance(image, Tensor)],
                torch.stack(images) if images else torch.empty(0, *shape, dtype=torch.uint8),
                [Unusable(e.where, reason) for e, reason in pairs if isinstance(reason, str)],
            )


def _read(entry: Entry, form: Form, shape: tuple[int, int, int]) -> Tensor | str:
    """A prepared image, or the reason of a failure."""
    try:
        return prepare(read_file(entry.file), entry.slice, form, shape)
    except UnusableImage as error:
        return str(error)
