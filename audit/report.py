"""The report of an audit, the same for all audits."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from learning.intervals import Estimate


@dataclass(frozen=True, eq=False)
class Report:
    """The findings about an object that is about to leave."""

    figures: dict[str, float] = field(default_factory=dict)  # by the names of METRICS
    # Why it may not leave, for the server, without any image or distance; empty = it may leave
    refusal: str = ""
    reasons: tuple[str, ...] = ()  # for the hospital's own log
    leaks: tuple[Estimate, ...] = ()  # of several attacks: 0 is nothing, 1 the most that can leak
    # Measurements as JSON, and pictures uint8 [., C, H, W]. They stay at the hospital.
    evidence: dict[str, Any] = field(default_factory=dict)
    pictures: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def passed(self) -> bool:
        """Whether it may leave."""
        return not self.refusal
