"""Problems of a hospital's data that the names of classes and the groups show."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from client_app.datasets.image import plain_name
from strategies.protocol.classes import group_spellings, quote
from strategies.protocol.may_leave import CARD, MAX_CLASSES
from strategies.protocol.names import join_names

# More than MANY_CLASSES classes are probably patients, if most have fewer than FEW_IMAGES images.
MANY_CLASSES, FEW_IMAGES = 20, 5
# Fewer than FEW_GROUPS groups are perhaps no patients, if most have MANY_IMAGES images or more.
FEW_GROUPS, MANY_IMAGES = 20, 10
SHOWN = 5  # names of groups in a sentence
# Usual entries for "no class", and usual names of folders that are no class.
NO_VALUE = (
    r"nan|nat|none|\(?null\)?|nil|na|n/a|n\.a\.|<na>|nd|\?+|[-–—]{1,3}|\.|unknown|undefined"
    r"|unspecified|missing|not available|tbd|(un|not )labell?ed|unbekannt|k\. ?a\.|\((blank|leer)\)"
    r"|#(n/a|na|nv|value!|wert!|ref!|bezug!|name\?|div/0!|null!|num!|zahl!)"
)
UNLABELLED = r"-1(\.0*)?"  # in some tables; in others it is a class
NO_CLASS = re.compile(
    rf"{NO_VALUE}|((train|test)(ing)?|val(id|idation)?)([ _-]?(set|data|split|images))?|images|img"
)


@dataclass(frozen=True)
class Finding:
    """A problem of a hospital's data."""

    problem: str  # class of the problem; the server learns nothing else
    text: str  # description for the hospital alone; it may name classes and columns, but no image
    advice: str  # the cure
    # "red": the hospital cannot take part with such data; "amber": somebody should look at the
    # data; "note": for information
    level: Literal["red", "amber", "note"] = "red"


def check_classes(images: Counter[str], known: Collection[str]) -> Iterator[Finding]:
    """Yield the problems of the names of classes, from the number of images of each class.

    `known` has the classes of the federation; it is empty if the setting `classes` names none.
    """
    if len(images) > MANY_CLASSES and median(images.values()) < FEW_IMAGES:
        yield Finding(
            "classes-like-patients",
            f"There are {len(images)} classes, most of them with fewer than {FEW_IMAGES} "
            "images: they look like patients, and the names of classes leave the hospital.",
            "A class is a label that a model predicts. Name patients by subfolders of the "
            "class, or in the column 'patient'.",
        )
    elif len(images) > MAX_CLASSES:
        text = f"There are {len(images)} classes; a hospital may have at most"
        yield Finding("many-classes", f"{text} {MAX_CLASSES}.", "Merge classes.")
    if wrong := [name for name in images if not CARD["classes"]([name]) or name != name.strip()]:
        yield Finding(
            "names-of-classes",
            f"These names of classes cannot be used: {list_quoted(wrong)}.",
            "A name has 1 to 100 characters that can be printed (no tab, no no-break space), and "
            "no blank before or after it. Rename these classes.",
        )
    if groups := group_spellings([*images, *known], apart=[known]):
        yield Finding(
            "classes-in-two-spellings",
            f"These may be one class, spelt in several ways: "
            f"{'; '.join(' and '.join(map(quote, group)) for group in groups)}.",
            "Give each class one spelling, as in the setting 'classes' if it names the class. If "
            "they are different classes, the run must name all its classes in this setting.",
        )
    doubtful = [each for each in images if NO_CLASS.fullmatch(each.strip().casefold())]
    if none := [each for each in doubtful if each not in known]:
        yield Finding(
            "names-of-no-class",
            f"These are probably no classes: {list_quoted(none)}.",
            "Leave out images without a label; give the folder that holds the folders of classes. "
            "If it is a class, rename it, or the run must name all its classes in the setting "
            "'classes'.",
        )
    if asked := [n for n in images if re.fullmatch(UNLABELLED, n.strip()) and n not in known]:
        yield Finding(
            "class-or-no-label",
            f"Is {list_quoted(asked)} a class? Some tables write it for images without a label.",
            "Leave out images without a label. If it is a class, rename it, or the run must name "
            "all its classes in the setting 'classes'.",
            "amber",
        )


def check_group_names(images: Counter[str]) -> Iterator[Finding]:
    """Yield questions about the names of groups, from the number of images of each name.

    They quote names of patients, so they are for the preflight's page and not for the log.
    """
    patients: dict[str, set[str]] = {}
    for name in images:
        patients.setdefault(plain_name(name), set()).add(name)
    sizes = [sum(images[name] for name in names) for names in patients.values()]
    if 1 < len(patients) < FEW_GROUPS and median(sizes) >= MANY_IMAGES:
        yield Finding(
            "groups-like-classes",
            f"The subfolders, or the column of groups, name {len(patients)} patients for "
            f"{sum(sizes)} images. Are {_list_some(sorted(images))} patients?",
            "All images of a group are either training or test images, and count as one patient. "
            "A group may be no patient, but a kind of the class. Then move its images into the "
            "folder of the class, or remove the column.",
            "amber",
        )
    alike: dict[str, list[str]] = {}
    for plain, names in sorted(patients.items()):
        alike.setdefault(_without_typing(plain), []).append(min(names))
    if pairs := [" and ".join(map(quote, each)) for each in alike.values() if len(each) > 1]:
        more = f", and {len(pairs) - SHOWN} more" if len(pairs) > SHOWN else ""
        yield Finding(
            "patients-in-two-spellings",
            f"These may be one patient, spelt in several ways: {'; '.join(pairs[:SHOWN])}{more}.",
            "Give each patient one spelling. Otherwise one patient could have training and test "
            "images. Spreadsheets remove zeros before a number, or add '.0'.",
            "amber",
        )


def _without_typing(name: str) -> str:
    """A name without ".0" at its end, zeros before numbers, and blanks, dashes and underscores.

    Between two numbers one of the latter stays: 1-11 is not 11-1.
    """
    name = re.sub(r"(?<![\d.])0+(?=\d)", "", re.sub(r"(?<=\d)\.0+\Z", "", name))
    return re.sub(r"[\s_-]+", "-", re.sub(r"(?<!\d)[\s_-]+|[\s_-]+(?!\d)", "", name))


def _list_some(names: Sequence[str]) -> str:
    if len(names) <= SHOWN:
        return list_quoted(names)
    return f"{', '.join(map(quote, names[:SHOWN]))} and {len(names) - SHOWN} more"


def check_groups(kinds: Counter[str], images: int, groups: Counter[int]) -> Iterator[Finding]:
    """Yield the problems of groups, from the number of images of each group.

    `kinds` has the number of images with a "patient" (DICOM), a "group" or a "volume".
    """
    most = max(groups.values(), default=0)
    why = {
        "patient": "DICOM's PatientID, or without it StudyInstanceUID, is the same: correct it.",
        "group": "The column, or the subfolder, that names the patient is the same for them.",
        "volume": "They are slices of one volume.",
        "": "They are copies of one file.",
    }[max(("patient", "group", "volume"), key=lambda kind: kinds[kind]) if kinds else ""]
    advice = (
        "Name the patient of each image by a subfolder or in the manifest's column 'patient'. Omit "
        "names that are the same for all images."
    )
    if len(groups) == 1 < images:
        text = f"All {images} images belong to one patient or group, and cannot be split. {why}"
        yield Finding("one-patient", text, advice)
    elif 2 * most > images and len(groups) > 2:
        text = f"{most} of {images} images belong to one patient or group. {why}"
        yield Finding("one-patient-has-most", text, advice, "amber")


def list_quoted(names: Collection[str]) -> str:
    """Names for a sentence, in quotes."""
    return join_names([*map(quote, names)])
