"""Opens a file of a usual format with Pillow."""

from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any, cast

import numpy as np
import PIL.Image
import PIL.ImageCms
import PIL.ImageOps
from numpy.typing import NDArray

from client_app.datasets.files.image import (
    SEVERAL,
    Header,
    Opened,
    UnusableImage,
    channels_first,
    stretch,
)
from client_app.datasets.unread import RAW, format_within

# Pillow knows more formats, but it hands some, such as EPS, to other programs.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")


def open_picture(stream: IO[bytes], size: int) -> Opened:
    """Open a picture. A much larger JPEG is decoded smaller, to at least twice the `size`.

    Raises:
        UnusableImage: The image cannot be used.
        Exception: Pillow raises many types.
    """
    try:
        picture: PIL.Image.Image = PIL.Image.open(stream, formats=FORMATS)
    except PIL.UnidentifiedImageError:
        stream.seek(0)
        format_ = format_within(stream.read(540))
        raise UnusableImage(str(format_ or "is no image file that can be read here")) from None
    # Telephones append thumbnails to a JPEG. Pillow calls such a file MPO.
    kind = "JPEG" if picture.format == "MPO" else str(picture.format)
    if kind != "JPEG" and getattr(picture, "is_animated", False):
        raise UnusableImage(SEVERAL)
    tags = cast(Mapping[int, Any], getattr(picture, "tag_v2", {}))  # of a TIFF
    if tags.get(254) == 1 and 330 in tags:  # the first page is a preview of a raw photograph
        raise UnusableImage(str(RAW))
    width, height = picture.size
    if not tags:  # the size of a TIFF is already that of the upright image
        # The method of the base class, since the method of PNG decodes.
        with suppress(Exception):  # Pillow keeps the readable part of a broken EXIF
            PIL.Image.Image.getexif(picture)
        if PIL.Image.Image.getexif(picture).get(0x0112) in (5, 6, 7, 8):
            width, height = height, width
    # Pillow reads these unsigned numbers as signed, or signed numbers as unsigned.
    number = (picture.mode, tags.get(339, (1,))[0] if tags else 0)
    other = {("I", 1): np.uint32, ("L", 2): np.int8}.get(number)
    deep = picture.mode.startswith(("I", "F")) or other is not None
    grey = deep or picture.mode in ("1", "L", "LA")
    raw = f"{picture.mode} {getattr(picture, 'tile', None)}"  # the latter has, say, "RGB;16B"
    bits = 16 if ";16" in raw and kind != "BMP" else {"1": 1, "I": 32, "F": 32}.get(picture.mode, 8)

    def decode() -> NDArray[np.uint8]:
        shown = picture
        if size:
            shown.draft(None, (2 * size, 2 * size))
        shown.load()
        shown.info.clear()  # otherwise Pillow rewrites the EXIF and fails on odd entries
        PIL.ImageOps.exif_transpose(shown, in_place=True)
        if deep:
            values = np.asarray(shown)
            pixels = stretch(values if other is None else values.view(other))[None]
            return 255 - pixels if tags.get(262) == 0 else pixels  # 0: WhiteIsZero
        if shown.mode == "LAB":  # Pillow converts LAB only by colour profiles
            lab, rgb = PIL.ImageCms.createProfile("LAB"), PIL.ImageCms.createProfile("sRGB")
            transform = PIL.ImageCms.buildTransform(lab, rgb, "LAB", "RGB")
            shown = cast(PIL.Image.Image, PIL.ImageCms.applyTransform(shown, transform))
        # Pillow keeps the upper 8 bits of 16-bit colours and of 16-bit grey with transparency.
        return channels_first(np.array(shown.convert("L" if grey else "RGB")))

    return Header(kind, width, height, 1 if grey else 3, bits), decode
