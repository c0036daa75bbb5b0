"""Centralised training at the one hospital that trains (strategies/centralized.py)."""

from torch import nn

from learning.learners.plain import Learner, Received
from learning.samples import Samples, joined
from strategies.protocol.settings import Settings


class Centralized(Learner):
    """Cross-entropy on everybody's images, real, synthetic or both, as one set."""

    def __init__(
        self, model: nn.Module, samples: Samples, settings: Settings, received: Received
    ) -> None:
        parts = [*received.buffers, *([samples] if len(samples) else [])]
        super().__init__(model, joined(parts), settings, received)
