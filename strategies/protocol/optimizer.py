"""The optimizer's state that travels with a model (`train.optimizer-state`): a record of a parcel.

For each trained parameter w of the model, float32: `<w>.exp_avg` and `<w>.exp_avg_sq` in the shape
of w, the running means m of its gradients and v of their squares; `<w>.step`, a scalar, the number
of steps (Adam, Kingma and Ba, arXiv:1412.6980, Algorithm 1). A parameter may have no state.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from strategies.protocol.archive import values_of
from strategies.protocol.parcel import HEAD, is_sealed
from strategies.protocol.records import Layout, ParcelError, UselessError, layout_of
from strategies.protocol.soundness import LARGEST

PARTS = ("step", "exp_avg", "exp_avg_sq")
# |m| <= 7.3 √v for all gradients, by the Cauchy-Schwarz inequality with β₁ = 0.9, β₂ = 0.999:
# m² <= (1 − β₁)² / ((1 − β₂) (1 − β₁²/β₂)) v = 52.9 v. So a state that passes moves no weight by
# more than 8 learning rates in a step.
MOST = 8.0


def check_optimizer(record: ArrayRecord, layout: Layout) -> None:
    """Refuse a record, which has passed `check_arrays`, that is not the state for a model.

    Of a sealed record only the size is known: at most four times that of the sealed model, whose
    numbers may have 16 bits.

    Raises:
        UselessError: No gradients lead to its numbers. Any other refusal is a ParcelError.
    """
    if is_sealed(record):
        size, model = len(record["sealed"].data), math.prod(layout.get("sealed", ("", (0,)))[1])
        if size > 4 * model + HEAD:
            raise ParcelError(f"The sealed optimizer state has {size} bytes, its model {model}.")
        return
    found = layout_of(record)
    wanted = {
        f"{name}.{part}": ("float32", layout[name][1] if part != "step" else ())
        for name in layout.keys() & {key.rpartition(".")[0] for key in found}
        for part in PARTS
    }
    if found != wanted or not found:
        odd = sorted(dict(found.items() ^ wanted.items()))
        raise ParcelError(f"The optimizer state does not fit its model: {', '.join(odd):.200}.")
    if flaw := flaw_of_state({name: values_of(array) for name, array in record.items()}):
        raise UselessError(flaw)


def flaw_of_state(arrays: Mapping[str, NDArray[Any]]) -> str:
    """The flaw in the numbers of a state, as a sentence; empty if there is none."""
    for name in sorted({key.rpartition(".")[0] for key in arrays}):
        step, m, v = (arrays[f"{name}.{part}"] for part in PARTS)
        bounded = 0 <= step < math.inf and bool(((v >= 0) & (v <= LARGEST**2)).all())
        if not bounded or not (np.abs(m) <= MOST * np.sqrt(v) + 1e-15).all():  # v may round to 0
            return f"No gradients lead to the optimizer state of '{name}'."
    return ""
