"""FedRewind: on every visit a model goes back for a while to where it came from.

Palazzo et al., "FedRewind: Rewinding Continual Model Exchange for Decentralized Federated
Learning", arXiv:2411.09842; thesis, section 4.2. It changes the visits of another method, its base.
Hospital j at round t trains the model that the base hands it, which is hospital i's, in three hops:

    M_j^t = Train_{D_j, λE}( Train_{D_i, λE}( Train_{D_j, (1−2λ)E}( M_i^{t−1} ) ) )       (Eq. 4.8)

The model travels: from j back to i, which trains it on its own images, and to j again. With FedAvg
as the base every hospital starts from the average, and i is another hospital (Eq. 4.10).

Deviations:
 1. Algorithms 2 and 3 of the thesis train i's copy and then go on without it; the equations, the
    text and the authors' code do not.
 2. λE is rounded up, as in the authors' code, for the second leg and for the third; the first has
    what is left. Each leg has an optimizer of its own, where the authors' SGD has no state.
 3. Round 1, when no model comes from anywhere, is the base's, as in the authors' code.
 4. "The previous hospital" does not exist for FedAvg; here it is drawn anew in every round, so that
    nobody gets itself and nobody is drawn twice. The authors' code means to, and fails to.
 5. RandRewind (`rewind.partner`) draws i in the same way. The authors' code always takes client 0.

The hospital's half: learning/learners/fedrewind.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from flwr.serverapp import Grid

from strategies.cwt import CWT
from strategies.engine.events import Journal
from strategies.engine.peer import Leg, PeerStrategy
from strategies.engine.topology import derangement, inverse
from strategies.fedavg import FedAvg
from strategies.protocol.settings import Settings, require, rng_for
from strategies.rwt import RWT


@dataclass(frozen=True)
class RewindSettings:
    """What is rewound, how far and where to: of the keys `rewind.*`."""

    base: Literal["cwt", "rwt", "fedavg"]
    fraction: float
    partner: Literal["previous", "random"]

    def __post_init__(self) -> None:
        allowed = "0 or more, and below 0.5"
        require(0 <= self.fraction < 0.5, "rewind.fraction", self.fraction, allowed)

    def epochs(self, total: int) -> int:
        """Those of the rewind leg, out of a visit's: λE, rounded up."""
        # 0.07 · 100 is 7.000000000000001 in floating point.
        return ceil(round(self.fraction * total, 9))


class _Rewind(PeerStrategy):
    """Comes before the base among a class's parents; the base has one hop a round."""

    learner = "fedrewind"

    @property
    def rewind(self) -> "RewindSettings":
        return self.settings.section("rewind", RewindSettings)

    def hops_in(self, server_round: int) -> int:
        """There, back and there again, once models have somewhere to go back to."""
        return 1 if server_round == 1 or self.rewind.fraction == 0 else 3

    def plan(self, server_round: int, hop: int, hospitals: Sequence[str]) -> Leg:
        """Eq. 4.8 from the inside out."""
        leg = super().plan(server_round, 1, hospitals)  # type: ignore[safe-super]  # the base's
        if self.hops_in(server_round) == 1:
            return leg
        settings = self.rewind
        epochs = settings.epochs(leg.epochs)
        if hop == 1:
            return replace(leg, epochs=leg.epochs - 2 * epochs)
        if settings.partner == "previous" and settings.base != "fedavg":
            back = inverse(leg.route)
        else:
            back = derangement(hospitals, rng_for(self.settings.seed, "rewind", server_round))
        return (
            Leg(back, epochs, "train.rewind", leg=2)
            if hop == 2
            else Leg(inverse(back), epochs, leg=3)
        )


class RewindCWT(_Rewind, CWT):
    """On the fixed ring."""


class RewindRWT(_Rewind, RWT):
    """On a random exchange."""


class RewindFedAvg(_Rewind, FedAvg):
    """Before the average."""

    learner = "fedrewind-averaged"


BASES: dict[str, type[_Rewind]] = {"cwt": RewindCWT, "rwt": RewindRWT, "fedavg": RewindFedAvg}


def fedrewind(settings: Settings, grid: Grid, journal: Journal) -> PeerStrategy:
    """FedRewind on the base that `rewind.base` names."""
    return BASES[settings.section("rewind", RewindSettings).base](settings, grid, journal)
