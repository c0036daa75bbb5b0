"""The allowed content of a line of a ledger."""

from datetime import datetime
from typing import NotRequired, Required, TypedDict, get_type_hints

from strategies.protocol.order import Order
from strategies.protocol.shapes import ShapeError, from_json, from_value

Plain = bool | int | float | str


class _Arrays(TypedDict):
    """Arrays that left."""

    name: str
    bytes: int
    sha256: str


class _Values(TypedDict):
    """Values that left."""

    name: str
    values: dict[str, Plain | list[Plain]]


# The failure that left instead.
_Failure = TypedDict("_Failure", {"class": str, "reason": str, "rule": NotRequired[str]})


class Entry(TypedDict, total=False):
    """A line: the request (and what it asked), its terms, and the answer."""

    previous: Required[str]
    time: Required[str]
    verb: Required[str]
    unfit: dict[str, str]
    terms: str
    settings: dict[str, Plain]
    unknown: int
    code: str
    policy: str
    left: list[_Arrays | _Values]
    failure: _Failure


# The fields of an order that are not written down, beside `code`, which belongs to the terms.
_OMITTED = {"hospital", "classes", "asynchronous", "encoder", "sealed", "members", "members_hash"}
# Those that are, with their types.
ASKED = {
    name: kind
    for name, kind in get_type_hints(Order).items()
    if name not in _OMITTED | Entry.__annotations__.keys()
}


def entry_of(line: str) -> Entry:
    """Parse a line of a ledger.

    Raises:
        ShapeError: The text is no line of a ledger.
        ValueError: The line's time is not valid.
    """
    entry = from_json(line, Entry)
    for key, value in entry.items():
        if key in ASKED:
            from_value(value, ASKED[key], key)
    datetime.fromisoformat(entry["time"]).timestamp()
    if entry.keys() - Entry.__annotations__.keys() - ASKED.keys():
        raise ShapeError("it says what no ledger does")
    if ("left" in entry) == ("failure" in entry):
        raise ShapeError("an answer left, or a failure")
    if "settings" in entry and not {"terms", "code", "policy"} <= entry.keys():
        raise ShapeError("settings, code and policy belong together")
    return entry
