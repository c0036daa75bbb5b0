"""FedRewind: during a visit a model may go back to its previous hospital for some epochs.

Palazzo et al., "FedRewind: Rewinding Continual Model Exchange for Decentralized Federated
Learning", arXiv:2411.09842; thesis, section 4.2. It changes the visits of another method, its base.
At round t the base hands hospital i's model to hospital j. The visit then has three hops:

    M_j^t = Train_{D_j, λE}( Train_{D_i, λE}( Train_{D_j, (1−2λ)E}( M_i^{t−1} ) ) )       (Eq. 4.8)

The model travels from j to i, which trains it on its own images, and back to j. With FedAvg or
FedSpace as the base, every hospital starts from the average, and i is another hospital (Eq. 4.10).
With FedSpace, or a `learner` such as PASS, all legs minimise the same objective (thesis, 4.2.4).

Deviations:
 1. Algorithms 2 and 3 of the thesis train i's copy and then discard it. The equations, the text and
    the authors' code keep it, and so does this code.
 2. The second and the third leg have λE epochs each, rounded up as in the authors' code. The first
    leg has the rest. Each leg has a fresh optimizer (`train.optimizer-state`); the authors' SGD
    has no state.
 3. In round 1 no model comes from another hospital: it is a round of the base, as in the authors'
    code.
 4. FedAvg has no "previous hospital". Here it is drawn in every round: no hospital gets itself, and
    none is drawn twice. The authors' code intends the same, and fails. A copy that its hospital
    has not trained, because the visit failed, is not rewound and not averaged.
 5. RandRewind (`rewind.partner`) draws i in the same way. The authors' code always takes client 0.
 6. With prototypes, hospital i trains the model with its own masks and prototypes, on the images
    of its own task, and returns it without prototypes. Neither the thesis nor any code defines
    this. A mask for the classes of both hospitals would show each the classes of the other.

The hospital's half: learning/learners/fedrewind.py, or the learner of the base or the setting
`learner`.
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
from strategies.fedavg import FedAvg, trained_copies
from strategies.fedspace import FedSpace
from strategies.protocol.declared import Share, condition, declare
from strategies.protocol.records import Layout
from strategies.protocol.settings import Settings, SettingsError, require, rng_for
from strategies.protocol.text import amount
from strategies.rwt import RWT

BASES: dict[str, type[Strategy]] = {
    "cwt": CWT,
    "rwt": RWT,
    "fedavg": FedAvg,
    "fedspace": FedSpace,
}


@declare
class RewindSettings:
    """The base, the share of epochs and the partner of the rewind leg: the keys `rewind.*`."""

    base: Annotated[str, condition(BASES.__contains__, f"one of {', '.join(BASES)}")]
    fraction: Annotated[Share, condition(lambda λ: λ < 0.5, "0 or more, and below 0.5")]
    partner: Literal["previous", "random"]
    batch_norm: Literal["train", "reference"]

    def epochs(self, total: int) -> int:
        """The epochs of the rewind leg, λE rounded up, where `total` is E."""
        # 0.07 · 100 is 7.000000000000001 in floating point.
        return ceil(round(self.fraction * total, 9))


class FedRewind(Strategy):
    """Three hops a round: the base's hop, the rewind leg, and the return."""

    needs_rounds = "on every visit a model also goes back, and would wait two more times"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.rewind = settings.section("rewind", RewindSettings)
        self.base = BASES[self.rewind.base](settings)
        self.reads_models = self.base.reads_models
        self.begins_at_home = self.base.begins_at_home
        self.averages = isinstance(self.base, FedAvg)
        self.learner = "fedrewind-averaged" if self.averages else "fedrewind"
        if self.base.learner != "plain":
            mode, self.learner = self.rewind.batch_norm, self.base.learner
            allowed = f"train with the learner '{self.learner}', which has no other mode"
            require(mode == "train", "rewind.batch-norm", mode, allowed)
        total = settings.train.epochs
        self.epochs = self.rewind.epochs(total)
        if 2 * self.epochs >= total:
            fraction = self.rewind.fraction
            enough = ceil(round(2 / (1 - 2 * fraction), 9))  # λE is rounded up by less than 1
            lower = "lower rewind.fraction" if total > 2 else "rewind.fraction to 0"
            raise SettingsError(
                f"With train.epochs = {total}, two rewind legs of {amount(self.epochs, 'epoch')} "
                f"(rewind.fraction = {fraction:g}) leave no epoch for the visit: set train.epochs "
                f"to {enough} or more, or {lower}."
            )

    def plan(self, state: State) -> list[Visit]:
        """The visits of Eq. 4.8, one hop for each training, innermost first."""
        plain = state.round == 1 or not self.epochs
        if state.hop == (1 if plain else 3):
            return []
        if state.hop == 0:
            visits = [replace(v, learner=self.learner) for v in self.base.plan(state)]
            if plain:
                return visits
            epochs = self.settings.train.epochs - 2 * self.epochs
            return [replace(visit, epochs=epochs, test=False) for visit in visits]
        # A copy that its hospital has not trained is still the average: nothing to rewind.
        models = trained_copies(state) if self.averages else state.models
        if state.hop == 1:
            away = self._rewound_models(state).items()
            rewound = {"epochs": self.epochs, "verb": "train.rewind", "leg": 2}
            return [
                self.visit(hospital, name, **rewound) for hospital, name in away if name in models
            ]
        return [
            self.visit(model.previous, name, epochs=self.epochs, leg=3, test=self.averages)
            for name, model in models.items()
            if model.previous
        ]

    def kinds(self) -> list[Visit]:
        """The base's visits, and two shorter legs."""
        forth = [replace(visit, learner=self.learner) for visit in self.base.kinds()]
        if not self.epochs:
            return forth
        back = self.visit("", "", epochs=self.epochs, verb="train.rewind", leg=2)
        return [*forth, back, replace(back, verb="train", leg=3, test=self.averages)]

    def _rewound_models(self, state: State) -> dict[str, str]:
        """The model that each hospital rewinds, by hospital."""
        if self.rewind.partner == "previous" and not self.averages:
            return {model.previous: name for name, model in state.models.items()}
        places = sorted(model.place for model in state.models.values() if model.place != GLOBAL)
        drawn = derangement(places, rng_for(self.settings.seed, "rewind", state.round))
        models = state.models_at
        return {hospital: models[place] for hospital, place in drawn.items()}

    def start(self, state: State, newcomers: Mapping[str, Model]) -> None:
        """Ask the base method."""
        self.base.start(state, newcomers)

    def arrived(self, state: State, visit: Visit, trained: Model | None) -> None:
        """Ask the base method. A rewind leg does not change the weight of a copy in an average."""
        own = state.models[visit.model].num_examples
        if trained and visit.leg == 2 and own:
            trained = replace(trained, num_examples=own)
        self.base.arrived(state, visit, trained)

    def check_memory(self, memory: ArrayRecord, layout: Layout) -> None:
        """Ask the base method."""
        self.base.check_memory(memory, layout)

    def finish_round(self, state: State) -> None:
        """Ask the base method."""
        self.base.finish_round(state)

    def holders(self, state: State) -> Mapping[str, str]:
        """Ask the base method."""
        return self.base.holders(state)
