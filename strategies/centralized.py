"""Centralised training: one model on everybody's images, in one place. For comparison only.

The baselines of FedER (arXiv:2206.10048, Table II), chosen by `centralized.data`:

    real         argmin_θ E_{D_1 ∪ ... ∪ D_N} ℓ(θ)        what no hospital would allow
    synthetic    argmin_θ E_{B_1 ∪ ... ∪ B_N} ℓ(θ)        what the buffers are worth by themselves
    both         argmin_θ E over all of them

The first hospital trains; the others test. `real` and `both` exist in simulations only: a
hospital that has its own images refuses.

The hospital's half: learning/learners/centralized.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from strategies.engine.courier import Delivery
from strategies.engine.peer import Leg, PeerStrategy
from strategies.feder import FedERSettings


@dataclass(frozen=True)
class CentralizedSettings:
    """The keys `centralized.*`."""

    data: Literal["real", "synthetic", "both"]


class Centralized(PeerStrategy):
    """One model that stays where it is."""

    learner = "centralized"

    @property
    def data(self) -> str:
        return self.settings.section("centralized", CentralizedSettings).data

    @property
    def buffer_size(self) -> int:
        """Whether synthetic images are trained on."""
        return (
            0 if self.data == "real" else self.settings.section("feder", FedERSettings).buffer_size
        )

    @property
    def images(self) -> str:
        return "none" if self.data == "synthetic" else "everyone"

    def enrol(self) -> list[Delivery]:
        """Keep the first hospital's model alone."""
        failed = super().enrol()
        self.held = {place: self.held[place] for place in self.hospitals[:1]}
        return failed

    def plan(self, server_round: int, hop: int, hospitals: Sequence[str]) -> Leg:
        """The first hospital trains its model on the buffers of all, if they share any."""
        first = hospitals[0]
        replay = {first: hospitals} if self.buffer_size else {}
        return Leg({first: first}, self.settings.train.epochs, replay=replay, images=self.images)

    def handed_on(self, round_: int) -> dict[str, str]:
        """Every hospital uses the one model."""
        return dict.fromkeys(self.hospitals, self.hospitals[0])
