"""FedER: hospitals hand on synthetic images, by default with a model; the receiver replays them.

Pennisi et al., "FedER: Federated Learning through Experience Replay and Privacy-Preserving Data
Synthesis", arXiv:2206.10048, Algorithm 1. Before the first round hospital j trains a GAN on its
images D_j and renders its buffer B_j. Every round r draws a new ring through all hospitals; i is
the hospital before j on the ring:

    M_j^1 = argmin_θ E_{D_j} ℓ(θ)                                        starting from M_j^0
    M_j^r = argmin_θ λ E_{D_j} ℓ(θ) + (1 − λ) E_{B_i} ℓ(θ)               starting from M_i^{r-1}

Each M_j^0 has initial weights of its own, and may have an architecture of its own. Variants
(section IV.D): `buffer-only` (FedER-A) starts from M_j^{r-1}, so only B_i travels.
`synthetic-only` (FedER-B) trains on B_j instead of D_j.

Deviations:
 1. Local training before the federation counts as round 1, as in the authors' code.
 2. A buffer is a set of images, rendered once, as in Definition 2. In the authors' code the
    generator itself travels, and renders other images at every step.
 3. If hospital i misses its turn, j receives the model that was meant for i, untrained, with B_i.
    So the model learns from B_i in place of the missed images.
 4. If B_j may not leave hospital j, j hands on its model alone, and the next hospital trains by the
    first equation. In `synthetic-only` j then takes no part, since it trains on B_j. A hospital
    that cannot use a buffer trains without it, too.

The hospital's half: learning/learners/feder.py.
"""

from typing import Annotated, Literal

from strategies.engine.state import State
from strategies.engine.strategy import HandsOn
from strategies.engine.topology import random_ring, stay
from strategies.engine.visit import Visit
from strategies.protocol.declared import bounds, declare
from strategies.protocol.settings import Settings, require, rng_for


@declare
class FedERSettings:
    """The keys `feder.*` that the method reads; the learner reads the others."""

    variant: Literal["full", "buffer-only", "synthetic-only"]
    buffer_size: Annotated[int, bounds(0, 100_000)]

    def __post_init__(self) -> None:
        fits = self.buffer_size > 0 or self.variant != "synthetic-only"
        allowed = "1 or more with variant synthetic-only"
        require(fits, "feder.buffer-size", self.buffer_size, allowed)


class FedER(HandsOn):
    """A fresh ring every round, for models and buffers."""

    learner = "feder"
    own_start = True
    begins_at_home = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        feder = settings.section("feder", FedERSettings)
        # With size 0 only models are handed on, and no hospital trains a GAN.
        self.variant, self.buffer_size = feder.variant, feder.buffer_size
        self.stays = self.variant == "buffer-only"
        if self.variant == "synthetic-only":
            self.images, self.needs_own_buffer = "none", True

    def plan(self, state: State) -> list[Visit]:
        """Train at home first, then exchange along the ring."""
        if state.hop:
            return []
        ring, models = stay(state.hospitals), state.models_at
        if state.round > 1:
            ring = random_ring(state.hospitals, rng_for(self.settings.seed, "route", state.round))
        return [
            self.hand_on(state, receiver, models[receiver if self.stays else source], source)
            for receiver, source in ring.items()
        ]

    def hand_on(self, state: State, hospital: str, model: str, source: str) -> Visit:
        """A visit that trains a model on the source's buffer too, if there is one."""
        replay = (source,) if source in state.buffers and source != hospital else ()
        if self.variant == "synthetic-only":  # the hospital's own buffer replaces its images
            replay = (hospital, *replay)
        return self.visit(hospital, model, replay=replay)
