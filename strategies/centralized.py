"""Centralised training: one model on everybody's images, in one place. For comparison only.

The baselines of FedER (arXiv:2206.10048, Table II), chosen by `centralized.data`:

    real         argmin_θ E_{D_1 ∪ ... ∪ D_N} ℓ(θ)        what no hospital would allow
    synthetic    argmin_θ E_{B_1 ∪ ... ∪ B_N} ℓ(θ)        what the buffers are worth by themselves
    both         argmin_θ E over all of them

The first hospital trains; the others test. `real` and `both` exist in simulations only: a
hospital that has its own images refuses.

The hospital's half: client_app/learners/centralized.py.
"""

from collections.abc import Sequence

from strategies.courier import Delivery
from strategies.peer import Leg, PeerStrategy


class Centralized(PeerStrategy):
    """One model that stays where it is."""

    learner = "centralized"

    @property
    def shares_buffers(self) -> bool:
        """Whether synthetic images are trained on."""
        return self.settings.centralized.data != "real"

    def enrol(self) -> list[Delivery]:
        """Keep the first hospital's model alone."""
        failed = super().enrol()
        self.held = {place: self.held[place] for place in self.hospitals[:1]}
        return failed

    def plan(self, server_round: int, hop: int, hospitals: Sequence[str]) -> Leg:
        """The first hospital trains its model on the buffers of all, if they share any."""
        first = hospitals[0]
        replay = {first: hospitals} if self.shares_buffers else {}
        return Leg({first: first}, self.settings.train.epochs, replay=replay)

    def handed_on(self, round_: int) -> dict[str, str]:
        """Every hospital uses the one model."""
        return dict.fromkeys(self.hospitals, self.hospitals[0])
