"""The allowed content of a line of a ledger."""

from datetime import datetime
from typing import NotRequired, Required, TypedDict

from strategies.protocol.shapes import ShapeError, from_json

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


class Asked(TypedDict, total=False):
    """The fields of a request's order that are written down (`Order`)."""

    round: int
    hop: int
    learner: str
    run: str
    epochs: int
    leg: int
    task: int
    arrived: list[int]
    images: str
    test: bool
    snapshots: bool
    own_start: bool
    buffer_size: int
    replay: list[str]
    ensemble: bool
    embeddings: str
    final: bool


class Entry(Asked, total=False):
    """A line: the request, its terms (settings, code, policy), and the answer."""

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


def entry_of(line: str) -> Entry:
    """Parse a line of a ledger.

    Raises:
        ShapeError: The text is no line of a ledger.
        ValueError: The line's time is not valid.
    """
    entry = from_json(line, Entry)
    datetime.fromisoformat(entry["time"]).timestamp()
    if entry.keys() - Entry.__annotations__.keys():
        raise ShapeError("it says what no ledger does")
    if ("left" in entry) == ("failure" in entry):
        raise ShapeError("an answer left, or a failure")
    if "settings" in entry and not {"terms", "code", "policy"} <= entry.keys():
        raise ShapeError("settings, code and policy belong together")
    return entry
