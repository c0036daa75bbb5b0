"""The one rule for hospitals' names: they name lineages, folders and files."""

import re
from collections.abc import Sequence

# Lineages that belong to no hospital, and folders of a hospital's store that are not its own.
RESERVED = ("global", "ensemble", "standalone", "images", "resident")


def is_name(text: str) -> bool:
    """Whether a text can name a lineage: a hospital's, or a reserved one."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text) is not None


def check_name(name: str) -> str:
    """The name, if it can be used for a hospital.

    Raises:
        ValueError: Says what a name must be.
    """
    if not is_name(name) or name.lower() in RESERVED:
        raise ValueError(
            f"A hospital cannot be called {name[:80]!r}: a name is 1 to 64 ASCII letters, digits, "
            f"'.', '-' and '_', starts with a letter or a digit, and is none of "
            f"{', '.join(map(repr, RESERVED))}."
        )
    return name


def some(names: Sequence[str], most: int = 8) -> str:
    """The first names and how many more there are, for a sentence."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def is_array_name(text: str) -> bool:
    """Whether a text can name an array: the keys of state dicts are such names."""
    return re.fullmatch(r"[A-Za-z0-9._-]{1,200}", text) is not None
