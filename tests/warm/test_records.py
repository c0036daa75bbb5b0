"""Records between two processes of one owner."""

import json
from io import BytesIO
from socket import socketpair
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from strategies.protocol.records import ParcelError
from warm import records
from warm.records import ARRAYS, HEAD, receive, write

FACTS: list[Any] = [
    "train",
    60.0,
    [["a", 1], ["b", 1.0], ["c", True], ["bytes", b"\xff"], ["d", "ä\x00"]],
]


def handed_over(facts, content):
    ours, theirs = socketpair()
    with ours, theirs, theirs.makefile("rb") as file:
        write(ours.sendall, facts, content)
        return receive(file)


def written(head, data=b"") -> BytesIO:
    text = json.dumps(head).encode()
    return BytesIO(len(text).to_bytes(8, "big") + text + data)


def test_what_comes_out_is_what_went_in():
    arrays = {"w": Array(np.arange(6.0).reshape(2, 3)), "empty": Array(np.zeros((0, 2), "u1"))}
    arrays["nonsense"] = Array("no type", (-1,), "no kind", b"no array")
    values: dict[str, Any] = {
        "bytes": b"\x00\xff",
        "int": 1,
        "float": 1.0,
        "bool": True,
        "text": "ä",
        "none": [],
    }
    values |= {"ints": [1, 2], "floats": [1.0], "bools": [True], "texts": ["a"], "all": [b"", b"b"]}
    metrics: dict[str, Any] = {"int": 2**60, "float": 0.1, "infinite": float("inf"), "list": [1.5]}
    content = RecordDict({"x/model": ArrayRecord(arrays), "config": ConfigRecord(values)})
    content["metrics"], content["none"] = MetricRecord(metrics), ArrayRecord()
    facts, there = handed_over(FACTS, content)
    assert (facts, there) == (FACTS, content)
    assert list(there) == list(content)
    for key, value in values.items():
        assert repr(there["config"][key]) == repr(value)  # 1 is not 1.0 is not True
    assert [type(value) for _, value in facts[2]] == [type(value) for _, value in FACTS[2]]


@pytest.mark.parametrize("size", [ARRAYS + 1, -1])
def test_a_size_is_judged_before_anything_is_read(size):
    head = [[], [["model", "arrays", [["w", ["float32", [1], "numpy.ndarray", size]]]]]]
    with pytest.raises(ValueError, match="announced"):
        receive(written(head))
    with pytest.raises(ValueError, match="announced"):
        receive(BytesIO((HEAD + 1).to_bytes(8, "big")))


def test_what_is_too_large_is_not_sent(monkeypatch):
    monkeypatch.setattr(records, "ARRAYS", 100)
    with pytest.raises(ParcelError, match="too large"):
        handed_over([], RecordDict({"model": ArrayRecord({"w": Array(np.zeros(100))})}))


def test_a_message_that_ends_early_is_an_error():
    head = [[], [["model", "arrays", [["w", ["uint8", [9], "numpy.ndarray", 9]]]]]]
    for file in (written(head, b"short"), BytesIO(b"\x00"), BytesIO((99).to_bytes(8, "big"))):
        with pytest.raises(EOFError):
            receive(file)
