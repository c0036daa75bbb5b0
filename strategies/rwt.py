"""Random weight transfer: every round each model goes to another hospital, drawn at random.

A baseline of FedRewind (Palazzo et al., 2024; thesis, section 4.2). π_t is a uniformly random
permutation of the hospitals that leaves none in its place. At hospital j and round t:

    M_j^1 = Train_{D_j, E}(M^0)        M_j^t = Train_{D_j, E}(M_{π_t(j)}^{t-1})    for t > 1

Deviations:
 1. The authors' code draws receivers one after the other. So the last one sometimes keeps its own
    model (in 7.6 % of the rounds with 10 hospitals). Here no hospital does.
"""

from strategies.engine.state import State
from strategies.engine.strategy import HandsOn
from strategies.engine.topology import derangement, stay
from strategies.engine.visit import Visit
from strategies.protocol.settings import rng_for


class RWT(HandsOn):
    """A fresh derangement of the hospitals every round."""

    begins_at_home = True

    def plan(self, state: State) -> list[Visit]:
        """Train at home first, then exchange at random."""
        if state.hop:
            return []
        if state.round == 1:
            return self.follow(stay(state.hospitals), state)
        rng = rng_for(self.settings.seed, "route", state.round)
        return self.follow(derangement(state.hospitals, rng), state)

    def hand_on(self, state: State, hospital: str, model: str, source: str) -> Visit:
        """A visit that trains a model; the source makes no difference."""
        return self.visit(hospital, model)
