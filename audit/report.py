"""The report of an audit, the same for all audits."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from learning.intervals import Estimate


@dataclass(frozen=True, eq=False)
class Report:
    """The findings about an object that is about to leave."""

    # The measured figures, by the names of METRICS (strategies/protocol/may_leave.py)
    figures: dict[str, float] = field(default_factory=dict)
    # The reason why it may not leave, for the server, without any image or distance; empty = it may
    # leave
    refusal: str = ""
    reasons: tuple[str, ...] = ()  # the reasons for the hospital's own log
    # The leaks by several attacks: 0 is nothing, 1 the most that can leak
    leaks: tuple[Estimate, ...] = ()
    # The measurements of attacks, as JSON. They stay at the hospital.
    evidence: dict[str, Any] = field(default_factory=dict)
    # uint8 [., C, H, W]. They stay at the hospital.
    pictures: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def passed(self) -> bool:
        """Whether it may leave."""
        return not self.refusal
