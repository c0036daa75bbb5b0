"""Image files and a CSV file that lists them, one manifest per site.

A manifest is a file in UTF-8, its columns separated by `,`, `;` or tabs, with a header. Columns:

- `image`: an image file, relative to the manifest's folder or to `images` in it;
- `label`: its class, any text;
- `group`, or else `patient`, `patient_id`, `lesion`, `lesion_id` (optional): images that have the
  same text here belong together; an empty field means that the image is on its own.

Other columns are ignored.
"""

import csv
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL.Image
import PIL.ImageOps
from numpy.typing import NDArray

from client_app.datasets.pool import Pool
from client_app.datasets.resize import Form, pixels, stacked
from client_app.errors import DataError

GROUPS = ("group", "patient", "patient_id", "lesion", "lesion_id")
# Not all that Pillow knows: it hands some formats, such as EPS, to other programs.
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")


class _Row(NamedTuple):
    """A row of a manifest."""

    where: str  # for error messages
    file: Path
    label: str
    group: str  # "" = none


def load_manifests(paths: str, form: Form) -> Pool:
    """Load the manifests at absolute `paths`, separated by commas; several are several sites.

    A path is that of a manifest, or of a folder with a `manifest.csv`. The classes are the labels
    of all sites, sorted, as numbers if they all are. A group lies within a site: patient 7 of
    another site is another patient. A group is never split between training and test images of a
    hospital, but only the partition `site` keeps it at one hospital. Images are brought to `form`
    as they are decoded, so that only small ones are held.

    Raises:
        DataError: A manifest or an image cannot be read, or the images differ in size.
    """
    tables = [list(_read(path.strip())) for path in paths.split(",")]
    rows = [row for table in tables for row in table]
    sites = np.repeat(np.arange(len(tables)), list(map(len, tables)))  # [N]
    seen: set[Path] = set()
    for row in rows:
        if row.file in seen:
            raise DataError(f"{row.where} names an image that another row names too.")
        seen.add(row.file)

    classes = _sorted({row.label for row in rows})
    label = {name: number for number, name in enumerate(classes)}
    number: dict[tuple[int, str | int], int] = {}
    groups = [
        number.setdefault((site, row.group or index), len(number))
        for index, (site, row) in enumerate(zip(sites.tolist(), rows, strict=True))
    ]
    return Pool(
        images=stacked(f"manifest:{paths}", [_pixels(row, form) for row in rows]),
        labels=np.array([label[row.label] for row in rows]),
        classes=classes,
        sites=sites if len(tables) > 1 else None,
        groups=np.array(groups) if any(row.group for row in rows) else None,
    )


def _read(path: str) -> Iterator[_Row]:
    """The rows of the manifest at `path`, checked as far as it goes without opening the images."""
    manifest = Path(path)
    if not manifest.is_absolute():
        raise DataError(
            f"The manifest '{path}' of the setting 'dataset' must be an absolute path, since the "
            "working directory of a Flower process is not yours."
        )
    if manifest.is_dir():
        manifest /= "manifest.csv"
    if not manifest.is_file():
        raise DataError(f"There is no file '{manifest}'; the setting 'dataset' names it.")
    table = _table(manifest)
    if len(table) < 2:
        raise DataError(f"The manifest '{manifest}' lists no image.")

    # A header is not quoted here: where it is missing, this is the row of a patient.
    header = [name.strip() for name in table[0][1]]
    for name in ("image", "label"):
        if header.count(name) != 1:
            raise DataError(
                f"The first row of '{manifest}' names {len(header)} columns, and {name!r} "
                f"{header.count(name)} times; it must name it once."
            )
    image, label = header.index("image"), header.index("label")
    group = next((header.index(name) for name in GROUPS if name in header), None)
    folder = manifest.parent.resolve()
    for line, row in table[1:]:
        where = f"Row {line} of '{manifest}' (the header is row 1)"
        fields = [field.strip() for field in row]
        if len(fields) != len(header):
            raise DataError(f"{where} has {len(fields)} columns, the header {len(header)}.")
        for name in ("image", "label"):
            if not fields[header.index(name)]:
                raise DataError(f"{where} has nothing in the column {name!r}.")
        file = _file(folder, fields[image], where)
        yield _Row(where, file, fields[label], "" if group is None else fields[group])


def _table(manifest: Path) -> list[tuple[int, list[str]]]:
    """The rows of a CSV file that are not empty, each with its number from 1."""
    try:
        with manifest.open(encoding="utf-8-sig", newline="") as stream:
            # Not csv.Sniffer, which may take a letter of the texts for the delimiter.
            delimiter = max(",;\t", key=stream.readline().count)
            stream.seek(0)
            reader = csv.reader(stream, delimiter=delimiter, strict=True)
            return [(reader.line_num, row) for row in reader if any(map(str.strip, row))]
    except (OSError, UnicodeError, csv.Error) as error:
        raise DataError(
            f"The manifest '{manifest}' cannot be read as a CSV file ({type(error).__name__}): "
            "save it as CSV in UTF-8."
        ) from error


def _file(folder: Path, image: str, where: str) -> Path:
    """The image file that a row names, with no symbolic link left in its path."""
    try:
        files = [(start / image).resolve() for start in (folder, folder / "images")]
        found = [file for file in files if file.is_file()]
    except (OSError, RuntimeError, ValueError) as error:  # too long, links in a ring, a NUL
        raise DataError(
            f"{where} names an image that cannot be looked up ({type(error).__name__})."
        ) from error
    file = (found or files)[0]
    if not file.is_relative_to(folder):
        raise DataError(f"{where} names an image outside of the manifest's folder.")
    if not found:
        raise DataError(
            f"{where} names an image that is not there: it must be relative to the manifest's "
            "folder, or to 'images' in it."
        )
    return file


def _sorted(labels: set[str]) -> tuple[str, ...]:
    """Labels in the order of their texts, or of their numbers if all are numbers."""
    try:
        numbers = {label: float(label) for label in labels}
    except ValueError:
        return tuple(sorted(labels))
    if not all(map(math.isfinite, numbers.values())):  # a class may be called 'nan' or 'inf'
        return tuple(sorted(labels))
    return tuple(sorted(labels, key=lambda label: (numbers[label], label)))


def _pixels(row: _Row, form: Form) -> NDArray[np.uint8]:
    """Decode an image, turned upright and brought to `form`: [C, H, W]."""
    try:
        # Pillow warns of large images and of doubtful meta data.
        with (
            warnings.catch_warnings(action="ignore"),
            PIL.Image.open(row.file, formats=FORMATS) as picture,
        ):
            if form.size:  # a JPEG far larger is decoded at 1/2, 1/4 or 1/8 of its size
                picture.draft(None, (2 * form.size, 2 * form.size))
            PIL.ImageOps.exif_transpose(picture, in_place=True)
            return pixels(picture, form)
    except Exception as error:  # decoders fail in many ways
        raise DataError(
            f"{row.where} names an image that cannot be used ({type(error).__name__}): it must be "
            f"a file of 8 bits per channel in one of the formats {', '.join(FORMATS)}."
        ) from error
