"""Centralised training: one model on the real or synthetic images of all hospitals, to compare.

The baselines of FedER (arXiv:2206.10048, Table II). `centralized.data` chooses one:

    real         argmin_θ E_{D_1 ∪ ... ∪ D_N} ℓ(θ)        no hospital would allow this
    synthetic    argmin_θ E_{B_1 ∪ ... ∪ B_N} ℓ(θ)        the value of the buffers alone
    both         argmin_θ E_{D_1 ∪ ... ∪ D_N ∪ B_1 ∪ ... ∪ B_N} ℓ(θ)

`synthetic` with `gan.sampler = "lci"` is the protocol of LCI (the thesis, section 3.1.3): every
hospital sends its set once, and one model is trained on their union.

The first hospital trains. All hospitals test. `real` and `both` work in simulations only: a
hospital with images of its own refuses them.

The hospital's half: learning/learners/centralized.py.
"""

from collections.abc import Iterable
from typing import Literal

from strategies.cwt_serial import CWTSerial
from strategies.engine.state import State
from strategies.engine.visit import Visit
from strategies.feder import FedERSettings
from strategies.protocol.declared import declare
from strategies.protocol.settings import Settings, require


@declare
class CentralizedSettings:
    """The keys `centralized.*`."""

    data: Literal["real", "synthetic", "both"]


class Centralized(CWTSerial):
    """One model, which the first hospital alone trains."""

    learner = "centralized"
    tests_every_visit = False
    has_baseline = False
    needs_rounds = "one hospital trains its one model"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        data = settings.section("centralized", CentralizedSettings).data
        self.images = "none" if data == "synthetic" else "everyone"
        if data != "real":
            size = self.buffer_size = settings.section("feder", FedERSettings).buffer_size
            allowed = f"1 or more with centralized.data '{data}'"
            require(size > 0, "feder.buffer-size", size, allowed)

    def task_at(self, server_round: int, hospital: str = "") -> int:
        """The last task: the images of all tasks are there from the start."""
        return super().task_at(self.settings.num_server_rounds)

    def arrived_tasks(self, server_round: int, hospitals: Iterable[str]) -> list[int]:
        """All tasks until the last one, whatever the order in which hospitals would have them."""
        return []

    def plan(self, state: State) -> list[Visit]:
        """The first hospital trains the model, with the buffers of all hospitals if any."""
        if state.hop:
            return []
        ((name, model),) = state.models.items()
        return [self.visit(model.place, name, replay=tuple(sorted(state.buffers)))]
