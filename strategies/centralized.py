"""Centralised training: one model on everybody's images, in one place. For comparison only.

The baselines of FedER (arXiv:2206.10048, Table II), chosen by `centralized.data`:

    real         argmin_θ E_{D_1 ∪ ... ∪ D_N} ℓ(θ)        what no hospital would allow
    synthetic    argmin_θ E_{B_1 ∪ ... ∪ B_N} ℓ(θ)        what the buffers are worth by themselves
    both         argmin_θ E over all of them

`synthetic` with `gan.sampler = "lci"` is the protocol of LCI (the thesis, section 3.1.3): every
hospital sends its set once, and one model is trained on their union.

The first hospital trains; the others test. `real` and `both` exist in simulations only: a
hospital that has its own images refuses.

The hospital's half: learning/learners/centralized.py.
"""

from typing import Literal

from strategies.cwt_serial import CWTSerial
from strategies.engine.state import State
from strategies.engine.visit import Visit
from strategies.feder import FedERSettings
from strategies.protocol.declared import declare
from strategies.protocol.settings import Settings


@declare
class CentralizedSettings:
    """The keys `centralized.*`."""

    data: Literal["real", "synthetic", "both"]


class Centralized(CWTSerial):
    """One model, which never leaves the first hospital."""

    learner = "centralized"
    tests_every_visit = False
    needs_rounds = "one hospital trains its one model"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        data = settings.section("centralized", CentralizedSettings).data
        self.images = "none" if data == "synthetic" else "everyone"
        if data != "real":
            self.buffer_size = settings.section("feder", FedERSettings).buffer_size

    def task_at(self, server_round: int, hospital: str = "") -> int:
        """The last one: one place has the images of all tasks from the start."""
        return super().task_at(self.settings.num_server_rounds)

    def plan(self, state: State) -> list[Visit]:
        """The first hospital trains its model on the buffers of all, if they share any."""
        if state.hop:
            return []
        ((name, model),) = state.models.items()
        return [self.visit(model.place, name, replay=sorted(state.buffers))]
