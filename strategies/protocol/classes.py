"""The classes of a federation, in one order that every hospital shares, and a network's outputs."""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress

from strategies.protocol.settings import BY_CLASSES, Settings, require


def ordered(classes: Iterable[str]) -> list[str]:
    """Names of classes in the order of their texts, or of their numbers if all are numbers."""
    names = set(classes)
    with suppress(ValueError):
        numbers = {name: float(name) for name in names}
        if all(map(math.isfinite, numbers.values())):  # a class may be called 'nan' or 'inf'
            return sorted(names, key=lambda name: (numbers[name], name))
    return sorted(names)


def outputs(classes: Sequence[str], settings: Settings) -> list[str]:
    """What a network's outputs stand for: all classes, unless tasks leave some out or share them.

    Raises:
        SettingsError: The classes cannot be cut in tasks like that.
    """
    if settings.tasks == 1 or settings.task_cut not in BY_CLASSES:
        return list(classes)
    size = classes_of_a_task(len(classes), settings)
    cut = list(classes[: settings.tasks * size])
    if settings.task_cut == "classes":
        return cut
    return ["/".join(cut[output::size]) for output in range(size)]


def classes_of_a_task(count: int, settings: Settings) -> int:
    """How many of `count` classes each task has.

    Raises:
        SettingsError: There are too few, or they are to be cut evenly and cannot be.
    """
    tasks, wanted = settings.tasks, settings.task_classes
    most, fewest = count // tasks, 1 + (settings.task_cut == "shared-classes")
    require(most >= fewest, "tasks", tasks, f"{count // fewest} or less with {count} classes")
    fits = fewest <= wanted <= most or (wanted == 0 and count % tasks == 0)
    allowed = f"{fewest} to {most} with {count} classes in {tasks} tasks"
    require(fits, "task-classes", wanted, allowed)
    return wanted or most
