"""The columns of a manifest: those that are read, and others that may have been meant."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher

from client_app.datasets.findings import NO_VALUE, UNLABELLED, Finding, list_quoted
from client_app.errors import DataError
from strategies.protocol.classes import quote
from strategies.protocol.names import join_names

GROUPS = ("group", "patient", "patient_id", "lesion", "lesion_id", "study")
OPTIONAL = ("split", "site", "slice", "task")
# Other usual names of these columns, without blanks and underscores.
_IMAGES = re.compile("(image|img|picture|photo)?(file|path|filepath|filename|name|id)|img|picture")
_LABELS = re.compile("(class|label|target)(name|id)?|diagnosis|dx|category|finding|y")
_NUMBER = "(u?id|no|nr|num|number|nummer|numero|code|key|name|hash|pseudonym|identifier)s?"
_PATIENTS = re.compile(
    f"({_NUMBER}(de|del|do|du|di)?)?(anon|pseudo)?(patient(en|e)?|paciente|paziente|pat|subj(ect)?"
    "|person|participant|individual|proband|case|fall|lesion|study|exam|examination|accession"
    f"|series|group)s?(instance)?({_NUMBER})*|(hospital|nhs|record|visit|mrn)({_NUMBER})+|mrn|pid"
)
_SIDES = re.compile("(is|in|for)?(train|test|val)(ing|idation)?(set|data|split)?")
_SIDE = re.compile(
    "train(ing)?|trn|tr|test(ing)?|tst|te|val(id|idation)?|dev(elopment)?|eval|hold-?out"
)


def find_columns(names: Sequence[str], needed: Sequence[str]) -> dict[str, int]:
    """Return the position of each known column; the first of `GROUPS` that is there is "group".

    Case, blanks, dashes and underscores in `names`, the first row of the manifest, do not count.

    Raises:
        DataError: A column is missing, or named twice. The message does not quote the first row:
            without a header, the first row describes a patient's image.
    """
    plain = [_plain(name) for name in names]
    known = (*needed, *OPTIONAL, *GROUPS)
    for name in known:
        count = plain.count(_plain(name))
        if count > 1 or (name in needed and count == 0):
            raise DataError(
                f"The first row of the hospital's manifest must name {name!r} once.",
                f"It names {len(names)} columns, and {name!r} {count} times.{_hint(name, plain)}",
            )
    places = {name: plain.index(_plain(name)) for name in known if _plain(name) in plain}
    groups = [places.pop(name) for name in GROUPS if name in places]
    return {**places, "group": groups[0]} if groups else places


def check_columns(
    names: Sequence[str], rows: Sequence[Sequence[str]], header: Mapping[str, int]
) -> Iterator[Finding]:
    """Yield the problems of a manifest's columns, and a note of the columns that are read.

    `names` is the first row, `rows` are the others, and `header` comes from `find_columns`.
    """
    plain = [_plain(name) for name in names]
    others = [place for place in range(len(names)) if place not in header.values()]

    def column(place: int) -> list[str]:
        return [row[place].strip() for row in rows if len(row) == len(names)]

    like_patients = [
        place
        for place in others
        if _PATIENTS.fullmatch(plain[place]) or any(_is_nearly(plain[place], n) for n in GROUPS)
    ]
    if "group" in header:
        groups, name = column(header["group"]), quote(names[header["group"]])
        no_name = re.compile(f"|{NO_VALUE}|{UNLABELLED}")
        none = sum(bool(no_name.fullmatch(each.casefold())) for each in groups)
        if 0 < none < len(groups):
            yield Finding(
                "images-without-patient",
                f"The column {name} names no patient in {none} of {len(groups)} rows. Each image "
                "with a blank counts as one patient. All images with a word such as 'NA' count as "
                "one patient together.",
                "If patients have several of these images, name them in each row. A spreadsheet "
                "saves merged cells as one name and blanks.",
                "amber",
            )
        if spread := [names[place] for place in like_patients if _spreads(column(place), groups)]:
            yield Finding(
                "patients-in-several-groups",
                f"Images with the same value in {list_quoted(spread)} are in several groups of "
                f"{name}. Only the latter column is read.",
                "If this is right, remove the former column.",
                "amber",
            )
    elif patients := [names[place] for place in like_patients if _repeats(column(place))]:
        yield Finding(
            "patients-not-read",
            f"A column that is not read seems to name patients: {list_quoted(patients)}. One "
            "patient could have training and test images.",
            "Call it 'patient'; or add a column 'group', with one name for images that belong "
            "together.",
        )
    sides = [names[place] for place in others if _are_sides(plain[place], column(place))]
    if sides and "split" not in header:
        yield Finding(
            "split-not-read",
            f"A column that is not read seems to hold the split: {list_quoted(sides)}.",
            "To use it, call it 'split', with 'train' or 'test' in each row. Otherwise patients "
            "or the groups of the manifest determine the split.",
            "amber",
        )
    misspelt = {
        names[place]: name
        for place in others
        for name in OPTIONAL
        if name not in header and _is_nearly(plain[place], name)
    }
    for given, name in misspelt.items():
        text = f"The column {quote(given)} is not read; is it '{name}'?"
        yield Finding("columns-not-read", text, "Rename or remove it.", "amber")
    read = [
        quote(names[place]) + (f" (as '{role}')" if names[place].strip() != role else "")
        for role, place in header.items()
    ]
    unread = [names[place] for place in others if names[place].strip()]
    text = f"Columns of the manifest that are read: {join_names(read)}."
    text += f" Not read: {list_quoted(unread)}." if unread else ""
    yield Finding("columns", text, "docs/data.md lists all columns.", "note")


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold())


def _is_nearly(plain: str, name: str) -> bool:
    """Whether two names differ by about one letter, or only in the order of letters."""
    other = _plain(name)
    return sorted(plain) == sorted(other) or SequenceMatcher(None, plain, other).ratio() > 0.88


def _hint(name: str, plain: Sequence[str]) -> str:
    """A sentence about a column that may be the missing one; empty if none has a usual name."""
    kind = {"image": _IMAGES, "label": _LABELS}.get(name)
    near = [each for each in plain if (kind and kind.fullmatch(each)) or _is_nearly(each, name)]
    return f" Is {near[0]!r} that column? Rename it." if near and plain.count(name) == 0 else ""


def _repeats(values: Sequence[str]) -> bool:
    named = [value for value in values if value]
    return len({*named}) < len(named)


def _spreads(values: Sequence[str], groups: Sequence[str]) -> bool:
    """Whether images of one value are in several groups."""
    groups_of = defaultdict(set)
    for number, (value, group) in enumerate(zip(values, groups, strict=True)):
        if value:
            groups_of[value].add(group or number)
    return any(len(each) > 1 for each in groups_of.values())


def _are_sides(plain: str, values: Sequence[str]) -> bool:
    named = {value.casefold() for value in values} - {""}
    flags = _SIDES.fullmatch(plain) and named <= {"0", "1", "true", "false", "yes", "no"}
    return bool(named) and bool(flags or all(map(_SIDE.fullmatch, named)))
