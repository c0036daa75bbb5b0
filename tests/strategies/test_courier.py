import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from strategies.engine import courier
from strategies.engine.courier import Courier, SimulationBroken
from strategies.protocol.may_leave import Failure
from tests.fakes import FakeGrid, failing


def answer(message):
    return Message(RecordDict({"metrics": MetricRecord({"accuracy": 1.0})}), reply_to=message)


def messages(*nodes):
    return [Message(RecordDict(), node, "evaluate") for node in nodes]


def carry(handlers, to, timeout=60.0):
    return list(Courier(FakeGrid(handlers), timeout, timeout).send_and_receive(messages(*to)))


def test_every_message_is_answered_once_and_a_hospital_has_one_at_a_time():
    """FakeGrid itself asserts that no hospital holds two messages."""
    deliveries = carry({1: answer, 2: answer}, to=[1, 1, 2, 1, 2])
    assert sorted(delivery.node for delivery in deliveries) == [1, 1, 1, 2, 2]
    assert all(delivery.failure is None for delivery in deliveries)


def test_answers_are_yielded_as_they_come():
    worked = []

    def counting_answer(message):
        worked.append(message)
        return answer(message)

    grid = FakeGrid(dict.fromkeys(range(8), counting_answer), np.random.default_rng(3))
    next(Courier(grid, 60.0, 60.0).send_and_receive(messages(*range(8))))
    assert len(worked) < 8


@pytest.mark.parametrize(
    ("handler", "failure"),
    [
        (lambda m: failing(m, 2, "boom"), Failure.CRASHED),
        (lambda m: failing(m, 3, "too late"), Failure.TIMEOUT),
        (lambda m: failing(m, 5, "off"), Failure.GONE),
        (lambda m: failing(m, 8, "killed"), Failure.CRASHED),
        (lambda m: failing(m, 77, "?"), Failure.CRASHED),
        (lambda m: failing(m, Failure.DIVERGED, "nan"), Failure.DIVERGED),
        (lambda m: Message(RecordDict({"x": ConfigRecord()}), reply_to=m), Failure.UNDECLARED),
    ],
)
def test_failures_are_typed_and_hold_nobody_up(handler, failure):
    deliveries = {each.node: each for each in carry({1: handler, 2: answer}, to=[1, 2])}
    assert deliveries[1].failure == failure
    assert deliveries[1].reason
    assert deliveries[2].failure is None


def test_a_hospital_that_is_not_connected_is_gone():
    (delivery,) = carry({1: answer}, to=[2])
    assert delivery.failure == Failure.GONE


def test_a_hospital_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(courier, "GRACE", 0.0)
    deliveries = {d.node: d for d in carry({1: lambda m: None, 2: answer}, to=[1, 2], timeout=0.1)}
    assert deliveries[1].failure == Failure.TIMEOUT
    assert "hop-timeout" in deliveries[1].reason
    assert deliveries[2].failure is None


def test_messages_live_as_long_as_the_hospital_may_take():
    grid = FakeGrid({1: answer})
    list(Courier(grid, 42.0, 43.0).send_and_receive(messages(1)))
    assert grid.sent[0].metadata.ttl == 42.0


def test_a_dead_actor_ends_the_simulation():
    with pytest.raises(SimulationBroken, match="memory"):
        carry({1: lambda m: failing(m, 0, "<class 'ray.exceptions.ActorDiedError'>")}, to=[1])


def test_who_takes_messages_is_asked_once_and_again_after_a_missed_answer(monkeypatch):
    monkeypatch.setattr(courier, "GRACE", 0.0)
    monkeypatch.setattr(courier, "LIVE_TIMEOUT", 0.2)
    answers = {1: answer, 2: answer}
    grid = FakeGrid(answers)
    post = Courier(grid, 0.2, 60.0)
    grid.stuck = {2}
    assert post.reachable() == {1}
    grid.stuck = set()
    assert post.reachable() == {1, 2}
    asked = next(grid.ids)
    assert post.reachable() == {1, 2}
    assert next(grid.ids) == asked + 1  # nobody was asked
    grid.handlers[1] = lambda m: None
    list(post.send_and_receive(messages(1, 2)))
    grid.stuck = {1}
    assert post.reachable() == {2}
    del grid.handlers[2]
    assert post.reachable() == set()
