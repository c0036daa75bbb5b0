"""The list of a hospital's images, made before any image is opened.

docs/data.md describes both forms: a folder with a folder for each class and subfolders of patients,
and a manifest with its columns. Every image that cannot be used is listed with the reason.
"""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from os.path import realpath
from pathlib import Path
from urllib.parse import unquote

from client_app.datasets.columns import check_columns, find_columns
from client_app.datasets.files import SUFFIX, is_image
from client_app.datasets.findings import Finding
from client_app.datasets.unread import FORMATS, SYSTEM, format_of, is_system
from client_app.errors import DataError
from strategies.protocol.data_sets import manifests_in
from strategies.protocol.files import expand, read_table

_NamesIn = Callable[[Path], dict[str, list[str]]]


@dataclass(frozen=True)
class Entry:
    """An image that is listed."""

    # Path below the folder, or the manifest's row with its image; for the hospital alone
    where: str
    file: Path
    label: str
    group: str = ""  # name of the image's group; empty = the image is on its own
    split: str = ""  # "train", "test", or empty if the hospital chooses
    site: str = ""  # the hospital of the image; empty = unknown
    slice: int | None = None  # number of the slice of a volume; None = the file is one image
    task: int = 0  # the task in which the image arrives, from 1; 0 = unknown


@dataclass(frozen=True)
class Unusable:
    """A listed image that cannot be used, and the reason; for the hospital alone."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


@dataclass(frozen=True)
class Listing:
    """All images of a hospital."""

    source: Path  # the manifest, or the folder of folders
    entries: list[Entry] = field(default_factory=list)  # the images in their right place
    unusable: list[Unusable] = field(default_factory=list)  # all other images
    # Number of other files by kind: SYSTEM, the name of a format that is not read, or empty for an
    # unknown kind
    ignored: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)  # about the columns of the manifest
    labels: set[str] = field(default_factory=set)  # all that the manifest names


class _RowError(ValueError):
    """A row cannot be used."""


def list_folder(path: str) -> Listing:
    """List the images in a folder of folders.

    Raises:
        DataError: There is no such folder, or it holds no folders, or a folder cannot be read. Or
            its folders are hospitals, not classes.
    """
    source = _absolute(path)
    if not source.is_dir():
        raise DataError("The hospital's folder of images ('data-dir' or 'dataset') is not there.")
    if hospitals := sum(bool(manifests_in(each)) for each in source.glob("*")):
        raise DataError(
            f"The folder of images ('data-dir' or 'dataset') holds {hospitals} folders with a "
            "manifest.csv each: these are hospitals, not classes. Name one; in a simulation name "
            "all, as dataset='manifest:<absolute folder>,<absolute folder>' partition='site'."
        )
    listing = Listing(source)
    if manifests_in(source):
        text = "The folder has a manifest.csv, which is not read, since 'dataset' says 'folder'."
        advice = (
            "Write 'manifest' there; the manifest's patients and labels count then. Or remove it."
        )
        listing.findings.append(Finding("manifest-not-read", text, advice, "amber"))
    for file in images_below(listing, _refuse):
        place = file.relative_to(source)
        where = to_utf8(place)
        label, *between = place.parts[:-1] or ("",)
        if not label:
            listing.unusable.append(Unusable(where, "is in no class's folder"))
        elif where != str(place):
            listing.unusable.append(Unusable(where, "has a name that is not UTF-8"))
        elif file.is_symlink() and not Path(realpath(file)).is_relative_to(realpath(source)):
            listing.unusable.append(Unusable(where, "is a link that leads out of the folder"))
        else:
            group = _common_form(between[0]) if between else ""
            listing.entries.append(Entry(where, file, label, group))
    if not listing.entries and not listing.unusable:
        unread = ", ".join(each.name for each in FORMATS if listing.ignored[each.name])
        raise DataError(
            "The hospital's folder holds no folder with images, one for each class.",
            f"Its files are in formats that are not read here ({unread})." if unread else "",
        )
    return listing


def images_below(listing: Listing, onerror: Callable[[OSError], None]) -> Iterator[Path]:
    """Yield the image files in a listing's folder and below; note all others in the listing.

    `onerror` is called for a folder that cannot be read.
    """
    # Without `onerror`, os.walk skips a folder that it cannot read.
    for folder, folders, names in os.walk(listing.source, onerror=onerror):
        below = {name for name in folders if not is_system(name)}
        for name in sorted(folders + names):
            file = Path(folder, name)
            if is_system(name):
                listing.ignored[SYSTEM] += 1
            elif name in below:
                if file.is_symlink():
                    where = to_utf8(file.relative_to(listing.source))
                    listing.unusable.append(Unusable(where, "is a link to a folder"))
            elif is_image(file):
                yield file
            else:
                format_ = format_of(name)
                listing.ignored[format_.name if format_ else ""] += 1
        folders[:] = sorted(below)


def to_utf8(path: str | Path) -> str:
    """A path as valid UTF-8; other characters become question marks."""
    return str(path).encode(errors="replace").decode()


def list_manifest(path: str, needed: Sequence[str] = ("image", "label")) -> Listing:
    """List the images that a manifest names; `path` is the manifest or its folder.

    Raises:
        DataError: There is no manifest, or it cannot be read.
    """
    source = _absolute(path)
    if source.is_dir():
        if len(found := manifests_in(source)) > 1:
            raise DataError(
                "The hospital's folder has several manifests, whose names differ in case: remove "
                "all but one."
            )
        source = found[0] if found else source / "manifest.csv"
    if not source.is_file():
        raise DataError(
            "The hospital's manifest is not there: 'data-dir' or 'dataset' must name it, or a "
            "folder with a manifest.csv."
        )
    (_, names), *rows = _rows(source, needed)
    rows = [(number, _fit(fields, len(names))) for number, fields in rows]
    header = find_columns(names, needed)
    findings = list(check_columns(names, [fields for _, fields in rows], header))
    whole = [fields for _, fields in rows if len(fields) == len(names) and "label" in header]
    labels = {fields[header["label"]].strip() for fields in whole} - {""}
    listing = Listing(source, findings=findings, labels=labels)
    folder = source.parent.resolve()
    real = cache(realpath)  # without this cache, ten thousand rows take a second
    find = partial(_file, folder, real=real, names_in=cache(_names_in))
    seen: dict[tuple[Path, int], str] = {}
    for number, fields in rows:
        image = "".join(fields[header["image"] : header["image"] + 1]).strip()
        where = f"row {number} ({image})" if image else f"row {number}"
        try:
            if len(fields) != len(names):
                raise _RowError(f"has {len(fields)} columns, the header has {len(names)}")
            field = {name: fields[index].strip() for name, index in header.items()}
            entry = _entry(where, field, needed, find)
            place = entry.file, entry.slice or 0  # slice 0 of a picture is the picture
            if place in seen:
                other = "too" if seen[place] == entry.label else "with another label"
                raise _RowError(f"names an image that an earlier row names {other}")
        except _RowError as error:
            listing.unusable.append(Unusable(where, str(error)))
        else:
            seen[place] = entry.label
            listing.entries.append(entry)
    return listing


def _absolute(path: str) -> Path:
    folder = expand(path.strip())
    if not folder.is_absolute():
        raise DataError(
            "'data-dir' and the path in 'dataset' must be absolute, since the working directory of "
            "a Flower process is not yours."
        )
    if to_utf8(folder) != str(folder):
        raise DataError("The name of the folder of images, or of one above it, is not in UTF-8.")
    return folder


def _refuse(error: OSError) -> None:
    raise DataError(
        f"A folder of the hospital's images cannot be read ({type(error).__name__})."
    ) from error


def _rows(manifest: Path, needed: Sequence[str]) -> list[tuple[int, list[str]]]:
    """The rows that are not empty, with their numbers from 1; the first is the header."""
    try:
        rows = read_table(manifest, needed)
    except OSError as error:
        text = f"The hospital's manifest cannot be read ({type(error).__name__})."
        raise DataError(text) from error
    except ValueError as error:
        raise DataError("The hospital's manifest cannot be read.", str(error)) from error
    if len(rows) < 2:
        raise DataError("The hospital's manifest lists no image.")
    return rows


def _fit(fields: list[str], columns: int) -> list[str]:
    """A row with as many fields as the header: spreadsheets omit blanks at its end, or add some.

    A row with further values stays as it is.
    """
    if any(map(str.strip, fields[columns:])):
        return fields
    return [*fields, *[""] * columns][:columns]


def _entry(
    where: str, field: dict[str, str], needed: Sequence[str], find: Callable[[str], Path]
) -> Entry:
    for name in needed:
        if not field[name]:
            raise _RowError(f"has nothing in the column '{name}'")
    number = field.get("slice", "")
    # New images without labels have no part in a run.
    split, task = (field.get(name, "") if "label" in needed else "" for name in ("split", "task"))
    split = split.lower()
    if split not in ("", "train", "test"):
        raise _RowError("must have 'train', 'test' or nothing in the column 'split'")
    if number and not (number.isdecimal() and len(number) < 10):
        raise _RowError("must have a whole number from 0 in the column 'slice'")
    if task and not (task.isdecimal() and len(task) < 10 and int(task) > 0):
        raise _RowError("must have a whole number from 1 in the column 'task'")
    return Entry(
        where,
        find(field["image"]),
        field.get("label", ""),
        _common_form(field.get("group", "")),
        split,
        _common_form(field.get("site", "")),
        int(number) if number else None,
        int(task or 0),
    )


def _file(folder: Path, image: str, real: Callable[[Path], str], names_in: _NamesIn) -> Path:
    """The image file of a row, with all symbolic links resolved."""
    starts = (folder, folder / "images")
    files = filter(None, (_find(start / image, real) for start in starts))
    if not (found := list(islice(files, 1))):
        variants = (file for start in starts for file in _variants(start, image, real, names_in))
        found = [file for each in variants if (file := _find(each, real))]
    if len(found) > 1:
        raise _RowError("names several images that are there: write the name in full")
    if not found:
        away = re.match(r"[A-Za-z]:|\\\\|\w+://", image)
        raise _RowError(
            f"names an image {'by its place on another machine' if away else 'that is not there'}: "
            "the path must be relative to the manifest's folder, or to its folder 'images'"
        )
    if not found[0].is_relative_to(folder):
        raise _RowError("names an image outside the manifest's folder")
    if to_utf8(found[0]) != str(found[0]):
        raise _RowError("names a link to a file whose path is not UTF-8")
    return found[0]


def _find(file: Path, real: Callable[[Path], str]) -> Path | None:
    try:
        file = Path(real(file.parent), file.name)
        if file.is_symlink():
            file = file.resolve()
        return file if file.is_file() else None
    except (OSError, RuntimeError, ValueError) as error:  # too long, links in a ring, a NUL
        raise _RowError("names an image that cannot be looked up") from error


def _variants(
    start: Path, image: str, real: Callable[[Path], str], names_in: _NamesIn
) -> list[Path]:
    """The files that a name from another machine may mean.

    Such a name may have backslashes, another case or Unicode form, percent signs, or no suffix.
    """
    parts = [part for part in re.split(r"[/\\]", image) if part not in ("", ".")]
    *folders, last = parts or [""]
    places = [start]
    for part in folders:
        below = (place / name for place in places for name in names_in(place).get(_plain(part), ()))
        # Each folder once: two links to a folder above could double their number at each part.
        places = [*dict.fromkeys(Path(real(each)) for each in below)]
    for key in (_plain(last), _plain(last) + "."):
        if found := [place / name for place in places for name in names_in(place).get(key, ())]:
            return found
    return []


def _names_in(folder: Path) -> dict[str, list[str]]:
    """Plain form -> names in a folder. An image also has a plain form that ends at its dot."""
    names: dict[str, list[str]] = {}
    with suppress(OSError):  # no such folder
        for name in os.listdir(folder):
            plain = _plain(name)
            names.setdefault(plain, []).append(name)
            if suffix := SUFFIX.search(plain):
                names.setdefault(plain[: suffix.start() + 1], []).append(name)
    return names


def _plain(name: str) -> str:
    """A name without the differences between machines: case, Unicode form, percent signs."""
    return _common_form(unquote(name).casefold())


def _common_form(name: str) -> str:
    """A name in one Unicode form: a Mac may write an umlaut as two characters."""
    return unicodedata.normalize("NFC", name)
