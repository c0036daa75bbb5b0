"""Strips of images on pages, as PNG inside the page.

Shapes: `N` images, `C` channels, `H, W` pixels.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import PIL.Image
from numpy.typing import NDArray

SHOWN = 8  # images of a strip
CLASSES = 24  # most classes of which a page shows strips
MOST = 2**26  # most pixels that are decoded
SIDE, GAP = 86, 4  # pixels; a strip is as wide as a column of text

Images = NDArray[np.uint8]


@dataclass(frozen=True)
class Strip:
    """Images side by side: their name, and a data URI."""

    name: str
    source: str


def strip(name: str, images: Sequence[Images]) -> Strip:
    """The first images, each [C, H, W], side by side."""
    return named_strip(name, png_of(images))


def named_strip(name: str, png: bytes) -> Strip:
    """A picture that `png_of` made."""
    return Strip(name, f"data:image/png;base64,{b64encode(png).decode()}")


def strips_by_class(images: Images, labels: NDArray[np.int64], names: Sequence[str]) -> list[Strip]:
    """The first images [N, C, H, W] of each class, by labels [N] and names of classes."""
    return [named_strip(name, png) for name, png in pngs_by_class(images, labels, names).items()]


def strips_of_column(png: bytes, labels: NDArray[Any], names: Sequence[str]) -> list[Strip]:
    """The first images of each class, from a buffer's picture with one image below the other.

    The picture is [N·H, W], the labels are [N]. Another hospital made the picture: there are no
    strips if it cannot be read.
    """
    try:
        with PIL.Image.open(BytesIO(png), formats=["PNG"]) as column:
            if column.mode not in ("L", "RGB") or column.width * column.height > MOST:
                return []
            bands = len(column.getbands())
            images = np.array(column).reshape(len(labels), -1, column.width, bands)
        return strips_by_class(np.moveaxis(images, 3, 1), labels, names)
    except Exception:  # Pillow fails in many ways
        return []


def pngs_by_class(
    images: Images, labels: NDArray[np.int64], names: Sequence[str]
) -> Mapping[str, bytes]:
    """The first images of each class as PNG, by class; for the first `CLASSES` classes."""
    there = [k for k in range(len(names)) if (labels == k).any()]
    return {names[k]: png_of([*images[labels == k][:SHOWN]]) for k in there[:CLASSES]}


def png_of(images: Sequence[Images]) -> bytes:
    """The first `SHOWN` images, each [C, H, W], side by side as PNG."""
    thumbnails = [_thumbnail(each) for each in images[:SHOWN]]
    wide = sum(each.width + GAP for each in thumbnails)
    row = PIL.Image.new("RGBA", (wide, max(each.height for each in thumbnails)))
    left = 0
    for each in thumbnails:
        row.paste(each, (left, 0))
        left += each.width + GAP
    file = BytesIO()
    row.save(file, "PNG")
    return file.getvalue()


def _thumbnail(image: Images) -> PIL.Image.Image:
    """An image of at most `SIDE` pixels a side; a small one is enlarged by a whole factor."""
    last = np.moveaxis(image, 0, 2)
    picture = PIL.Image.fromarray(last.squeeze(2) if last.shape[2] == 1 else last)
    times = SIDE // max(picture.size)
    if times > 1:
        larger = (picture.width * times, picture.height * times)
        return picture.resize(larger, PIL.Image.Resampling.NEAREST)
    picture.thumbnail((SIDE, SIDE))
    return picture
