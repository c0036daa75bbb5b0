"""Prototypes: class means of features, as the `memory` of a parcel (strategies/fedspace.py).

Its arrays are float32: `means` [K, d]; `counts` [K], the number of images behind each mean (0 = no
prototype); `radius`, a scalar, the spread of features around the means of their classes.
"""

import numpy as np
from flwr.app import ArrayRecord

from strategies.protocol.records import ParcelError, check_layout

MOST = 1e9  # images of a class


def check_prototypes(record: ArrayRecord, classes: int, width: int) -> None:
    """Refuse (ParcelError) a record that is not prototypes of K classes with d = `width` features.

    The record has passed `check_arrays`.
    """
    shapes = {"means": (classes, width), "counts": (classes,), "radius": ()}
    check_layout("prototypes", record, {name: ("float32", each) for name, each in shapes.items()})
    means, counts, radius = (record[name].numpy() for name in shapes)
    if not np.isfinite(means).all():
        raise ParcelError("Prototypes are not finite.")
    usable = ((counts >= 0) & (counts <= MOST)).all() and counts.any()
    if not usable or not 0 <= radius < np.inf:
        raise ParcelError(
            f"The numbers of images behind prototypes must be from 0 to {MOST:.0f}, one above 0, "
            "and their radius 0 or more."
        )
