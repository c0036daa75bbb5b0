"""The columns of a manifest: those that are read, and others that may have been meant."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from client_app.errors import DataError

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


@dataclass(frozen=True)
class Columns:
    """The columns of a manifest, by their names in the manifest."""

    roles: dict[str, str] = field(default_factory=dict)  # role -> name of the column that is read
    unread: list[str] = field(default_factory=list)  # all other columns; some are doubtful:
    # They seem to name patients, while no column of groups is read
    patients: list[str] = field(default_factory=list)
    # They seem to name patients, with a patient in several of the groups that are read
    ambiguous: list[str] = field(default_factory=list)
    # They seem to hold the split, while no column of the split is read
    splits: list[str] = field(default_factory=list)
    # Name of the column -> name of a missing column that is spelt nearly like it
    misspelt: dict[str, str] = field(default_factory=dict)


def find_columns(
    names: Sequence[str], rows: Sequence[Sequence[str]], needed: Sequence[str]
) -> tuple[dict[str, int], Columns]:
    """Return the position of each known column, and a description of all columns.

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
                f"The first row of the hospital's manifest names {len(names)} columns, and "
                f"{name!r} {count} times; it must name it once.{_hint(name, plain)}"
            )
    places = {name: plain.index(_plain(name)) for name in known if _plain(name) in plain}
    groups = [name for name in GROUPS if name in places]
    header = {name: place for name, place in places.items() if name not in GROUPS}
    if groups:
        header["group"] = places[groups[0]]
    others = [place for place in range(len(names)) if place not in header.values()]

    def column(place: int) -> list[str]:
        return [row[place].strip() for row in rows if len(row) == len(names)]

    like_patients = [
        place
        for place in others
        if _PATIENTS.fullmatch(plain[place]) or any(_is_nearly(plain[place], n) for n in GROUPS)
    ]
    found = Columns(
        {role: names[place] for role, place in header.items()},
        [names[place] for place in others if names[place].strip()],
        patients=[
            names[place] for place in like_patients if not groups and _repeats(column(place))
        ],
        ambiguous=[
            names[place]
            for place in like_patients
            if groups and _spreads(column(place), column(header["group"]))
        ],
        splits=[
            names[place]
            for place in others
            if "split" not in header and _are_sides(plain[place], column(place))
        ],
        misspelt={
            names[place]: name
            for place in others
            for name in OPTIONAL
            if name not in header and _is_nearly(plain[place], name)
        },
    )
    return header, found


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
