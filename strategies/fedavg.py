"""FedAvg: everybody trains the same global model, the server averages what comes back.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data",
AISTATS 2017, arXiv:1602.05629, Algorithm 1. At round t, with n_j training images at hospital j:

    M_j^t = Train_{D_j, E}(M^{t-1})        M^t = Σ_j n_j M_j^t / Σ_j n_j

The average is Flower's; it needs a server that opens the parcels.

Deviations:
 1. Every hospital takes part in every round (C = 1); those that fail are left out of the average.
 2. The running statistics of BatchNorm are averaged like the weights, its counters too (rounded).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
from numpy.typing import NDArray

from strategies.engine.courier import Delivery
from strategies.engine.peer import Held, Leg, PeerStrategy, RunError
from strategies.engine.topology import GLOBAL, star
from strategies.protocol.parcel import check_parcel, pack


class FedAvg(PeerStrategy):
    """One global model; its lineage is called `global`."""

    reads_models = True
    tests_after_visit = True

    def plan(self, server_round: int, hop: int, hospitals: Sequence[str]) -> Leg:
        """Everybody trains the global model."""
        return Leg(star(hospitals), self.settings.train.epochs)

    def enrol(self) -> list[Delivery]:
        """Start from the first hospital's model; all have derived the same one from the seed."""
        failed = super().enrol()
        if GLOBAL not in self.held and self.hospitals:
            networks = {check_parcel(held.parcel).architecture for held in self.held.values()}
            if len(networks) > 1:
                raise RunError(
                    f"The strategy '{self.settings.strategy}' averages models: all hospitals must "
                    "have the same 'model' and 'image-size'."
                )
            first = self.held[self.hospitals[0]]
            self.held[GLOBAL] = Held(GLOBAL, self._global_parcel(first, _model(first), 0))
        self.held = {GLOBAL: self.held[GLOBAL]} if self.held else {}
        return failed

    def finish_round(self, server_round: int) -> None:
        """Average the models that were trained in this round, if there are any."""
        trained = [held for _, held in sorted(self.held.items()) if held.round == server_round]
        if trained:
            parcel = self._global_parcel(trained[0], average(trained), server_round)
            self.held = {GLOBAL: Held(GLOBAL, parcel, server_round)}
        else:  # everybody is still at the model that was sent
            self.held = {GLOBAL: next(iter(self.held.values()))}

    def _global_parcel(self, like: Held, model: ArrayRecord, server_round: int) -> RecordDict:
        label = replace(check_parcel(like.parcel), lineage=GLOBAL, round=server_round, visited=[])
        return pack({"model": model}, label)


def average(trained: Sequence[Held]) -> ArrayRecord:
    """The mean of the models weighted by numbers of training images, in the models' own dtypes."""
    records = [
        RecordDict({"model": _model(held), "metrics": MetricRecord({"n": held.num_examples})})
        for held in trained
    ]
    mean = aggregate_arrayrecords(records, "n")
    # Flower's average of whole numbers is a fraction; the next hospital expects what it sent.
    return ArrayRecord(
        {name: _cast(mean[name].numpy(), array.dtype) for name, array in _model(trained[0]).items()}
    )


def _cast(array: NDArray[Any], dtype: str) -> Array:
    whole = not np.issubdtype(dtype, np.floating)
    return Array(np.asarray(array.round() if whole else array, dtype))


def _model(held: Held) -> ArrayRecord:
    return held.parcel.array_records["model"]
