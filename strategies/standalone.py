"""Standalone: every hospital trains its own model on its own images; nothing is handed on.

The lower baseline of all the papers. Hospital j at round t:

    M_j^t = Train_{D_j, E}(M_j^{t-1})

Models still go to the server after every visit, because every hospital tests them.
"""

from strategies.engine.state import State
from strategies.engine.strategy import Strategy
from strategies.engine.topology import stay
from strategies.engine.visit import Visit


class Standalone(Strategy):
    """Each model stays at its own hospital."""

    has_baseline = False
    needs_rounds = "it hands nothing on, so no hospital waits for a model"

    def plan(self, state: State) -> list[Visit]:
        """Each hospital trains its own model."""
        return [] if state.hop else self.follow(stay(state.hospitals), state)
