"""Standalone: every hospital trains its own model on its own images; nothing is handed on.

The lower baseline of all the papers. Hospital j at round t:

    M_j^t = Train_{D_j, E}(M_j^{t-1})

Models still come to the server after every visit, because they are tested at every hospital.
"""

from collections.abc import Sequence

from strategies.engine.peer import Leg, PeerStrategy
from strategies.engine.topology import stay


class Standalone(PeerStrategy):
    """Models stay home."""

    def plan(self, server_round: int, hop: int, hospitals: Sequence[str]) -> Leg:
        """Everybody keeps its own model."""
        return Leg(stay(hospitals), self.settings.train.epochs)
