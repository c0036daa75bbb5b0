"""The one rule for hospitals' names: they name lineages, folders and files."""

import re
import unicodedata
from collections.abc import Sequence
from pathlib import PurePath

NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ARRAY_NAME = re.compile("[A-Za-z0-9._-]{1,200}")
# Lineages that belong to no hospital, the maker of averages (strategies/engine/undoing.py), and
# folders with other uses in a store.
RESERVED = ("global", "ensemble", "standalone", "server", "images", "features", "resident")

RULE = (
    "1 to 64 ASCII letters, digits, '.', '-' and '_' with a letter or a digit first, and none of "
    f"{', '.join(map(repr, RESERVED))}"
)


def is_name(text: str) -> bool:
    """Whether a text can name a lineage: a hospital's, or a reserved one."""
    return NAME.fullmatch(text) is not None


def names_hospital(text: str) -> bool:
    """Whether a text can name a hospital."""
    return is_name(text) and text.lower() not in RESERVED


def check_name(name: str) -> str:
    """The name, if a hospital may have it; else a ValueError with the rule."""
    if not names_hospital(name):
        raise ValueError(f"A hospital cannot be called {name[:80]!r}: a name is {RULE}.")
    return name


def names_of_folders(places: Sequence[str]) -> list[str]:
    """Names for simulated hospitals, from the ends of the paths of their folders or manifests.

    The ends are as long as they must be to differ: graz-skin and linz-skin, for /graz/skin and
    /linz/skin. A dash replaces characters that no name may have. If the ends never differ, for
    instance for one folder given twice, hospitals have numbers.
    """
    suffix = re.compile(r"(/manifest\.csv|\.csv|\.tsv|\.txt)$")  # of a manifest
    paths = [PurePath(suffix.sub("", place.strip())) for place in places]
    for depth in range(1, max(len(path.parts) for path in paths)):
        ends = [_plain_name("-".join(path.parts[-depth:])) for path in paths]
        different = len({end.lower() for end in ends}) == len(ends)  # they name folders, too
        if different and all(map(names_hospital, ends)):
            return ends
    return [number_as_name(index, len(places)) for index in range(len(places))]


def number_as_name(index: int, hospitals: int) -> str:
    """The name of a simulated hospital that has only a number, from 0."""
    return f"hospital-{index:0{len(str(hospitals - 1))}}"


def _plain_name(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub("[^A-Za-z0-9._-]+", "-", plain).lstrip("-._")[:64]


def join_names(names: Sequence[str], most: int = 8) -> str:
    """The first names and the number of the others, for a sentence."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def is_array_name(text: str) -> bool:
    """Whether a text can name an array, as keys of state dicts do."""
    return ARRAY_NAME.fullmatch(text) is not None
