import time
from collections.abc import Sequence

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from strategies.engine import courier
from strategies.engine.courier import Awaited, Courier, Exchange, Letter, SimulationBroken
from strategies.protocol.may_leave import Failure
from tests.fakes import FakeGrid, failing


def answer(message):
    return Message(RecordDict({"metrics": MetricRecord({"accuracy": 1.0})}), reply_to=message)


def letters(*nodes, limit=60.0):
    return [Letter(node, "evaluate", None, RecordDict, limit, "hop-timeout") for node in nodes]


def carry(handlers, to, limit=60.0):
    return list(Courier(FakeGrid(handlers)).exchange(letters(*to, limit=limit)))


def test_every_message_is_answered_once_and_a_hospital_has_one_at_a_time():
    """FakeGrid itself asserts that no hospital holds two messages."""
    deliveries = carry({1: answer, 2: answer}, to=[1, 1, 2, 1, 2])
    assert sorted(delivery.letter.node for delivery in deliveries) == [1, 1, 1, 2, 2]
    assert all(delivery.failure is None for delivery in deliveries)


@pytest.mark.parametrize(("simulates", "most"), [(True, 3), (False, 8)])
def test_simulated_hospitals_are_sent_a_few_messages_at_once(simulates, most, monkeypatch):
    monkeypatch.setattr(courier, "AT_ONCE", 3)
    monkeypatch.setattr(courier, "AT_ONCE_BYTES", 0)
    monkeypatch.setattr(Courier, "simulates", simulates)
    post, waiting = Courier(FakeGrid(dict.fromkeys(range(8), answer))), []

    def write():
        waiting.append(len(post.at_work) + 1)
        return RecordDict()

    posted = [Letter(node, "evaluate", None, write, 60.0, "hop-timeout") for node in range(8)]
    assert {each.letter.node for each in post.exchange(posted)} == set(range(8))
    assert max(waiting) == most


def test_answers_are_yielded_as_they_come():
    worked = []

    def counting_answer(message):
        worked.append(message)
        return answer(message)

    grid = FakeGrid(dict.fromkeys(range(8), counting_answer), np.random.default_rng(3))
    next(Courier(grid).exchange(letters(*range(8))))
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
    deliveries = {each.letter.node: each for each in carry({1: handler, 2: answer}, to=[1, 2])}
    assert deliveries[1].failure == failure
    assert deliveries[1].reason
    assert deliveries[2].failure is None


class Unreadable(FakeGrid):
    """As Flower's Grid: an answer of node 1 cannot be decoded, and others of its pull are lost."""

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        if any(reply.metadata.src_node_id == 1 for reply in replies):
            raise AttributeError("'NoneType' object has no attribute 'value'")
        return replies


def test_an_answer_that_cannot_be_decoded_is_a_failure_of_its_sender_alone():
    posted = letters(1, 2, 3)
    deliveries = {
        d.letter.node: d
        for d in Courier(Unreadable(dict.fromkeys((1, 2, 3), answer))).exchange(posted)
    }
    assert deliveries[1].failure == Failure.UNDECLARED
    assert "cannot be read (AttributeError)" in deliveries[1].reason
    assert deliveries[2].failure is deliveries[3].failure is None


def test_an_answer_that_cannot_be_checked_is_a_failure_of_its_sender(monkeypatch):
    monkeypatch.setattr(courier, "check_answer", lambda verb, content: content["no such record"])
    (delivery,) = carry({1: answer}, to=[1])
    assert delivery.failure == Failure.UNDECLARED
    assert "cannot be read (KeyError)" in delivery.reason


def test_a_superlink_that_is_lost_is_no_failure_of_a_hospital():
    class Lost(FakeGrid):
        lost = False

        def pull_messages(self, message_ids):
            self.lost = True
            raise ConnectionError

        def get_node_ids(self):
            if self.lost:
                raise ConnectionError
            return super().get_node_ids()

    with pytest.raises(ConnectionError):
        list(Courier(Lost({1: answer})).exchange(letters(1)))


def test_a_missed_answer_names_its_limit_whoever_noticed():
    deliveries = carry({1: lambda m: failing(m, 3, "Message Unavailable")}, to=[1])
    assert (
        deliveries[0].reason
        == f"No answer within {deliveries[0].letter.limit:g} seconds (hop-timeout)."
    )


def test_a_hospital_that_is_not_connected_is_gone():
    (delivery,) = carry({1: answer}, to=[2])
    assert delivery.failure == Failure.GONE


def test_a_hospital_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(courier, "GRACE", 0.0)
    carried = carry({1: lambda m: None, 2: answer}, to=[1, 2], limit=0.1)
    deliveries = {each.letter.node: each for each in carried}
    assert deliveries[1].failure == Failure.TIMEOUT
    assert "hop-timeout" in deliveries[1].reason
    assert deliveries[2].failure is None


def test_looks_take_at_most_a_fifth_of_the_time_that_is_waited(monkeypatch):
    class Slow(FakeGrid):
        def pull_messages(self, message_ids):
            now[0] += 0.2
            return super().pull_messages(message_ids)

    now, pauses = [0.0], []

    def pause(seconds):
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    post = Courier(Slow(dict.fromkeys((1, 2), lambda message: None)))
    post.pause = pause
    assert {each.failure for each in post.exchange(letters(1, 2))} == {Failure.TIMEOUT}
    assert min(pauses) == pytest.approx(4 * (2 * 0.2))


def test_messages_live_as_long_as_the_hospital_may_take():
    grid = FakeGrid({1: answer})
    list(Courier(grid).exchange(letters(1, limit=42.0)))
    assert grid.sent[0].metadata.ttl == 42.0


def test_a_dead_actor_ends_the_simulation(monkeypatch):
    monkeypatch.setattr(Courier, "simulates", True)
    with pytest.raises(SimulationBroken, match="memory"):
        carry({1: lambda m: failing(m, 0, "<class 'ray.exceptions.ActorDiedError'>")}, to=[1])


def test_who_takes_messages_is_asked_once_and_again_after_a_missed_answer(monkeypatch):
    monkeypatch.setattr(courier, "GRACE", 0.0)
    monkeypatch.setattr(courier, "LIVE_TIMEOUT", 0.5)
    monkeypatch.setattr(courier, "FIRST_LIVE_TIMEOUT", 0.5)
    answers = {1: answer, 2: answer}
    grid = FakeGrid(answers)
    post = Courier(grid)
    grid.stuck = {2}
    assert post.find_reachable() == {1}
    grid.stuck = set()
    while post.find_reachable() == {1}:  # it is not waited for again
        pass
    asked = next(grid.ids)
    assert post.find_reachable() == {1, 2}
    assert next(grid.ids) == asked + 1  # nobody was asked
    grid.handlers[1] = lambda m: None
    list(post.exchange(letters(1, 2, limit=0.5)))
    grid.stuck = {1}
    assert post.find_reachable() == {2}
    del grid.handlers[2]
    assert post.find_reachable() == set()


def test_a_silent_node_is_waited_for_once_and_counts_when_it_has_answered(monkeypatch):
    """The second question stays under way, and nobody else gets its answer."""
    monkeypatch.setattr(courier, "GRACE", 0.0)
    monkeypatch.setattr(courier, "FIRST_LIVE_TIMEOUT", 0.2)
    waits = []
    monkeypatch.setattr(time, "sleep", lambda seconds: waits.append(seconds))
    grid = FakeGrid({1: answer, 2: answer})
    post = Courier(grid)
    grid.stuck = {2}
    assert post.find_reachable() == {1}
    assert waits
    monkeypatch.setattr(courier, "FIRST_LIVE_TIMEOUT", 30.0)
    waits.clear()
    for _ in range(9):
        assert post.find_reachable() == {1}
        assert [each.failure for each in post.exchange(letters(1))] == [None]
    assert post.at_work == {2}
    assert next(grid.ids) == 3 + 9  # one question was not repeated
    grid.stuck = set()
    while post.find_reachable(ask=False) == {1}:
        pass
    assert post.at_work == set()
    grid.stuck = {2}
    post.note_absence(2)
    monkeypatch.setattr(courier, "LIVE_TIMEOUT", 0.2)
    waits.clear()
    assert post.find_reachable() == {1}
    assert waits  # it had answered since


def test_simulated_hospitals_take_messages_by_construction(monkeypatch):
    """However long an actor takes to start: nobody is asked, and nobody is passed over."""
    monkeypatch.setattr(Courier, "simulates", True)
    grid = FakeGrid({1: answer, 2: answer})
    grid.stuck = {1, 2}
    assert Courier(grid).find_reachable() == {1, 2}
    assert next(grid.ids) == 0


def test_a_hospital_that_still_starts_has_longer_to_say_that_it_is_there(monkeypatch):
    monkeypatch.setattr(courier, "GRACE", 0.0)
    monkeypatch.setattr(courier, "LIVE_TIMEOUT", 0.0)
    monkeypatch.setattr(courier, "FIRST_LIVE_TIMEOUT", 30.0)
    grid = FakeGrid({1: answer})
    pull, ready = grid.pull_messages, time.monotonic() + 0.3
    monkeypatch.setattr(
        grid, "pull_messages", lambda ids: pull(ids) if time.monotonic() > ready else []
    )
    assert Courier(grid).find_reachable() == {1}


def test_more_messages_may_be_posted_while_answers_are_taken():
    """Content is written when a message is sent, not when it is posted."""
    exchange: Exchange[int] = Exchange(Courier(FakeGrid({1: answer, 2: answer})))
    written = []

    def letter(number):
        def write():
            written.append(number)
            return RecordDict()

        return Letter(1 + number % 2, "evaluate", number, write, 60.0, "hop-timeout")

    exchange.post([letter(0)])
    assert written == []
    exchange.post([Letter(9, "evaluate", -1, RecordDict, 60.0, "hop-timeout")])  # not connected
    seen = []
    for delivery in exchange.deliveries():
        if delivery.letter.about == -1:
            assert delivery.failure == Failure.GONE
            continue
        seen.append(delivery.letter.about)
        if len(seen) < 6:
            exchange.post([letter(len(seen))])
    assert seen == written == list(range(6))


def test_what_is_posted_when_nothing_is_under_way_any_more_is_sent_too():
    exchange: Exchange[int] = Exchange(Courier(FakeGrid({1: answer})))

    def letter(node):
        return Letter(node, "evaluate", node, RecordDict, 60.0, "hop-timeout")

    exchange.post([letter(9)])
    seen = []
    for delivery in exchange.deliveries():
        seen.append((delivery.letter.node, delivery.failure))
        if delivery.failure:
            exchange.post([letter(1)])
    assert seen == [(9, Failure.GONE), (1, None)]


def test_whoever_asks_is_told_which_answers_have_not_come_yet(monkeypatch):
    """No answer of the two is there at the first two looks, later each is."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    looks: list[object] = []
    told: list[Sequence[Awaited]] = []

    class Slow(FakeGrid):
        def pull_messages(self, message_ids):
            looks.append(message_ids)
            return super().pull_messages(message_ids) if len(looks) > 4 else []

    exchange: Exchange[None] = Exchange(Courier(Slow({1: answer, 2: answer}), told.append))
    exchange.post(
        Letter(node, "train", None, RecordDict, 60.0, "hop-timeout", name)
        for node, name in ((1, "graz"), (2, ""))
    )
    assert len(list(exchange.deliveries())) == 2
    assert [[(each.hospital, each.verb) for each in awaited] for awaited in told[:2]] == [
        [("graz", "train"), ("", "train")]
    ] * 2
    assert told[-1] == []
