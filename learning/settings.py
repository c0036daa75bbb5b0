"""The settings of the learners: what a local objective alone reads of a run's settings.

Without torch, which takes seconds to import, so that a run can be judged before it starts
(server_app/check.py). A hospital judges them when it enrols.
"""

from dataclasses import dataclass
from typing import Any, Literal

from strategies.protocol.settings import require


@dataclass(frozen=True)
class CWCSettings:
    """Cyclical weight consolidation: the keys `cwc.*`."""

    strength: float  # σ
    decay: float  # γ
    importance: Literal["si", "ewc"]
    damping: float  # ξ

    def __post_init__(self) -> None:
        require(self.strength >= 0, "cwc.strength", self.strength, "0 or more")
        require(0 <= self.decay <= 1, "cwc.decay", self.decay, "from 0 to 1")
        require(self.damping > 0, "cwc.damping", self.damping, "above 0")


@dataclass(frozen=True)
class FedProxSettings:
    """FedProx: the keys `fedprox.*`."""

    mu: float

    def __post_init__(self) -> None:
        require(self.mu >= 0, "fedprox.mu", self.mu, "0 or more")


@dataclass(frozen=True)
class EmbeddingSettings:
    """What FIL-VER's hospitals do: of the keys `filver.*`."""

    share: float
    beta: float

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, "filver.share", self.share, "above 0, and at most 1")
        require(self.beta >= 0, "filver.beta", self.beta, "0 or more")


@dataclass(frozen=True)
class RehearsalSettings:
    """Naive rehearsal: the keys `rehearsal.*`."""

    share: float

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, "rehearsal.share", self.share, "above 0, and at most 1")


@dataclass(frozen=True)
class ReplaySettings:
    """The weight of FedER's buffer: one of the keys `feder.*`."""

    replay_weight: float  # 1 − λ

    def __post_init__(self) -> None:
        weight = self.replay_weight
        require(0 <= weight < 1, "feder.replay-weight", weight, "0 or more, and below 1")


@dataclass(frozen=True)
class BatchNormSettings:
    """How FedRewind trains BatchNorm: one of the keys `rewind.*`."""

    batch_norm: Literal["train", "reference"]


@dataclass(frozen=True)
class ReservoirSettings:
    """What a hospital keeps of its stream of images: the keys `reservoir.*`."""

    size: int

    def __post_init__(self) -> None:
        # BatchNorm cannot train on one image.
        require(2 <= self.size <= 100_000, "reservoir.size", self.size, "2 to 100000")


@dataclass(frozen=True)
class DERppSettings:
    """DER++: the keys `derpp.*`."""

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        require(self.alpha >= 0, "derpp.alpha", self.alpha, "0 or more")
        require(self.beta >= 0, "derpp.beta", self.beta, "0 or more")


# By learner, the tables and their dataclasses, as the learner's own `tables` has them.
TABLES: dict[str, tuple[tuple[str, type[Any]], ...]] = {
    "cwc": (("cwc", CWCSettings),),
    "derpp": (("derpp", DERppSettings), ("reservoir", ReservoirSettings)),
    "feder": (("feder", ReplaySettings),),
    "fedprox": (("fedprox", FedProxSettings),),
    "fedrewind": (("rewind", BatchNormSettings),),
    "fedrewind-averaged": (("rewind", BatchNormSettings),),
    "fil-ver": (("filver", EmbeddingSettings),),
    "fil-ver-encoder": (("filver", EmbeddingSettings),),
    "rehearsal": (("rehearsal", RehearsalSettings),),
}
