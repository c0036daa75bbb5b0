"""Cyclical weight transfer, in its parallel form: every model goes round the same ring.

Chang et al., "Distributed deep learning networks among institutions for medical imaging",
JAMIA 25(8), 2018, doi:10.1093/jamia/ocy017. There one model visits the institutions in a fixed
order. Here, as in the comparison of FedRewind (Palazzo et al., 2024), N models travel at once, one
at each hospital. Hospital j at round t, with i the hospital before j on the ring:

    M_j^1 = Train_{D_j, E}(M^0)        M_j^t = Train_{D_j, E}(M_i^{t-1})    for t > 1

Deviations: none known. The learner is `plain`, with a fresh optimizer at every visit.
"""

from collections.abc import Sequence

from strategies.engine.peer import Leg, PeerStrategy
from strategies.engine.topology import ring, stay


class CWT(PeerStrategy):
    """A fixed ring in order of the hospitals' names."""

    def plan(self, server_round: int, hop: int, hospitals: Sequence[str]) -> Leg:
        """Train at home first, then pass on along the ring."""
        route = stay(hospitals) if server_round == 1 else ring(hospitals)
        return Leg(route, self.settings.train.epochs)
