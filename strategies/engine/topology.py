"""Routes of parcels: pure functions on hospital names.

A `Route` maps each receiver to the source of its parcel: a hospital, or `GLOBAL` where a server
keeps one model for all. Random numbers come from a generator, so the same seed gives the same
route.
"""

from collections.abc import Sequence

import numpy as np

Route = dict[str, str]

GLOBAL = "global"


def stay(hospitals: Sequence[str]) -> Route:
    """Each hospital keeps its own parcel."""
    return {hospital: hospital for hospital in hospitals}


def ring(hospitals: Sequence[str]) -> Route:
    """Each hospital receives from the one before it; the first one from the last."""
    return {hospital: hospitals[index - 1] for index, hospital in enumerate(hospitals)}


def random_ring(hospitals: Sequence[str], rng: np.random.Generator) -> Route:
    """One cycle through all hospitals, in a random order."""
    return ring([hospitals[index] for index in rng.permutation(len(hospitals))])


def derangement(hospitals: Sequence[str], rng: np.random.Generator) -> Route:
    """A uniformly random permutation in which no hospital keeps its own parcel.

    It may have several cycles, unlike `random_ring`. A single hospital keeps its own parcel.
    """
    if len(hospitals) < 2:
        return stay(hospitals)
    while True:  # about e = 2.7 draws, for any number of hospitals
        order = rng.permutation(len(hospitals))
        if not np.any(order == np.arange(len(hospitals))):
            return {hospital: hospitals[i] for hospital, i in zip(hospitals, order, strict=True)}
