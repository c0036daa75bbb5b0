"""The settings of the learners: those that only a local objective reads.

`fedhandoff check` checks them before a run, and hospitals when they enrol.
"""

from typing import Annotated, Literal

from strategies.protocol.declared import (
    MOST,
    AboveZero,
    Amount,
    Passes,
    Share,
    ShareAboveZero,
    ShareBelowOne,
    TwoOrMore,
    bounds,
    condition,
    declare,
    pattern,
)
from strategies.protocol.settings import PUBLIC

CONTRAST = "contrast"  # the stand-in for a saliency oracle (learning/learners/ser.py)
_ARCHIVE = f"{PUBLIC}<absolute npz file>"


@declare
class CWCSettings:
    """Cyclical weight consolidation: the keys `cwc.*`."""

    strength: Amount  # σ
    decay: Share  # γ
    importance: Literal["si", "ewc"]
    damping: Annotated[float, bounds(1e-12, MOST)]  # ξ; far below, it is 0 in 32 bits


@declare
class FedProxSettings:
    """FedProx: the keys `fedprox.*`."""

    mu: Amount


@declare
class EmbeddingSettings:
    """FIL-VER at hospitals: some of the keys `filver.*`."""

    share: ShareAboveZero
    beta: Amount


@declare
class RehearsalSettings:
    """Naive rehearsal: the keys `rehearsal.*`."""

    share: ShareAboveZero


@declare
class ReplaySettings:
    """The weight of FedER's buffer: one of the keys `feder.*`."""

    replay_weight: ShareBelowOne  # 1 − λ


@declare
class BatchNormSettings:
    """How FedRewind trains BatchNorm: one of the keys `rewind.*`."""

    batch_norm: Literal["train", "reference"]


@declare
class PrototypeSettings:
    """PASS, and the common part of FedSpace: the keys `pass.*`."""

    temperature: Annotated[float, bounds(1e-6, MOST)]
    prototype_weight: Amount  # λ


@declare
class RepresentationSettings:
    """FedSpace at hospitals: some of the keys `fedspace.*`."""

    representation_weight: Amount  # λ_R


@declare
class ReservoirSettings:
    """A hospital's reservoir: the keys `reservoir.*`."""

    # 2 at least, because BatchNorm cannot train on one image.
    size: Annotated[int, bounds(0, 100_000), condition(lambda n: n != 1, "0, or 2 or more")]
    batch_size: TwoOrMore


@declare
class DERppSettings:
    """DER++: the keys `derpp.*`."""

    alpha: Amount
    beta: Amount
    one_pass: bool


@declare
class FDRSettings:
    """Regularisation in function space: the keys `fdr.*`."""

    alpha: Amount


@declare
class LwFSettings:
    """Learning without forgetting: the keys `lwf.*`."""

    alpha: Amount
    warm_up: Annotated[int, bounds(0, 100)]


@declare
class OnlineEWCSettings:
    """Online EWC: the keys `oewc.*`."""

    strength: Amount  # λ
    decay: Share  # γ


@declare
class MAHSettings:
    """Most activated heads: the keys `mah.*`."""

    outputs: Literal["most-activated", "in-order"]
    auxiliary: Annotated[str, pattern("(public:/.*)?", f"{_ARCHIVE}, or empty")]


@declare
class TwFSettings:
    """Transfer without forgetting: the keys `twf.*`."""

    alpha: Amount
    beta: Amount
    propagation: Amount  # λ_FP
    mask_replay: Amount
    diversity: Amount  # λ of L_AUX
    masked: bool
    ewc: Amount  # λ of L_EwC
    teacher: Annotated[str, pattern("((public:)?/.*)?", f"an absolute file, {_ARCHIVE}, or empty")]
    teacher_epochs: Passes


@declare
class SERSettings:
    """Saliency-driven experience replay: the keys `ser.*`."""

    learner: Literal["", "agem", "der", "derpp", "er", "er-ace", "fdr", "lwf", "oewc", "rehearsal"]
    oracle: Annotated[str, pattern("contrast|/.*", f"{CONTRAST}, or an absolute npy file")]
    learning_rate: AboveZero
