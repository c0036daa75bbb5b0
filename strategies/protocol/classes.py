"""The classes of a federation, in one order that every hospital shares."""

import math
from collections.abc import Iterable
from contextlib import suppress


def ordered(classes: Iterable[str]) -> list[str]:
    """Names of classes in the order of their texts, or of their numbers if all are numbers."""
    names = set(classes)
    with suppress(ValueError):
        numbers = {name: float(name) for name in names}
        if all(map(math.isfinite, numbers.values())):  # a class may be called 'nan' or 'inf'
            return sorted(names, key=lambda name: (numbers[name], name))
    return sorted(names)
