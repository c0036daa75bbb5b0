"""Embeddings that leave a hospital (strategies/fil_ver.py): a record of a parcel.

Its array `values` is float32 [n, P, 256]: z = µ + σ ε for the kind `sampled`, f(x) for `ebr`, and µ
and σ² for `stats`. Its array `labels` is int64 [n], indices into the classes.
"""

import numpy as np
from flwr.app import ArrayRecord

from strategies.protocol.records import ParcelError
from strategies.protocol.soundness import LARGEST

LENGTH = 256  # of an embedding
PARTS = {"sampled": 1, "ebr": 1, "stats": 2}  # by the kind of embeddings
MOST = 200_000  # in one record


def check_embeddings(record: ArrayRecord, kind: str, classes: int) -> None:
    """Refuse a record, which has passed `check_arrays`, that is not embeddings of a kind.

    Raises:
        ParcelError: The record is something else.
    """
    if set(record) != {"values", "labels"}:
        raise ParcelError(
            f"Embeddings have the arrays {sorted(record)!s:.200}, not values and labels."
        )
    values, labels = record["values"], record["labels"]
    count = labels.shape[0] if labels.shape else 0
    shapes = (tuple(values.shape), tuple(labels.shape))
    if (
        shapes != ((count, PARTS[kind], LENGTH), (count,))
        or (values.dtype, labels.dtype) != ("float32", "int64")
        or not 0 < count <= MOST
    ):
        raise ParcelError(
            f"Embeddings have {values.dtype} {shapes[0]} values and {labels.dtype} {shapes[1]} "
            f"labels; for '{kind}' they must be float32 [n, {PARTS[kind]}, {LENGTH}] and int64 "
            f"[n], at most {MOST}."
        )
    numbers, own = values.numpy(), labels.numpy()
    if not (np.abs(numbers) <= LARGEST).all() or (kind == "stats" and (numbers[:, 1] < 0).any()):
        raise ParcelError(f"Embeddings are beyond {LARGEST:,.0f}, or have negative variances.")
    if not 0 <= int(own.min()) <= int(own.max()) < classes:
        raise ParcelError(f"Embeddings have labels outside of 0 to {classes - 1}.")
