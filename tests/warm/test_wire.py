"""Records between two processes, the large ones in memory that both share."""

import gc
import os
import threading
from contextlib import contextmanager
from socket import socketpair

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from strategies.protocol.records import size_of
from warm import wire
from warm.wire import FILES, SMALL, Outbox, Wire


def record(value, size=SMALL):
    return ArrayRecord({"weights": Array(np.full(size, value, np.uint8))})


@contextmanager
def ends(outbox=None):
    ours, theirs = socketpair()
    one, other = Wire(ours, outbox), Wire(theirs)
    yield one, other
    one.close()
    other.close()
    if outbox:
        outbox.clear()


@pytest.fixture
def writes(monkeypatch):
    """The records that are written to memory."""
    written, write = [], wire._write

    def noted(each):
        written.append(each)
        return write(each)

    monkeypatch.setattr(wire, "_write", noted)
    return written


def descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_a_large_record_is_written_once(writes):
    large, small = record(7), record(3, 10)
    found = []
    with ends(Outbox()) as (one, other):
        for n in range(3):
            content = RecordDict({"a/model": large, "n": ConfigRecord({"n": n}), "b/model": small})
            one.send(["train", n], content)
            facts, came = other.receive()
            assert facts == ["train", n]
            assert [*came] == [*content]
            found.append(came)
    assert writes == [large]
    assert [each.config_records["n"]["n"] for each in found] == [0, 1, 2]
    assert all((each.array_records["a/model"]["weights"].numpy() == 7).all() for each in found)
    assert all((each.array_records["b/model"]["weights"].numpy() == 3).all() for each in found)
    assert {id(each) for each in found[0].values()}.isdisjoint(map(id, found[1].values()))


def test_a_record_that_goes_to_one_process_alone_is_not_kept(writes):
    with ends() as (one, other):
        for _ in range(2):
            one.send([], RecordDict({"model": record(7)}))
            assert (other.receive()[1].array_records["model"]["weights"].numpy() == 7).all()
    assert len(writes) == 2


def test_what_was_sent_long_ago_is_sent_again(writes, monkeypatch):
    monkeypatch.setattr(wire, "KEPT", (2 * SMALL + 1000, 256))
    sent = [record(n) for n in range(4)]
    with ends(Outbox()) as (one, other):
        for n in (0, 1, 2, 3, 3, 0):
            one.send([], RecordDict({"model": sent[n]}))
            came = other.receive()[1].array_records["model"]["weights"].numpy()
            assert (came == n).all()
    assert writes == [*sent, sent[0]]


SIZE = size_of(record(0))


@pytest.mark.parametrize("kept", [(2 * SIZE, 9), (9 * SIZE, 2)])
def test_the_oldest_go_first(writes, kept):
    outbox, sent = Outbox(), [record(n) for n in range(3)]
    for n in (0, 1, 2, 0):  # so the second is the oldest
        outbox.place(sent[n])
    outbox.clear(*kept)
    assert writes == sent
    for n in (0, 2, 1):
        outbox.place(sent[n])
    assert writes == [*sent, sent[1]]
    outbox.clear()


def test_what_does_not_fit_into_one_message_goes_through_the_socket():
    content = RecordDict({str(n): record(n % 256) for n in range(FILES + 3)})
    with ends(Outbox()) as (one, other):
        sender = threading.Thread(target=one.send, args=([], content))
        sender.start()
        _, came = other.receive()
        sender.join()
    assert [*came] == [*content]
    assert all((came[name]["weights"].numpy() == int(name) % 256).all() for name in came)


def test_no_descriptor_is_left_open():
    before = descriptors()
    with ends(Outbox()) as (one, other):
        open_ = descriptors()
        for n in range(5):
            one.send([], RecordDict({"a": record(n), "b": record(n)}))
            other.receive()
            other.send([], RecordDict({"a": record(n)}))
            one.receive()
        one._outbox.clear()
        assert descriptors() == open_
    assert descriptors() == before


def test_the_end_of_the_other_process_is_an_error():
    with ends() as (one, other):
        one.close()
        with pytest.raises(EOFError):
            other.receive()
