"""FedRewind: on every visit a model goes back for a while to where it came from.

Palazzo et al., "FedRewind: Rewinding Continual Model Exchange for Decentralized Federated
Learning", arXiv:2411.09842; thesis, section 4.2. It changes the visits of another method, its base.
Hospital j at round t trains the model that the base hands it, which is hospital i's, in three hops:

    M_j^t = Train_{D_j, λE}( Train_{D_i, λE}( Train_{D_j, (1−2λ)E}( M_i^{t−1} ) ) )       (Eq. 4.8)

The model travels: from j back to i, which trains it on its own images, and to j again. With FedAvg
as the base every hospital starts from the average, and i is another hospital (Eq. 4.10). So it is
with FedSpace, and with a `learner`, such as PASS: all legs minimise the same (thesis, 4.2.4).

Deviations:
 1. Algorithms 2 and 3 of the thesis train i's copy and then go on without it; the equations, the
    text and the authors' code do not.
 2. λE is rounded up, as in the authors' code, for the second leg and for the third; the first has
    what is left. Each leg has an optimizer of its own, where the authors' SGD has no state.
 3. Round 1, when no model comes from anywhere, is the base's, as in the authors' code.
 4. "The previous hospital" does not exist for FedAvg; here it is drawn anew in every round, so that
    nobody gets itself and nobody is drawn twice. The authors' code means to, and fails to.
 5. RandRewind (`rewind.partner`) draws i in the same way. The authors' code always takes client 0.
 6. With prototypes, hospital i trains the model with its own masks and prototypes, on the images
    of its own task, and sends it back without prototypes. Neither the thesis nor any code says how.
    A mask for the classes of both would tell each hospital what the other has seen.

The hospital's half: learning/learners/fedrewind.py, or that of the base or `learner`.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Annotated, Literal

from flwr.app import ArrayRecord

from strategies.cwt import CWT
from strategies.engine.state import Model, State
from strategies.engine.strategy import Strategy
from strategies.engine.topology import GLOBAL, derangement
from strategies.engine.visit import Visit
from strategies.fedavg import FedAvg
from strategies.fedspace import FedSpace
from strategies.protocol.declared import Share, condition, declare
from strategies.protocol.parcel import Layout
from strategies.protocol.settings import Settings, require, rng_for
from strategies.rwt import RWT

BASES: dict[str, type[Strategy]] = {
    "cwt": CWT,
    "rwt": RWT,
    "fedavg": FedAvg,
    "fedspace": FedSpace,
}


@declare
class RewindSettings:
    """What is rewound, how far and where to: of the keys `rewind.*`."""

    base: Literal["cwt", "rwt", "fedavg", "fedspace"]
    fraction: Annotated[Share, condition(lambda λ: λ < 0.5, "0 or more, and below 0.5")]
    partner: Literal["previous", "random"]
    batch_norm: Literal["train", "reference"]

    def epochs(self, total: int) -> int:
        """Those of the rewind leg, out of a visit's: λE, rounded up."""
        # 0.07 · 100 is 7.000000000000001 in floating point.
        return ceil(round(self.fraction * total, 9))


class FedRewind(Strategy):
    """The base's one hop of a round, then back, and there again."""

    needs_rounds = "on every visit a model also goes back, and would wait twice more"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.rewind = settings.section("rewind", RewindSettings)
        self.base = BASES[self.rewind.base](settings)
        self.reads_models = self.base.reads_models
        self.averages = isinstance(self.base, FedAvg)
        self.learner = "fedrewind-averaged" if self.averages else "fedrewind"
        if self.base.learner != "plain":
            mode, self.learner = self.rewind.batch_norm, self.base.learner
            allowed = f"train with the learner '{self.learner}', which has no other mode"
            require(mode == "train", "rewind.batch-norm", mode, allowed)
        total = settings.train.epochs
        self.epochs = self.rewind.epochs(total)
        require(
            2 * self.epochs < total,
            "rewind.fraction",
            self.rewind.fraction,
            f"0, or so small that train.epochs = {total} leaves an epoch before two legs of "
            f"{self.epochs}: take more epochs, 3 at least",
        )

    def plan(self, state: State) -> list[Visit]:
        """Eq. 4.8 from the inside out."""
        plain = state.round == 1 or not self.epochs
        if state.hop == (1 if plain else 3):
            return []
        if state.hop == 0:
            visits = [replace(v, learner=self.learner) for v in self.base.plan(state)]
            if plain:
                return visits
            epochs = self.settings.train.epochs - 2 * self.epochs
            return [replace(visit, epochs=epochs, test=False) for visit in visits]
        if state.hop == 1:
            away = self._away(state).items()
            rewound = {"epochs": self.epochs, "verb": "train.rewind", "leg": 2}
            return [self.visit(hospital, model, **rewound) for hospital, model in away]
        return [
            self.visit(model.previous, name, epochs=self.epochs, leg=3, test=self.averages)
            for name, model in state.models.items()
            if model.previous
        ]

    def kinds(self) -> list[Visit]:
        """The base's visits, and two shorter legs."""
        forth = [replace(visit, learner=self.learner) for visit in self.base.kinds()]
        if not self.epochs:
            return forth
        back = self.visit("", "", epochs=self.epochs, verb="train.rewind", leg=2)
        return [*forth, back, replace(back, verb="train", leg=3, test=self.averages)]

    def _away(self, state: State) -> dict[str, str]:
        """The models that are rewound at each hospital."""
        if self.rewind.partner == "previous" and not self.averages:
            return {model.previous: name for name, model in state.models.items()}
        places = sorted(model.place for model in state.models.values() if model.place != GLOBAL)
        drawn = derangement(places, rng_for(self.settings.seed, "rewind", state.round))
        models = state.models_at
        return {hospital: models[place] for hospital, place in drawn.items()}

    def start(self, state: State, newcomers: Mapping[str, Model]) -> None:
        """As the base does."""
        self.base.start(state, newcomers)

    def arrived(self, state: State, visit: Visit, trained: Model | None) -> None:
        """As the base does."""
        self.base.arrived(state, visit, trained)

    def check_memory(self, memory: ArrayRecord, layout: Layout) -> None:
        """As the base does."""
        self.base.check_memory(memory, layout)

    def finish_round(self, state: State) -> None:
        """As the base does."""
        self.base.finish_round(state)

    def holders(self, state: State) -> Mapping[str, str]:
        """As the base does."""
        return self.base.holders(state)
