"""What a run tells while it goes: one `Event` per answer of a hospital, handed to a `Journal`.

The engine describes what happened; server_app/results.py alone decides what is written where.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any, Protocol, TypedDict

from flwr.app import MetricRecord, RecordDict

from strategies.engine.courier import Delivery
from strategies.protocol.files import FileError, opened
from strategies.protocol.may_leave import Failure
from strategies.protocol.shapes import SHAPE, from_json

FACTS = ("data", "train-images", "test-images", "own-settings")  # of a hospital's card
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

    `verb` is the message type that the hospital was sent; or `hand-off`: at the end of an evaluated
    round the hospital holds `lineage`, which it receives for the round to come; or `ensemble`: it
    has tested all models together; or `standalone`: after the last round it tells of the model that
    it trained before the first hand-off.

    Attributes:
        verb: `query.enrol`, `query.prepare`, `train`, ..., `evaluate`, `hand-off`, `ensemble` or
            `standalone`.
        round: Round of the paper, from 1; 0 before the first.
        hop: Hop within the round, from 1; 0 where none applies. For `evaluate` the hop at which the
            model was trained.
        hospital: Name of the hospital.
        lineage: Name of the travelling model; empty if none is concerned.
        outcome: `ok`, or the kind of failure (`Failure`, in small letters).
        reason: What went wrong, for people; empty if nothing did.
        metrics: What the hospital measured, such as `accuracy` (fractions in [0, 1]).
        seconds: From sending the message to its answer.
        bytes_sent: Size of what went to the hospital.
        bytes_received: Size of what came back.
        epochs: Passes over the images that the model has had at its last visit; fewer than the
            visit has if it was tested in between (`evaluate.epochs`).
        began: When it began, in seconds since the start of the run,
        time: and when it was over; NaN until they are written down, unless in virtual time.
        facts: What the hospital says of its images before the first hop: `FACTS`. Of a good
            visit whose order asks for `embeddings` their kind, and how many of them `came`.
    """

    verb: str
    round: int
    hop: int
    hospital: str
    lineage: str = ""
    outcome: str = "ok"
    reason: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    epochs: int = 0
    began: float = nan
    time: float = nan
    facts: Mapping[str, Any] = field(default_factory=dict, metadata={SHAPE: _Facts})

    @classmethod
    def from_delivery(cls, delivery: Delivery[Any], hospital: str, **place: Any) -> "Event":
        """What became of a message; `place` has round, hop, and what else is known."""
        return cls(
            **{
                "verb": delivery.letter.verb,
                "hospital": hospital,
                "outcome": delivery.failure.name.lower() if delivery.failure else "ok",
                "reason": delivery.reason,
                "metrics": figures(delivery.content),
                "seconds": delivery.seconds,
                "bytes_sent": delivery.bytes_sent,
                "bytes_received": delivery.bytes_received,
                **place,
            }
        )

    @classmethod
    def absence(cls, verb: str, hospital: str, **place: Any) -> "Event":
        """A hospital was not asked, because it cannot be reached."""
        outcome, reason = Failure.GONE.name.lower(), "The hospital cannot be reached."
        return cls(verb=verb, hospital=hospital, outcome=outcome, reason=reason, **place)


class Journal(Protocol):
    """Whoever wants to know how a run goes."""

    def record(self, event: Event) -> None:
        """Take note of one event, at once."""

    def round_finished(self, server_round: int) -> None:
        """Take note that all events of a round have been recorded."""


def read_events(path: Path, start: int = 0) -> Iterator[tuple[Event, int]]:
    """The events of a file `LOG`, each with the bytes from the file's start to its end.

    A last line that was cut off, or is being written, is none.

    Args:
        path: The file.
        start: How many bytes are passed over.

    Raises:
        OSError: It cannot be read.
        FileError: A line is no event, or is too long; or the file is too large.
    """
    with opened(path, MOST) as file:
        file.seek(start)
        while line := file.readline(LONGEST):
            start += len(line)
            try:
                if line.strip():
                    yield from_json(line.decode(), Event), start
            except ValueError as error:
                if not line.endswith(b"\n") and len(line) < LONGEST:
                    return
                raise FileError(
                    f"{path} has, before byte {start:,}, a line that is no event: {error}."
                ) from error


def figures(content: RecordDict) -> dict[str, float]:
    """The metrics of an answer, by name."""
    record = content.metric_records.get("metrics", MetricRecord())
    return {key: float(value) for key, value in record.items() if not isinstance(value, list)}
