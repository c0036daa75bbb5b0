"""Centralised training at the one hospital that trains (strategies/centralized.py)."""

from torch import nn

from client_app.datasets import joined
from client_app.hospital import Hospital
from client_app.learners.plain import NOTHING, Plain, Received


class Centralized(Plain):
    """Cross-entropy on everybody's images, real, synthetic or both, in one heap."""

    def __init__(self, model: nn.Module, hospital: Hospital, received: Received = NOTHING) -> None:
        super().__init__(model, hospital)
        parts = list(received.buffers)
        if hospital.settings.centralized.data != "synthetic":
            parts.append(hospital.everyone())
        self.samples = joined(parts)

    @staticmethod
    def check(hospital: Hospital) -> None:
        """Refuse a hospital that has images of its own."""
        if hospital.settings.centralized.data != "synthetic":
            hospital.everyone()
