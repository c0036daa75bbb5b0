"""The events of a run: one `Event` for each answer of a hospital, recorded by a `Journal`.

The engine describes the events. server_app/results.py alone chooses their files.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from typing import Any, Protocol, TypedDict

from flwr.app import MetricRecord, RecordDict

from strategies.engine.courier import Delivery
from strategies.protocol.files import FileError, open_checked
from strategies.protocol.may_leave import Failure
from strategies.protocol.records import find_record
from strategies.protocol.shapes import SHAPE, from_json

FACTS = ("data", "train-images", "test-images", "own-settings")  # of a hospital's card
UNDO = "undo"  # the verb of an undoing
LOG = "metrics.jsonl"  # in a result directory: the events of the run, one on each line
MOST, LONGEST = 2**34, 2**26  # bytes of such a file, and of a line
_Facts = TypedDict(
    "_Facts",
    {
        "data": str,
        "train-images": str,
        "test-images": str,
        "own-settings": list[str],
        "embeddings": str,
        "came": int,
    },
    total=False,
)


@dataclass(frozen=True)
class Event:
    """One thing that happened to one model at one hospital.

    `verb` is the type of the message to the hospital, or one of these:

    - `hand-off`: after an evaluated round, the hospital receives `lineage` for the next round.
    - `undo`: hospitals refuse a copy, and its lineage goes on from an older one. `hospital` is the
      maker of the copy, or the server for an average; `round` and `hop` are those of the copy.
    - `ensemble`: the hospital has tested all models together.
    - `standalone`: after the last round, the hospital reports figures of the model that it trained
      before the first hand-off.
    """

    verb: str
    round: int  # round of the paper, from 1; 0 before the first
    # Hop within the round, from 1; 0 where none applies. For `evaluate` the hop at which the model
    # was trained.
    hop: int
    hospital: str  # name of the hospital
    lineage: str = ""  # name of the travelling model; empty if the event is about none
    outcome: str = "ok"  # `ok`, or the kind of failure (`Failure.outcome`)
    reason: str = ""  # the failure in words; empty if there is none
    # The hospital's figures, such as `accuracy` (fractions in [0, 1])
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0  # seconds from sending the message to its answer
    bytes_sent: int = 0  # bytes of the arrays that were sent to the hospital
    bytes_received: int = 0  # bytes of the arrays in the answer
    # Passes over the images in the model's last visit; fewer than those of the whole visit if the
    # model is a copy from between two epochs (`evaluate.epochs`)
    epochs: int = 0
    # Start of the event, in seconds since the start of the run; NaN until it is written down,
    # except in virtual time
    began: float = nan
    time: float = nan  # end of the event, in the same way
    # Before the first hop: the hospital's `FACTS` about its images. Of a good visit whose order
    # asks for `embeddings`: their kind, and their number `came`.
    facts: Mapping[str, Any] = field(default_factory=dict, metadata={SHAPE: _Facts})

    @classmethod
    def from_delivery(cls, delivery: Delivery[Any], hospital: str, **place: Any) -> "Event":
        """The event of a delivery, of round 0; `place` replaces attributes."""
        event = cls(
            delivery.letter.verb,
            round=0,
            hop=0,
            hospital=hospital,
            outcome=delivery.failure.outcome if delivery.failure else "ok",
            reason=delivery.reason,
            metrics=figures(delivery.content),
            seconds=delivery.seconds,
            bytes_sent=delivery.bytes_sent,
            bytes_received=delivery.bytes_received,
        )
        return replace(event, **place)

    @classmethod
    def absence(cls, verb: str, hospital: str, **place: Any) -> "Event":
        """The event of a hospital that was not asked, because it cannot be reached."""
        outcome, reason = Failure.GONE.outcome, "The hospital cannot be reached."
        return cls(verb=verb, hospital=hospital, outcome=outcome, reason=reason, **place)


class Journal(Protocol):
    """A recorder of the events of a run."""

    def record(self, event: Event) -> None:
        """Record one event, at once."""

    def round_finished(self, server_round: int) -> None:
        """Note that all events of a round have been recorded."""


def read_events(path: Path) -> Iterator[Event]:
    """Yield the events of a file `LOG`; an incomplete last line is skipped.

    Raises:
        OSError: The file cannot be read.
        FileError: A line is no event, or is too long; or the file is too large.
    """
    with open_checked(path, MOST) as file:
        while line := file.readline(LONGEST):
            try:
                if line.strip():
                    yield from_json(line.decode(), Event)
            except ValueError as error:
                if not line.endswith(b"\n") and len(line) < LONGEST:
                    return
                place = f"{path}, before byte {file.tell():,},"
                raise FileError(f"{place} has a line that is not an event: {error}.") from error


def visits(events: Iterable[Event]) -> list[Event]:
    """The visits among events."""
    return [event for event in events if event.verb.partition(".")[0] == "train"]


def figures(content: RecordDict) -> dict[str, float]:
    """The metrics of an answer, by name."""
    record = find_record(content, "metrics", MetricRecord) or MetricRecord()
    return {key: float(value) for key, value in record.items() if not isinstance(value, list)}
