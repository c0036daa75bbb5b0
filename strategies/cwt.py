"""Cyclical weight transfer, in its parallel form: every model goes round the same ring.

Chang et al., "Distributed deep learning networks among institutions for medical imaging",
JAMIA 25(8), 2018, doi:10.1093/jamia/ocy017. There one model visits the institutions in a fixed
order. Here, as in the comparison of FedRewind (Palazzo et al., 2024), N models travel at once, one
at each hospital. At hospital j and round t, where i is the hospital before j on the ring:

    M_j^1 = Train_{D_j, E}(M^0)        M_j^t = Train_{D_j, E}(M_i^{t-1})    for t > 1

Deviations: none known. The learner is `plain`, with a fresh optimizer at every visit, unless
`train.optimizer-state` lets its state travel.
"""

from strategies.engine.state import State
from strategies.engine.strategy import Strategy
from strategies.engine.topology import ring, stay
from strategies.engine.visit import Visit


class CWT(Strategy):
    """A fixed ring in order of the hospitals' names."""

    begins_at_home = True
    needs_rounds = "on its fixed ring all models would queue up before the slowest hospital"

    def plan(self, state: State) -> list[Visit]:
        """Train at home first, then pass on along the ring."""
        if state.hop:
            return []
        return self.follow((stay if state.round == 1 else ring)(state.hospitals), state)
