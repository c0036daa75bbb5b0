"""The settings of the learners: what a local objective alone reads of a run's settings.

Hospitals judge them when they enrol, and `python -m server_app check` before.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from strategies.protocol.settings import PUBLIC, require

CONTRAST = "contrast"  # the stand-in for a saliency oracle (learning/learners/ser.py)
# Learners whose memory travels with a model, and has no average.
CARRIES = frozenset({"mah", "twf"})
_ARCHIVE = f"{PUBLIC}<absolute npz file>"


def is_public(chosen: str) -> bool:
    """Whether a setting names a file of public images."""
    return chosen.startswith(PUBLIC) and Path(chosen.removeprefix(PUBLIC)).is_absolute()


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
class PrototypeSettings:
    """PASS, and of FedSpace what it shares with it: the keys `pass.*`."""

    temperature: float
    prototype_weight: float  # λ

    def __post_init__(self) -> None:
        require(self.temperature > 0, "pass.temperature", self.temperature, "above 0")
        weight = self.prototype_weight
        require(weight >= 0, "pass.prototype-weight", weight, "0 or more")


@dataclass(frozen=True)
class RepresentationSettings:
    """What FedSpace's hospitals do: of the keys `fedspace.*`."""

    representation_weight: float  # λ_R

    def __post_init__(self) -> None:
        weight = self.representation_weight
        require(weight >= 0, "fedspace.representation-weight", weight, "0 or more")


@dataclass(frozen=True)
class ReservoirSettings:
    """What a hospital keeps of its stream of images: the keys `reservoir.*`."""

    size: int
    batch_size: int

    def __post_init__(self) -> None:  # 2 at least, because BatchNorm cannot train on one image
        require(2 <= self.size <= 100_000, "reservoir.size", self.size, "2 to 100000")
        require(self.batch_size >= 2, "reservoir.batch-size", self.batch_size, "2 or more")


@dataclass(frozen=True)
class DERppSettings:
    """DER++: the keys `derpp.*`."""

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        require(self.alpha >= 0, "derpp.alpha", self.alpha, "0 or more")
        require(self.beta >= 0, "derpp.beta", self.beta, "0 or more")


@dataclass(frozen=True)
class LwFSettings:
    """Learning without forgetting: the keys `lwf.*`."""

    alpha: float
    warm_up: int

    def __post_init__(self) -> None:
        require(self.alpha >= 0, "lwf.alpha", self.alpha, "0 or more")
        require(0 <= self.warm_up <= 100, "lwf.warm-up", self.warm_up, "0 to 100")


@dataclass(frozen=True)
class OnlineEWCSettings:
    """Online EWC: the keys `oewc.*`."""

    strength: float  # λ
    decay: float  # γ

    def __post_init__(self) -> None:
        require(self.strength >= 0, "oewc.strength", self.strength, "0 or more")
        require(0 <= self.decay <= 1, "oewc.decay", self.decay, "from 0 to 1")


@dataclass(frozen=True)
class MAHSettings:
    """Most activated heads: the keys `mah.*`."""

    auxiliary: str

    def __post_init__(self) -> None:
        chosen = self.auxiliary
        require(not chosen or is_public(chosen), "mah.auxiliary", chosen, f"{_ARCHIVE}, or empty")


@dataclass(frozen=True)
class TwFSettings:
    """Transfer without forgetting: the keys `twf.*`."""

    alpha: float
    beta: float
    propagation: float  # λ_FP
    mask_replay: float
    diversity: float  # λ of L_AUX
    teacher: str
    teacher_epochs: int

    def __post_init__(self) -> None:
        for key in ("alpha", "beta", "propagation", "mask_replay", "diversity"):
            weight = getattr(self, key)
            require(weight >= 0, f"twf.{key.replace('_', '-')}", weight, "0 or more")
        chosen, epochs = self.teacher, self.teacher_epochs
        usable = not chosen or Path(chosen).is_absolute() or is_public(chosen)
        require(usable, "twf.teacher", chosen, f"an absolute file, {_ARCHIVE}, or empty")
        require(epochs >= 1, "twf.teacher-epochs", epochs, "1 or more")


@dataclass(frozen=True)
class SERSettings:
    """Saliency-driven experience replay: the keys `ser.*`."""

    oracle: str
    learning_rate: float

    def __post_init__(self) -> None:
        chosen, rate = self.oracle, self.learning_rate
        usable = chosen == CONTRAST or Path(chosen).is_absolute()
        require(usable, "ser.oracle", chosen, f"{CONTRAST}, or an absolute npz file")
        require(rate > 0, "ser.learning-rate", rate, "above 0")
