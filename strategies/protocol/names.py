"""The one rule for hospitals' names: they name lineages, folders and files."""

import re

RESERVED = ("global", "ensemble")  # lineages that belong to no hospital


def check_name(name: str) -> str:
    """The name, if it can be used.

    Raises:
        ValueError: Says what a name must be.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name) or name in RESERVED:
        raise ValueError(
            f"A hospital cannot be called {name!r}: a name is 1 to 64 ASCII letters, digits, '.', "
            f"'-' and '_', starts with a letter or a digit, and is neither "
            f"{' nor '.join(map(repr, RESERVED))}."
        )
    return name
