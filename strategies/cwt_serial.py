"""Cyclical weight transfer: one model visits the hospitals one after the other.

Chang et al., "Distributed deep learning networks among institutions for medical imaging",
JAMIA 25(8), 2018, doi:10.1093/jamia/ocy017; the baseline of CWC (arXiv:2405.10647, section 3.1).
With w^{k,r} the model after hospital k of K at round r, and w^{0,r} = w^{K,r-1}:

    w^{k,r} = Train_{D_k, E}(w^{k-1,r})

A round has K hops, in order of the hospitals' names. A hospital that is away is passed over.

Deviations: none known. The learner is `plain`, with a fresh optimizer at every visit.
"""

from collections.abc import Sequence

from strategies.engine.courier import Delivery
from strategies.engine.peer import Leg, PeerStrategy
from strategies.engine.topology import serial


class CWTSerial(PeerStrategy):
    """One lineage; it starts with the model of the first hospital."""

    tests_every_visit = True

    def hops_in(self, server_round: int) -> int:
        """A visit to each hospital; who joins during a round is visited from the next one on."""
        return len(self.nodes)

    def enrol(self) -> list[Delivery]:
        """Keep the one model that travels, where it is."""
        travelling = dict(self.held)
        failed = super().enrol()
        self.held = travelling or {place: self.held[place] for place in self.hospitals[:1]}
        return failed

    def plan(self, server_round: int, hop: int, hospitals: Sequence[str]) -> Leg:
        """The model goes to the next hospital."""
        (place,) = self.held
        return Leg(serial(hospitals, hop, place), self.settings.train.epochs)

    def handed_on(self, round_: int) -> dict[str, str]:
        """Every hospital uses the one model."""
        (travelling,) = self.held.values()
        return dict.fromkeys(self.hospitals, travelling.lineage)
