"""Embeddings that leave a hospital (strategies/fil_ver.py): a record of a parcel.

Its array `values` is float32 [n, P, 256]: z = µ + σ ε for the kind `sampled`, f(x) for `ebr`, and µ
and σ² for `stats`. Its array `labels` is int64 [n], indices into the classes.
"""

import numpy as np
from flwr.app import ArrayRecord

from strategies.protocol.records import ParcelError, check_layout
from strategies.protocol.soundness import LARGEST

LENGTH = 256  # of an embedding
PARTS = {"sampled": 1, "ebr": 1, "stats": 2}  # by the kind of embeddings
MOST = 200_000  # in one record


def check_embeddings(record: ArrayRecord, kind: str, classes: int) -> None:
    """Refuse (ParcelError) a record that is not embeddings; it has passed `check_arrays`."""
    count = record["labels"].shape[0] if "labels" in record and record["labels"].shape else 0
    values = ("float32", (count, PARTS[kind], LENGTH))
    check_layout("embeddings", record, {"values": values, "labels": ("int64", (count,))})
    if not 0 < count <= MOST:
        raise ParcelError(f"There are {count} embeddings; there must be 1 to {MOST}.")
    numbers, labels = record["values"].numpy(), record["labels"].numpy()
    if not (np.abs(numbers) <= LARGEST).all() or (kind == "stats" and (numbers[:, 1] < 0).any()):
        raise ParcelError(f"Embeddings are beyond {LARGEST:,.0f}, or have negative variances.")
    if not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ParcelError(f"Embeddings have labels outside of 0 to {classes - 1}.")
