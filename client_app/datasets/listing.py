"""Which images a hospital's folder holds, and what is known of each before it is opened.

`folder` is a folder for each class, as torchvision's ImageFolder has it. Images in the same
subfolder of a class belong together, as those of one patient do: `<class>/<patient>/<image>`; a
patient of the same name in another class is the same patient.

`manifest` is a CSV file in UTF-8, its columns separated by `,`, `;`, `|` or tabs, with a header:

- `image`: an image file, relative to the manifest's folder or to `images` in it;
- `label`: its class, any text;
- `group`, or else `patient`, `patient_id`, `lesion`, `lesion_id`, `study` (optional): images that
  have the same text here belong together; an empty field means that the image is on its own;
- `split` (optional): `train` or `test`;
- `site` (optional): which hospital the image is from, for simulations;
- `task` (optional): where images arrive in tasks, the number of this one's, from 1;
- `slice` (optional): of a NIfTI volume, the number of the slice from 0.

Case, blanks, dashes and underscores in a column's name do not count. Other columns are ignored, and
named (columns.py). Nothing is dropped: what cannot be used is listed with the reason.
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
from pathlib import Path
from urllib.parse import unquote

from client_app.datasets.columns import Columns, find_columns
from client_app.datasets.files import SUFFIXES, is_image
from client_app.datasets.unread import FORMATS, SYSTEM, format_of, is_system
from client_app.errors import DataError
from strategies.protocol.files import read_table

_Listed = Callable[[Path], dict[str, list[str]]]


@dataclass(frozen=True)
class Entry:
    """An image that is listed.

    Attributes:
        where: The path below the folder, or the row and the image that it names. For the hospital's
            eyes alone.
        file: The image file.
        label: Its class.
        group: Name of the group of images that it belongs to; empty = it is on its own.
        split: "train", "test", or empty if the hospital is to choose.
        site: The hospital that it is from; empty if nothing says so.
        slice: Number of the slice of a volume; None = the file is one image.
        task: The task that it arrives in, from 1; 0 = nothing says so.
    """

    where: str
    file: Path
    label: str
    group: str = ""
    split: str = ""
    site: str = ""
    slice: int | None = None
    task: int = 0


@dataclass(frozen=True)
class Unusable:
    """An image that is listed and cannot be used, and why. For the hospital's eyes alone."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


@dataclass(frozen=True)
class Listing:
    """All images of a hospital.

    Attributes:
        source: The manifest, or the folder of folders.
        entries: The images that are where they should be.
        unusable: Those that are not.
        ignored: How many files are no images, by what they are: SYSTEM, the name of a format that
            is not read, or empty if their names and first bytes say nothing.
        columns: Those of the manifest.
    """

    source: Path
    entries: list[Entry] = field(default_factory=list)
    unusable: list[Unusable] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    columns: Columns = field(default_factory=Columns)


class _RowError(ValueError):
    """A row cannot be used."""


def list_folder(path: str) -> Listing:
    """List the images in a folder of folders.

    Raises:
        DataError: There is no such folder, it holds no folders, or one cannot be read; or its
            folders are those of hospitals.
    """
    source = _absolute(path)
    if not source.is_dir():
        raise DataError("The hospital's folder of images ('data-dir' or 'dataset') is not there.")
    if hospitals := len(list(source.glob("*/manifest.csv"))):
        raise DataError(
            f"The folder of images ('data-dir' or 'dataset') holds {hospitals} with a manifest.csv "
            "each: these are hospitals, not classes. Name one of them; or in a simulation all, as "
            "dataset='manifest:<absolute folder>,<absolute folder>' partition='site'."
        )
    listing = Listing(source)
    for file in images_below(listing, _refuse):
        place = file.relative_to(source)
        where = spelt(place)
        label, *between = place.parts[:-1] or ("",)
        if not label:
            listing.unusable.append(Unusable(where, "is in no class's folder"))
        elif where != str(place):
            listing.unusable.append(Unusable(where, "has a name that is not UTF-8"))
        elif _leads_out(file, source):
            listing.unusable.append(Unusable(where, "is a link that leads out of the folder"))
        else:
            group = between[0] if between else ""
            listing.entries.append(Entry(where, file, label, group))
    if not listing.entries and not listing.unusable:
        unread = ", ".join(each.name for each in FORMATS if listing.ignored[each.name])
        raise DataError(
            "The hospital's folder holds no folder with images, one for each class"
            + (f"; its files are in formats that are not read here ({unread})." if unread else ".")
        )
    return listing


def images_below(listing: Listing, onerror: Callable[[OSError], None]) -> Iterator[Path]:
    """The image files in a listing's folder and below it; counts and lists the others.

    Args:
        listing: What is no image is added to it.
        onerror: Called for a folder that cannot be read.
    """
    # Without `onerror`, os.walk passes over a folder that it cannot read.
    for folder, folders, names in os.walk(listing.source, onerror=onerror):
        below = {name for name in folders if not is_system(name)}
        for name in sorted(folders + names):
            file = Path(folder, name)
            if is_system(name):
                listing.ignored[SYSTEM] += 1
            elif name in below:
                if file.is_symlink():
                    where = spelt(file.relative_to(listing.source))
                    listing.unusable.append(Unusable(where, "is a link to a folder"))
            elif is_image(file):
                yield file
            else:
                format_ = format_of(name)
                listing.ignored[format_.name if format_ else ""] += 1
        folders[:] = sorted(below)


def spelt(path: Path) -> str:
    """A path as text that can be written, though a name in it is not UTF-8."""
    return str(path).encode(errors="replace").decode()


def _leads_out(file: Path, source: Path) -> bool:
    """Whether a file is a link to something outside of the hospital's folder."""
    real = os.path.realpath
    return file.is_symlink() and not Path(real(file)).is_relative_to(real(source))


def list_manifest(path: str, needed: Sequence[str] = ("image", "label")) -> Listing:
    """List the images that a manifest names.

    Args:
        path: The manifest, or its folder.
        needed: The columns that it must have; without "label" images have none.

    Raises:
        DataError: There is no manifest, or it cannot be read as one.
    """
    source = _absolute(path)
    if source.is_dir():
        source /= "manifest.csv"
    if not source.is_file():
        raise DataError(
            "The hospital's manifest is not there: 'data-dir' or 'dataset' must name it, or a "
            "folder with a manifest.csv."
        )
    header, rows, columns = _table(source, needed)
    listing, folder = Listing(source, columns=columns), source.parent.resolve()
    real = cache(os.path.realpath)  # of folders; without the cache, ten thousand rows take a second
    listed = cache(_list)
    seen: set[tuple[Path, int | None]] = set()
    for number, fields in rows:
        image = "".join(fields[header["image"] : header["image"] + 1]).strip()
        where = f"row {number} ({image})" if image else f"row {number}"
        try:
            entry = _entry(
                where, partial(_file, folder, real=real, listed=listed), header, fields, needed
            )
            if (entry.file, entry.slice) in seen:
                raise _RowError("names an image that an earlier row names too")
        except _RowError as error:
            listing.unusable.append(Unusable(where, str(error)))
        else:
            seen.add((entry.file, entry.slice))
            listing.entries.append(entry)
    return listing


def _absolute(path: str) -> Path:
    folder = Path(path.strip()).expanduser()
    if not folder.is_absolute():
        raise DataError(
            "'data-dir' and the path in 'dataset' must be absolute, since the working directory of "
            "a Flower process is not yours."
        )
    return folder


def _refuse(error: OSError) -> None:
    raise DataError(
        f"A folder of the hospital's images cannot be read ({type(error).__name__})."
    ) from error


def _table(
    manifest: Path, needed: Sequence[str]
) -> tuple[dict[str, int], list[tuple[int, list[str]]], Columns]:
    """The header; with their numbers from 1, the rows that are not empty; what the columns are.

    The header maps each known name to its column, and "" to the number of columns.
    """
    try:
        rows = read_table(manifest)
    except OSError as error:
        text = f"The hospital's manifest cannot be read ({type(error).__name__})."
        raise DataError(text) from error
    except ValueError as error:
        raise DataError(f"The hospital's manifest cannot be read: {error}") from error
    if len(rows) < 2:
        raise DataError("The hospital's manifest lists no image.")
    names = rows.pop(0)[1]
    header, columns = find_columns(names, [row for _, row in rows], needed)
    return header | {"": len(names)}, rows, columns


def _entry(
    where: str,
    find: Callable[[str], Path],
    header: dict[str, int],
    row: list[str],
    needed: Sequence[str],
) -> Entry:
    if len(row) != header[""]:
        raise _RowError(f"has {len(row)} columns, the header has {header['']}")
    field = {name: row[index].strip() for name, index in header.items() if name}
    for name in needed:
        if not field[name]:
            raise _RowError(f"has nothing in the column '{name}'")
    split, number = field.get("split", "").lower(), field.get("slice", "")
    task = field.get("task", "")
    if split not in ("", "train", "test"):
        raise _RowError("has in the column 'split' neither 'train' nor 'test'")
    if number and not number.isdecimal():
        raise _RowError("has in the column 'slice' no whole number from 0")
    if task and not (task.isdecimal() and len(task) < 10 and int(task) > 0):
        raise _RowError("has in the column 'task' no whole number from 1")
    return Entry(
        where,
        find(field["image"]),
        field.get("label", ""),
        field.get("group", ""),
        split,
        field.get("site", ""),
        int(number) if number else None,
        int(task or 0),
    )


def _file(folder: Path, image: str, real: Callable[[Path], str], listed: _Listed) -> Path:
    """The image file that a row names, with no symbolic link left in its path."""
    starts = (folder, folder / "images")
    files = filter(None, (_existing(start / image, real) for start in starts))
    if not (found := list(islice(files, 1))):
        meant = (file for start in starts for file in _meant(start, image, listed))
        found = [file for each in meant if (file := _existing(each, real))]
    if len(found) > 1:
        raise _RowError("names several images that are there: write the name in full")
    if not found:
        away = re.match(r"[A-Za-z]:|\\\\|\w+://", image)
        raise _RowError(
            f"names an image {'by its place on another machine' if away else 'that is not there'}: "
            "it must be relative to the manifest's folder, or to 'images' in it"
        )
    if not found[0].is_relative_to(folder):
        raise _RowError("names an image outside of the manifest's folder")
    return found[0]


def _existing(file: Path, real: Callable[[Path], str]) -> Path | None:
    try:
        file = Path(real(file.parent), file.name)
        if file.is_symlink():
            file = file.resolve()
        return file if file.is_file() else None
    except (OSError, RuntimeError, ValueError) as error:  # too long, links in a ring, a NUL
        raise _RowError("names an image that cannot be looked up") from error


def _meant(start: Path, image: str, listed: _Listed) -> list[Path]:
    """What a name can mean that another machine wrote.

    It has backslashes, another case or Unicode form, percent signs, or no suffix.
    """
    parts = [part for part in re.split(r"[/\\]", image) if part not in ("", ".")]
    *folders, last = parts or [""]
    places = [start]
    for part in folders:
        places = [place / name for place in places for name in listed(place).get(_plain(part), ())]
    for key in (_plain(last), _plain(last) + "."):
        if found := [place / name for place in places for name in listed(place).get(key, ())]:
            return found
    return []


def _list(folder: Path) -> dict[str, list[str]]:
    """The names in a folder, by their plain form; an image's also without suffix, with a dot."""
    names: dict[str, list[str]] = {}
    with suppress(OSError):  # no such folder
        for name in os.listdir(folder):
            plain = _plain(name)
            short = [
                plain.removesuffix(suffix[1:]) for suffix in SUFFIXES if plain.endswith(suffix)
            ]
            for key in (plain, *short):
                names.setdefault(key, []).append(name)
    return names


def _plain(name: str) -> str:
    """A name without what differs from machine to machine."""
    return unicodedata.normalize("NFC", unquote(name).casefold())
