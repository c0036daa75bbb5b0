"""FedAvg: all hospitals train the same global model, and the server averages their copies.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data",
AISTATS 2017, arXiv:1602.05629, Algorithm 1. At round t, with n_j training images at hospital j:

    M_j^t = Train_{D_j, E}(M^{t-1})        M^t = Σ_j n_j M_j^t / Σ_j n_j

With `fedavg.weights = "equal"` every n_j is 1, as in the code of FedBN and of FedER: a hospital
with few images then counts as much as any other. Flower computes the average, so the server must
be able to open the parcels.

Deviations:
 1. In each round `fedavg.sample` hospitals are drawn from those that are present; 0 = all (C = 1).
    The average leaves out hospitals that fail, or have no image of their task.
 2. Running statistics and counters of BatchNorm are averaged like weights; counters are rounded.
    So are Adam's moments and steps, if the optimizer's state travels.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import WARNING
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.common import log
from numpy.typing import NDArray

from strategies.engine.state import Model, State
from strategies.engine.strategy import RunError, Strategy, commonest_model
from strategies.engine.topology import GLOBAL
from strategies.engine.visit import Visit
from strategies.protocol.declared import Count, declare
from strategies.protocol.learners import WITH_MEMORY
from strategies.protocol.parcel import pack
from strategies.protocol.records import layout_of
from strategies.protocol.settings import Settings, require, rng_for


@declare
class FedAvgSettings:
    """Settings of all methods that average: the keys `fedavg.*`."""

    weights: Literal["images", "equal"]
    sample: Count


class FedAvg(Strategy):
    """One global model; during a round each hospital has a copy under the hospital's name."""

    reads_models = True
    enrols_by_plan = True
    needs_rounds = "it averages the models of all hospitals, and so waits for each of them"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        allowed = (
            f"one without a memory that travels, since strategy '{settings.strategy}' averages "
            "models: for this learner choose standalone, or a strategy that hands models on (rwt)"
        )
        require(settings.learner not in WITH_MEMORY, "learner", settings.learner, allowed)
        allowed = f"one network, since strategy '{settings.strategy}' averages models"
        require(len(settings.networks) == 1, "model", settings.model, allowed)
        averaging = settings.section("fedavg", FedAvgSettings)
        self.equal, self.sample = averaging.weights == "equal", averaging.sample

    def start(self, state: State, newcomers: Mapping[str, Model]) -> None:
        """Start from the first model that most hospitals have sent."""
        if state.models or not newcomers:
            return
        begun = {name: _network_of(state, model) for name, model in newcomers.items()}
        counts = Counter(begun.values()).most_common(2)
        if len(counts) > 1 and counts[0][1] == counts[1][1]:
            raise RunError(
                f"The strategy '{self.settings.strategy}' averages models: all hospitals must have "
                "the same 'model' and 'image-size'."
            )
        alike = [name for name, each in begun.items() if each == counts[0][0]]
        if others := ", ".join(sorted(begun.keys() - alike)):
            log(WARNING, "%s began with other networks; they train that of most hospitals", others)
        _, first = commonest_model(state, {name: newcomers[name] for name in alike})
        state.models[GLOBAL] = build_global(
            state, first, {"model": state.shelf.arrays(first.parcel)}, 0
        )

    def plan(self, state: State) -> list[Visit]:
        """The drawn hospitals train the global model."""
        if state.hop:
            return []
        return [self.visit(hospital, GLOBAL, test=True) for hospital in self.draw_hospitals(state)]

    def kinds(self) -> list[Visit]:
        """The one kind: train the global model, then test it."""
        return [self.visit("", GLOBAL, test=True)]

    def draw_hospitals(self, state: State) -> list[str]:
        """The hospitals that train in this round."""
        present = self.present(state)
        if not 0 < self.sample < len(present):
            return present
        rng = rng_for(self.settings.seed, "sample", state.round)
        chosen = rng.choice(len(present), self.sample, replace=False)
        return [present[k] for k in sorted(chosen)]

    def arrived(self, state: State, visit: Visit, trained: Model | None) -> None:
        """Keep the hospital's copy of the global model until the end of the round."""
        if visit.model != GLOBAL:
            super().arrived(state, visit, trained)
            return
        copy = trained or state.models[GLOBAL]
        state.models[visit.hospital] = replace(copy, place=visit.hospital)

    def finish_round(self, state: State) -> None:
        """Average the copies that their own hospitals have trained, if any."""
        trained = [model for _, model in sorted(trained_copies(state).items())]
        mean = state.models[GLOBAL]
        if trained:
            last = mean.parcel  # no hospital refused it in this round
            mean = build_global(state, trained[0], self.merge(state, trained), state.round)
            mean = replace(mean, good=last)
        state.models = {GLOBAL: mean}

    def merge(self, state: State, trained: Sequence[Model]) -> dict[str, ArrayRecord]:
        """The records of the next global model, from the trained copies."""
        travels = self.settings.train.optimizer_state == "travels"
        names = ["model", "optimizer"] if travels else ["model"]
        return {name: average(state, trained, self.equal, name) for name in names}

    def holders(self, state: State) -> dict[str, str]:
        """The global model, for each hospital that takes part in the round."""
        return dict.fromkeys(self.present(state), GLOBAL)


def trained_copies(state: State) -> dict[str, Model]:
    """The copies that their own hospitals have trained in this round, by hospital.

    The label of an average begins without visits.
    """
    label = state.shelf.label
    return {
        hospital: model
        for hospital, model in state.models.items()
        if hospital in label(model.parcel).visited
    }


def build_global(
    state: State, like: Model, records: Mapping[str, ArrayRecord], server_round: int
) -> Model:
    """A global model with the given records; its other properties are those of model `like`."""
    label = state.shelf.label(like.parcel)
    label = replace(label, lineage=GLOBAL, round=server_round, visited=[], replayed=[], not_own=[])
    return Model(GLOBAL, GLOBAL, state.shelf.put(pack(records, label)), round=server_round)


def average(
    state: State, trained: Sequence[Model], equal: bool, name: str = "model"
) -> ArrayRecord:
    """The mean of a record in its own dtypes, weighted by training images unless `equal`.

    Only records with the arrays that most have count: parameters may lack an optimizer's state.
    """
    # Imported here: a hospital needs this module to check orders, and never averages.
    from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

    sent = [(state.shelf.arrays(each.parcel, name), each.num_examples) for each in trained]
    ((most, _),) = Counter(tuple(sorted(record)) for record, _ in sent).most_common(1)
    sent = [each for each in sent if tuple(sorted(each[0])) == most]
    records = [
        RecordDict({name: record, "metrics": MetricRecord({"n": 1 if equal else count})})
        for record, count in sent
    ]
    mean = aggregate_arrayrecords(records, "n")
    # Flower averages whole numbers to fractions; a hospital expects the dtype that it sent.
    like, _ = sent[0]
    return ArrayRecord({key: cast(mean[key].numpy(), array.dtype) for key, array in like.items()})


def cast(array: NDArray[Any], dtype: str) -> Array:
    """An array in another dtype; values are rounded for a whole-number dtype."""
    whole = not np.issubdtype(dtype, np.floating)
    return Array(np.asarray(array.round() if whole else array, dtype))


def _network_of(state: State, model: Model) -> tuple[object, ...]:
    """The declared network of a model, and the layout of the arrays that came."""
    layout = layout_of(state.shelf.arrays(model.parcel))
    return state.shelf.label(model.parcel).architecture, *sorted(layout.items())
