"""FedSpace: FedAvg with prototypes, which represent the classes of other hospitals.

Shenaj et al., "Asynchronous federated continual learning", CVPR workshops 2023, arXiv:2304.03626.
Hospitals are at different tasks. Hospital j sends its model w_j, the mean feature p_jc of each
class c of its present task (n_jc images), and the spread r_j of its features. The server computes

    p_c ← (1 − a) p_c + a Σ_j n_jc p_jc / Σ_j n_jc        r = Σ_j n_j r_j / Σ_j n_j,  n_j = Σ_c n_jc
    w ← b Σ_j N_j w_j / Σ_j N_j + (1 − b) w

and sends w, p_c and r to the hospitals of the next round. a is `fedspace.ema`, or 1 for the first
p_c of a class. b is `fedspace.mix`, and N_j is the number of training images.

Deviations:
 1. Means are weighted by n_jc, and radii by n_j. The authors' code weights both by N_j.
 2. The server keeps p_c while no hospital sends one. The authors' code drops it, and starts again.
 3. The authors' code has a fractal pre-training without effect. It is left out.

FedAvg with PASS, its baseline, is `strategy = "fedavg"` with `learner = "pass"`. The hospital's
half: learning/learners/prototypes.py.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from strategies.engine.state import Model, State
from strategies.engine.topology import GLOBAL
from strategies.engine.visit import Visit
from strategies.fedavg import FedAvg, cast
from strategies.protocol.declared import ShareAboveZero, declare
from strategies.protocol.parcel import pack
from strategies.protocol.prototypes import check_prototypes
from strategies.protocol.records import Layout, ParcelError
from strategies.protocol.settings import Settings
from strategies.protocol.soundness import LARGEST

Arrays = dict[str, NDArray[Any]]


@declare
class FedSpaceSettings:
    """The keys `fedspace.*` that the method reads; the learner reads the others."""

    ema: ShareAboveZero  # a
    mix: ShareAboveZero  # b


class FedSpace(FedAvg):
    """FedAvg of models and prototypes; each average is mixed with the previous global model."""

    learner = "fedspace"
    needs_fresh_optimizer = "which mixes each average with the model before"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.own = settings.section("fedspace", FedSpaceSettings)

    def check_memory(self, memory: ArrayRecord, layout: Layout) -> None:
        """Refuse (ParcelError) a memory that is not the prototypes of its model."""
        _, shape = layout.get("head.weight", ("", ()))
        if len(shape) != 2:
            raise ParcelError("There are prototypes beside a model without a matrix 'head.weight'.")
        check_prototypes(memory, shape[0] // 4, shape[1])

    def arrived(self, state: State, visit: Visit, trained: Model | None) -> None:
        """Keep a hospital's prototypes at the server: its model may go to another hospital."""
        if trained is not None:
            parcel, label = state.shelf.get(trained.parcel), state.shelf.label(trained.parcel)
            if sent := parcel.array_records.get("memory"):
                state.prototypes[visit.hospital] = state.shelf.put(pack({"memory": sent}, label))
            records = {"model": parcel.array_records["model"], **self.server_prototypes(state)}
            trained = replace(trained, parcel=state.shelf.put(pack(records, label)))
        super().arrived(state, visit, trained)

    def server_prototypes(self, state: State) -> dict[str, ArrayRecord]:
        """The record `memory` with the server's prototypes, if there are any."""
        kept = state.shelf.get(state.models[GLOBAL].parcel).array_records.get("memory")
        return {"memory": kept} if kept else {}

    def merge(self, state: State, trained: Sequence[Model]) -> dict[str, ArrayRecord]:
        """The average mixed with the previous model, and the prototypes."""
        mean, b = super().merge(state, trained)["model"], self.own.mix
        before = state.shelf.arrays(state.models[GLOBAL].parcel)
        mixed = {
            name: cast(b * mean[name].numpy() + (1 - b) * array.numpy(), array.dtype)
            for name, array in before.items()
        }
        return {"model": ArrayRecord(mixed), **self._prototypes(state)}

    def _prototypes(self, state: State) -> dict[str, ArrayRecord]:
        """The server's prototypes, updated with those that were sent in this round."""
        names = sorted(state.prototypes.items())
        sent = [_arrays(state.shelf.arrays(name, "memory")) for _, name in names]
        if not sent:
            return self.server_prototypes(state)
        old = self.server_prototypes(state).get("memory")
        return {"memory": _record(merge(_arrays(old) if old else None, sent, self.own.ema))}

    def finish_round(self, state: State) -> None:
        """Average models and prototypes."""
        super().finish_round(state)
        state.prototypes = {}


def merge(old: Arrays | None, sent: Sequence[Arrays], a: float) -> Arrays:
    """The server's next prototypes, from its present ones and those of hospitals, with weight `a`.

    Their arrays are those of strategies/protocol/prototypes.py; None before the first ones.
    """
    counts, means, radii = (  # [hospitals, K], [hospitals, K, d], [hospitals]
        np.stack([each[name] for each in sent], dtype="f8")
        for name in ("counts", "means", "radius")
    )
    total = counts.sum(axis=0)  # [K]
    radius = np.average(radii, weights=counts.sum(axis=1))
    mean = (counts[:, :, None] * means).sum(axis=0) / np.maximum(total, 1)[:, None]
    if old is not None:
        known, here = old["counts"][:, None] > 0, total[:, None] > 0
        mean = np.where(known & here, (1 - a) * old["means"] + a * mean, mean)
        mean, total = np.where(here, mean, old["means"]), np.where(total, total, old["counts"])
    # Hospitals refuse a larger number in a memory.
    return {"means": mean, "counts": np.minimum(total, LARGEST), "radius": radius}


def _arrays(record: ArrayRecord) -> Arrays:
    return {name: array.numpy() for name, array in record.items()}


def _record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(each, "f4")) for name, each in arrays.items()})
