"""FedER: each model is handed on with synthetic images of where it was, and replays them.

Pennisi et al., "FedER: Federated Learning through Experience Replay and Privacy-Preserving Data
Synthesis", arXiv:2206.10048, Algorithm 1. Before the first round hospital j trains a GAN on its
images D_j and renders its buffer B_j. At round r, with i the hospital before j on a ring through
all hospitals that is drawn anew every round:

    M_j^1 = argmin_θ E_{D_j} ℓ(θ)                                        starting from M_j^0
    M_j^r = argmin_θ λ E_{D_j} ℓ(θ) + (1 − λ) E_{B_i} ℓ(θ)               starting from M_i^{r-1}

Each hospital's M_j^0 has weights of its own, and may be a network of its own. Variants (section
IV.D): `buffer-only` (FedER-A) starts from M_j^{r-1}, so that only B_i travels; `synthetic-only`
(FedER-B) has B_j in the place of D_j.

Deviations:
 1. Local training before the federation counts as round 1, as in the authors' code.
 2. A buffer is a set of images, rendered once, as in Definition 2; in the authors' code the
    generator itself travels and renders other images at every step.
 3. If hospital i misses its turn, j receives the model that was meant for i, untrained, with B_i:
    it learns from the buffer what it missed.

The hospital's half: learning/learners/feder.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from strategies.engine.peer import Leg, PeerStrategy
from strategies.engine.topology import random_ring, stay
from strategies.protocol.settings import require, rng_for


@dataclass(frozen=True)
class FedERSettings:
    """What is handed on: of the keys `feder.*`."""

    variant: Literal["full", "buffer-only", "synthetic-only"]
    buffer_size: int

    def __post_init__(self) -> None:
        size = self.buffer_size
        require(size >= 0, "feder.buffer-size", size, "0 or more")
        if self.variant == "synthetic-only":
            require(size > 0, "feder.buffer-size", size, "1 or more with variant synthetic-only")


class FedER(PeerStrategy):
    """A fresh ring every round, for models and buffers."""

    learner = "feder"
    own_start = True

    @property
    def feder(self) -> "FedERSettings":
        """The method's settings."""
        return self.settings.section("feder", FedERSettings)

    @property
    def buffer_size(self) -> int:
        """Without buffers this is the bare hand-off of models, and nobody trains a GAN."""
        return self.feder.buffer_size

    def plan(self, server_round: int, hop: int, hospitals: Sequence[str]) -> Leg:
        """Train at home first, then exchange along the ring."""
        variant, ring = self.feder.variant, stay(hospitals)
        if server_round > 1:
            ring = random_ring(hospitals, rng_for(self.settings.seed, "route", server_round))
        replay = {}
        for receiver, source in ring.items():
            received = [source] if self.buffer_size and source != receiver else []
            # FedER-B: its own buffer in the place of its images.
            replay[receiver] = [receiver, *received] if variant == "synthetic-only" else received
        route = stay(hospitals) if variant == "buffer-only" else ring
        images = "none" if variant == "synthetic-only" else "own"
        return Leg(route, self.settings.train.epochs, replay=replay, images=images)
