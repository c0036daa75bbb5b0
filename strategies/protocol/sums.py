"""Sums of features that go round the hospitals (strategies/sums.py): a record of a parcel.

Its arrays are int64, modulo 2^64 (learning/sums.py): `counts` [K], `firsts` [K, d] and `seconds`
[K, d (d + 1) / 2], with K classes and d features.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from flwr.app import ArrayRecord

from strategies.protocol.declared import (
    LEAST_EPSILON,
    MOST_EPSILON,
    Amount,
    Count,
    Delta,
    bounds,
    declare,
    zero_or,
)
from strategies.protocol.records import ParcelError, check_layout
from strategies.protocol.settings import require

WIDEST = 4096  # features
ADD, CLOSE, HOME = 1, 2, 3  # the legs of a ring, as `Order.leg`


@declare
class SumsSettings:
    """The keys `sums.*`."""

    weights: Literal["images", "equal"]
    ridge: Amount  # λ; 0 = by validation
    kappa: Annotated[int, bounds(-1, 1000)]  # κ; -1 = by validation
    dimensions: Annotated[Count, bounds(0, WIDEST)]  # d'
    epsilon: Annotated[float, zero_or(LEAST_EPSILON, MOST_EPSILON)]
    delta: Delta

    def __post_init__(self) -> None:
        noised = self.epsilon > 0
        noise = "with a sums.epsilon above 0"
        weights, because = f"images {noise}", f"above 0 {noise}: the choice would reveal images"
        require(not noised or self.weights == "images", "sums.weights", self.weights, weights)
        require(not noised or self.ridge > 0, "sums.ridge", self.ridge, because)


def check_sums(record: ArrayRecord, classes: int) -> None:
    """Refuse (ParcelError) a record that is not sums of K classes; it has passed `check_arrays`."""
    d = record["firsts"].shape[-1] if "firsts" in record and record["firsts"].shape else 0
    shapes = {"counts": (classes,), "firsts": (classes, d), "seconds": (classes, d * (d + 1) // 2)}
    check_layout("sums", record, {name: ("int64", each) for name, each in shapes.items()})
    if not 0 < d <= WIDEST:
        raise ParcelError(f"Sums have {d} features; they must have 1 to {WIDEST}.")


def ring_of(visited: Sequence[str]) -> list[str]:
    """The visits of the ring that is still open, in order.

    `visited` are all visits of a parcel; a ring closes at the hospital that began it.
    """
    ring: list[str] = []
    for hospital in visited:
        ring = [] if ring and hospital == ring[0] else [*ring, hospital]
    return ring
