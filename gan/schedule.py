"""When a training of the generative model does what: its two phases, and what is due in each.

Paper: FedER (Pennisi et al. 2023, arXiv:2206.10048), section IV.B.2: phase 1 ends when the
generator gets no better; phase 2, with the privacy term, when its images are no longer good enough.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from gan.presets import Preset

ENOUGH = 2.5  # phase 2 ends when the Fréchet distance is that many times phase 1's (IV.B.2)


@dataclass
class Schedule:
    """Where a training stands.

    Attributes:
        preset: Gives the cadences and the lengths of the phases.
        phases: How many there are, 1 or 2.
        phase: The present one, from 1; larger than `phases` = the training is over.
        iteration: Finished steps of this phase.
        best: Lowest Fréchet distance of phase 1.
        best_iteration: The iteration that had it.
    """

    preset: Preset
    phases: int
    phase: int = 1
    iteration: int = 0
    best: float = math.inf
    best_iteration: int = 0

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do."""
        return self.phase > self.phases

    @property
    def private(self) -> bool:
        """Whether the generator's loss has the privacy term."""
        return self.phase == 2

    @property
    def r1_due(self) -> bool:
        """Whether the next step has a gradient penalty."""
        return self.iteration % self.preset.r1_every == 0

    @property
    def path_due(self) -> bool:
        """Whether the next step has path length regularisation."""
        return self.preset.path_every > 0 and self.iteration % self.preset.path_every == 0

    @property
    def check_due(self) -> bool:
        """Whether the step just taken is followed by a check."""
        every = self.preset.check_every
        if self.private:
            # The private generator is the last one that was still good enough: look closely.
            every = max(1, every // 5)
        return self.iteration % every == 0 or self.iteration >= self._limit

    def judge(self, score: float) -> tuple[bool, bool]:
        """Take the Fréchet distance of a check.

        Returns:
            Whether the generator is the best so far (phase 1) or good enough (phase 2) and is to be
            kept, and whether the phase ends here.
        """
        ends = self.iteration >= self._limit
        if self.private:
            good = score <= ENOUGH * self.best
            return good, ends or not good
        better = score < self.best
        if better:
            self.best, self.best_iteration = score, self.iteration
        stale = self.iteration - self.best_iteration >= self.preset.patience
        return better, ends or stale

    def next_phase(self) -> None:
        """Begin the next phase, or be over."""
        self.phase, self.iteration = self.phase + 1, 0

    @property
    def _limit(self) -> int:
        return self.preset.privacy_iterations if self.private else self.preset.iterations

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes, as plain numbers."""
        state = asdict(self)
        del state["preset"], state["phases"]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where another schedule was."""
        self.__dict__.update(state)
