"""Embeddings that come from a hospital are checked before anything takes them in."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from strategies.protocol.embeddings import MOST, check_embeddings
from strategies.protocol.records import ParcelError


def record(values=None, labels=None, **other):
    values = np.zeros((3, 1, 256), np.float32) if values is None else values
    labels = np.array([0, 1, 1]) if labels is None else labels
    arrays = {"values": values, "labels": labels, **other}
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def test_embeddings_of_each_kind_pass():
    check_embeddings(record(), "sampled", 2)
    check_embeddings(record(), "ebr", 2)
    check_embeddings(record(np.zeros((3, 2, 256), np.float32)), "stats", 2)


NEGATIVE = np.zeros((3, 2, 256), np.float32)
NEGATIVE[0, 1, 0] = -1
INFINITE = np.zeros((3, 1, 256), np.float32)
INFINITE[0, 0, 0] = np.inf
HUGE = np.full((3, 1, 256), 3.4e38, np.float32)
WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "two parts": ("sampled", {"values": np.zeros((3, 2, 256), np.float32)}),
    "one part": ("stats", {}),
    "no image": (
        "sampled",
        {"values": np.zeros((0, 1, 256), np.float32), "labels": np.zeros(0, int)},
    ),
    "another length": ("sampled", {"values": np.zeros((3, 1, 255), np.float32)}),
    "a label too few": ("sampled", {"labels": np.array([0, 1])}),
    "labels of a wrong shape": ("sampled", {"labels": np.array(0)}),
    "wide floats": ("sampled", {"values": np.zeros((3, 1, 256))}),
    "a strange label": ("sampled", {"labels": np.array([0, 1, 2])}),
    "a negative label": ("sampled", {"labels": np.array([0, 1, -1])}),
    "a negative variance": ("stats", {"values": NEGATIVE}),
    "infinity": ("sampled", {"values": INFINITE}),
    "numbers that no training survives": ("sampled", {"values": HUGE}),
    "another array": ("sampled", {"images": np.zeros(3)}),
    "too many": (
        "sampled",
        {"values": np.zeros((MOST + 1, 1, 256), np.float32), "labels": np.zeros(MOST + 1, int)},
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_anything_else_is_refused(case):
    kind, changes = WRONG[case]
    with pytest.raises(ParcelError, match="mbeddings"):
        check_embeddings(record(**changes), kind, 2)
