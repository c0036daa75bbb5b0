"""What an audit found: the one report of all of them."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from learning.intervals import Estimate


@dataclass(frozen=True, eq=False)
class Report:
    """What is known of something that is about to leave.

    Attributes:
        figures: What was measured, by the names of METRICS (strategies/protocol/may_leave.py).
        refusal: Why it may not leave, in words for the server that name no image and no distance;
            empty = it may.
        reasons: The same for the hospital's own log.
        refused: Indices of the synthetic images that may not leave.
        leaks: What attacks tell, each in its own way: 0 is nothing, 1 all that can be told.
        evidence: What attacks measured, as JSON has it. It stays.
        pictures: uint8 [., C, H, W]. They stay.
    """

    figures: dict[str, float] = field(default_factory=dict)
    refusal: str = ""
    reasons: tuple[str, ...] = ()
    refused: tuple[int, ...] = ()
    leaks: tuple[Estimate, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)
    pictures: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def passed(self) -> bool:
        """Whether it may leave."""
        return not self.refusal
