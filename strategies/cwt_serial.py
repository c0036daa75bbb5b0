"""Cyclical weight transfer: one model visits the hospitals one after the other.

Chang et al., "Distributed deep learning networks among institutions for medical imaging",
JAMIA 25(8), 2018, doi:10.1093/jamia/ocy017; the baseline of CWC (arXiv:2405.10647, section 3.1).
w^{k,r} is the model after hospital k of K at round r, and w^{0,r} = w^{K,r-1}:

    w^{k,r} = Train_{D_k, E}(w^{k-1,r})

A round has K hops, in order of the hospitals' names. A hospital that is away is skipped.

Deviations: none known. The learner is `plain`, with a fresh optimizer at every visit, unless
`train.optimizer-state` lets its state travel.
"""

from collections.abc import Mapping

from strategies.engine.state import Model, State
from strategies.engine.strategy import Strategy, commonest_model
from strategies.engine.visit import Visit


class CWTSerial(Strategy):
    """One lineage; it starts with the first model that most hospitals have sent."""

    tests_every_visit = True
    needs_rounds = "it has one model, and all other hospitals wait for the one that trains it"

    def start(self, state: State, newcomers: Mapping[str, Model]) -> None:
        """Take in this model alone."""
        if newcomers and not state.models:
            state.models.update([commonest_model(state, newcomers)])

    def plan(self, state: State) -> list[Visit]:
        """The model goes to the next hospital."""
        if state.hop == len(state.hospitals):
            return []
        (travelling,) = state.models
        return [self.visit(state.hospitals[state.hop], travelling)]

    def holders(self, state: State) -> dict[str, str]:
        """Every hospital uses the one model."""
        (travelling,) = state.models
        return dict.fromkeys(state.hospitals, travelling)
