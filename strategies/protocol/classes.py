"""The classes of a federation, in one order that every hospital shares, and a network's outputs."""

import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
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


def alike(names: Iterable[str], apart: Iterable[Collection[str]] = ()) -> list[list[str]]:
    """Names that differ in nothing but their spelling, together.

    That is case, blanks, dashes and underscores, the form in Unicode, or that of a number.

    Args:
        names: Of classes.
        apart: Lists that tell classes apart: names that one of these has are different classes.
    """
    groups = defaultdict(set)
    for name in names:
        groups[_unspelt(name)].add(name)
    several = [group for group in groups.values() if len(group) > 1]
    return [sorted(group) for group in several if not any(group <= {*each} for each in apart)]


def quoted(name: str, longest: int = 40) -> str:
    """A name for a sentence, in which what cannot be seen can be read."""
    seen = name.isprintable() and unicodedata.is_normalized("NFC", name)
    text = repr(name[:longest]) if seen else ascii(name[:longest])
    return text if len(name) <= longest else f"{text} (and {len(name) - longest} characters more)"


_DASHES = r"[\u2010-\u2015\u2212]"
_BETWEEN = r"[\s_-]+"  # words: blanks, underscores, dashes
_UNSEEN = r"[\u00ad\u200b-\u200f\u2060\ufeff]"


def _unspelt(name: str) -> str:
    """What is the same for all spellings of a name."""
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    text = re.sub(_DASHES, "-", re.sub(_UNSEEN, "", text)).replace("\u2019", "'").strip(" \t_'\"")
    with suppress(ValueError):
        if math.isfinite(number := float(text.replace(",", "."))):
            return repr(number + 0)  # 0.0 is -0.0
    # Between words and numbers it says nothing: "grade-1". "1-2" is not "12", "HER2-" not "HER2".
    text = re.sub(rf"(?<=[^\W_]){_BETWEEN}(?=[^\W_])", "-", text)
    return re.sub(r"(?<=[^\W\d_])-(?=[^\W_])|(?<=\d)-(?=[^\W\d_])", "", text)


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
