"""The classes of a federation, in one order that every hospital shares, and a network's outputs."""

import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

from strategies.protocol.settings import BY_CLASSES, Settings, require

SHOWN = 40  # characters of a name in a sentence


def sort_classes(classes: Iterable[str]) -> list[str]:
    """Names of classes, sorted as texts, or as numbers if all are numbers."""
    names = set(classes)
    with suppress(ValueError):
        numbers = {name: float(name) for name in names}
        if all(map(math.isfinite, numbers.values())):  # a class may be called 'nan' or 'inf'
            return sorted(names, key=lambda name: (numbers[name], name))
    return sorted(names)


def group_spellings(names: Iterable[str], apart: Iterable[Collection[str]] = ()) -> list[list[str]]:
    """Groups of names that differ only in their spelling.

    Spelling is case, blanks, dashes and underscores, the Unicode form, or the form of a number. Two
    names in one list of `apart` are never one class.
    """
    groups = defaultdict(set)
    for name in names:
        groups[_common_spelling(name)].add(name)
    several = [group for group in groups.values() if len(group) > 1]
    return [sorted(group) for group in several if not any(group <= {*each} for each in apart)]


def quote(name: str) -> str:
    """A name in quotes, for a sentence; characters that cannot be seen are escaped."""
    seen = name.isprintable() and unicodedata.is_normalized("NFC", name)
    text = repr(name[:SHOWN]) if seen else ascii(name[:SHOWN])
    return text if len(name) <= SHOWN else f"{text} (and {len(name) - SHOWN} characters more)"


_DASHES = r"[\u2010-\u2015\u2212]"
_BETWEEN = r"[\s_-]+"  # words: blanks, underscores, dashes
_UNSEEN = r"[\u00ad\u200b-\u200f\u2060\ufeff]"


def _common_spelling(name: str) -> str:
    """The common form of all spellings of a name."""
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    text = re.sub(_DASHES, "-", re.sub(_UNSEEN, "", text)).replace("\u2019", "'").strip(" \t_'\"")
    with suppress(ValueError):
        if math.isfinite(number := float(text.replace(",", "."))):
            return repr(number + 0)  # 0.0 is -0.0
    # A dash between a word and a number has no meaning ("grade-1"); in "1-2" and "HER2-" it has.
    text = re.sub(rf"(?<=[^\W_]){_BETWEEN}(?=[^\W_])", "-", text)
    return re.sub(r"(?<=[^\W\d_])-(?=[^\W_])|(?<=\d)-(?=[^\W\d_])", "", text)


def outputs(classes: Sequence[str], settings: Settings) -> list[str]:
    """The names of a network's outputs: all classes, unless tasks leave some out or share them."""
    if settings.tasks == 1 or settings.task_cut not in BY_CLASSES:
        return list(classes)
    size = classes_of_a_task(len(classes), settings)
    cut = list(classes[: settings.tasks * size])
    if settings.task_cut == "classes":
        return cut
    return ["/".join(cut[output::size]) for output in range(size)]


def classes_of_a_task(count: int, settings: Settings) -> int:
    """The number of classes in each task, out of `count` classes.

    Raises:
        SettingsError: There are too few classes, or they cannot be divided evenly as they must be.
    """
    tasks, wanted = settings.tasks, settings.task_classes
    most, fewest = count // tasks, 1 + (settings.task_cut == "shared-classes")
    require(most >= fewest, "tasks", tasks, f"{count // fewest} or less with {count} classes")
    fits = fewest <= wanted <= most or (wanted == 0 and count % tasks == 0)
    allowed = f"{fewest} to {most} with {count} classes in {tasks} tasks"
    require(fits, "task-classes", wanted, allowed)
    return wanted or most
