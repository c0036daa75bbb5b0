"""Random weight transfer: every round each model goes to another hospital, drawn at random.

A baseline of FedRewind (Palazzo et al., 2024; thesis, section 4.2). Hospital j at round t, with π_t
a uniformly random permutation of the hospitals that leaves none in its place:

    M_j^1 = Train_{D_j, E}(M^0)        M_j^t = Train_{D_j, E}(M_{π_t(j)}^{t-1})    for t > 1

Deviations:
 1. The authors' code draws receivers one after the other, so that the last one sometimes keeps its
    own model (in 7.6 % of the rounds with 10 hospitals); here nobody ever does.
"""

from collections.abc import Sequence

from strategies.engine.peer import Leg, PeerStrategy
from strategies.engine.topology import derangement, stay
from strategies.protocol.settings import rng_for


class RWT(PeerStrategy):
    """A fresh derangement of the hospitals every round."""

    def plan(self, server_round: int, hop: int, hospitals: Sequence[str]) -> Leg:
        """Train at home first, then exchange at random."""
        rng = rng_for(self.settings.seed, "route", server_round)
        route = stay(hospitals) if server_round == 1 else derangement(hospitals, rng)
        return Leg(route, self.settings.train.epochs)
