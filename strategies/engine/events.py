"""What a run tells while it goes: one `Event` per answer of a hospital, handed to a `Journal`.

Strategies describe what happened; server_app/results.py alone decides what is written where.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from strategies.engine.checkpoint import Checkpoint


@dataclass(frozen=True)
class Event:
    """One thing that happened to one model at one hospital.

    `verb` is the message type that the hospital was sent; or `hand-off`: at the end of an evaluated
    round the hospital holds `lineage`, which it receives for the round to come; or `ensemble`: it
    has tested all models together.

    Attributes:
        verb: `query.enrol`, `query.prepare`, `train`, ..., `evaluate`, `hand-off` or `ensemble`.
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


class Journal(Protocol):
    """Whoever wants to know how a run goes."""

    def record(self, event: Event) -> None:
        """Take note of one event, at once."""

    def round_finished(self, server_round: int) -> None:
        """Take note that all events of a round have been recorded."""

    def keep(self, checkpoint: Checkpoint) -> None:
        """Keep what the run needs to go on from here, with all that has been recorded so far."""
