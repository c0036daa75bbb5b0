"""The report of an audit, the same for all audits."""

from dataclasses import dataclass, field
from typing import Any

from learning.intervals import Figure


@dataclass(frozen=True, eq=False)
class Report:
    """The findings about an object that is about to leave."""

    figures: dict[str, float] = field(default_factory=dict)  # by the names of METRICS
    # Why it may not leave, for the server, without any image or distance; empty = it may leave
    refusal: str = ""
    reasons: tuple[str, ...] = ()  # for the hospital's own log
    leaks: tuple[Figure, ...] = ()  # of several attacks: 0 is nothing, 1 the most that can leak
    evidence: dict[str, Any] = field(default_factory=dict)  # JSON, which stays at the hospital

    @property
    def passed(self) -> bool:
        """Whether it may leave."""
        return not self.refusal
