"""Centralised training at the one hospital that trains (strategies/centralized.py)."""

from learning.learners.plain import Learner
from learning.samples import concatenate


class Centralized(Learner):
    """Cross-entropy on the images of all hospitals as one set: real, synthetic or both."""

    def begin_visit(self) -> None:
        """Join the images of the visit and the buffers."""
        real = [self.samples] if len(self.samples) else []
        self.samples = concatenate([*self.received.buffers, *real])
