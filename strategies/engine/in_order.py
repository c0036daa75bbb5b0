"""In what order answers are taken in, where that is not the order in which they come.

Two runs in which visits end in the same order have the same models, bit for bit, whoever computes
them when. So an answer may come early and lie here until it is its turn:

- in virtual time (`async.seconds`), in which a visit takes as long at a hospital as the setting
  says, and everything else no time. What ends at one moment ends in a random order;
- in the order of a run that is replayed (`async.replay`). What failed there fails here, and a
  hospital joins, or is back, when it did there.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from strategies.engine.courier import Courier, Delivery, Exchange, Letter
from strategies.engine.events import LOG, Event, Journal, read_events
from strategies.engine.run import Ordered
from strategies.engine.state import State
from strategies.engine.strategy import RunError
from strategies.protocol.files import FileError
from strategies.protocol.may_leave import Failure
from strategies.protocol.settings import SettingsError, rng_for


class InVirtualTime(Exchange[Any]):
    """Hands deliveries over as they come in virtual time, however long they really take.

    Args:
        courier: Carries the messages.
        seed: Of the run; what ends at one moment ends in an order that follows from it.
    """

    def __init__(self, courier: Courier, seed: int) -> None:
        super().__init__(courier)
        self.seed = seed
        self._expected: list[Letter[Any]] = []
        self._early: dict[int, Delivery[Any]] = {}  # by the identity of the letter

    def post(self, letters: Iterable[Letter[Any]]) -> None:
        """Hand messages over."""
        for letter in letters:
            self._expected.append(letter)
            super().post([letter])

    def withdraw(self, verb: str) -> list[Letter[Any]]:
        """Take back the messages of a verb that were not sent yet."""
        unsent = super().withdraw(verb)
        self._expected = [each for each in self._expected if each not in unsent]
        return unsent

    def take(self) -> Delivery[Any]:
        """Wait for what becomes of the message whose turn it is."""
        return self._taken(min(self._expected, key=self._turn))

    def _taken(self, letter: Letter[Any]) -> Delivery[Any]:
        while id(letter) not in self._early:
            delivery = super().take()
            self._early[id(delivery.letter)] = delivery
        self._expected.remove(letter)
        return self._early.pop(id(letter))

    def _turn(self, letter: Letter[Any]) -> tuple[float, float]:
        if not isinstance(about := letter.about, Ordered):
            return 0.0, 0.0  # takes no time
        visit, order = about.visit, about.order
        rng = rng_for(self.seed, "tie", order.round, order.hop, f"{visit.hospital} {visit.model}")
        return about.ends, rng.random()


@dataclass(frozen=True)
class Turn:
    """A line of a record: a visit that ended, or a hospital that had joined or was back.

    Attributes:
        verb: `query.enrol` for a hospital that had joined, `query.live` for one that was back; else
            of the visit.
        hospital: Where.
        lineage: The model's; empty if it was no visit.
        outcome: As in `Event`.
        reason: As in `Event`.
    """

    verb: str
    hospital: str
    lineage: str
    outcome: str
    reason: str


class Replayed(InVirtualTime):
    """Hands deliveries over in the order of a record.

    Args:
        courier: Carries the messages.
        state: Of the run; its `replayed` counts the turns that are over.
        turns: The record.
    """

    def __init__(self, courier: Courier, state: State, turns: list[Turn]) -> None:
        super().__init__(courier, 0)
        self.state, self.turns = state, turns

    @property
    def later(self) -> Collection[str]:
        """The hospitals that join later in the record."""
        turns = self.turns[self.state.replayed :]
        return {turn.hospital for turn in turns if turn.verb == "query.enrol"}

    def take(self) -> Delivery[Any]:
        """Wait for what becomes of the message whose turn it is.

        Raises:
            RunError: The record does not fit the run.
        """
        if others := [each for each in self._expected if not isinstance(each.about, Ordered)]:
            return self._taken(others[0])
        at, visits = self.state.replayed, self._expected
        if at == len(self.turns):
            raise RunError("The record of async.replay has ended, and the run has not.")
        turn = self.turns[at]
        self.state.replayed += 1
        if turn.verb.startswith("query."):
            there: Letter[Any] = Letter(0, turn.verb, turn.hospital, RecordDict, 0.0, "")
            return Delivery(there, RecordDict(), None, "", 0.0, 0)
        for letter in visits:
            visit = letter.about.visit
            model = self.state.models[visit.model]
            if (visit.hospital, model.lineage) == (turn.hospital, turn.lineage):
                delivery = self._taken(letter)
                if delivery.failure is Failure.USELESS:  # it is ordered again, in the same turn
                    self.state.replayed -= 1
                    return delivery
                return _recorded_outcome(delivery, turn)
        raise RunError(
            f"In the record of async.replay '{turn.lineage}' visits '{turn.hospital}' next, here "
            "it does not: have settings, hospitals and images stayed the same?"
        )


def _recorded_outcome(delivery: Delivery[Any], turn: Turn) -> Delivery[Any]:
    """The delivery, as a failure if it was one."""
    if turn.outcome == "ok":
        return delivery
    failure = Failure[turn.outcome.upper()]
    return replace(delivery, failure=failure, reason=turn.reason, content=RecordDict())


def read_turns(path: Path) -> list[Turn]:
    """The order of a run, from its result directory.

    Raises:
        SettingsError: It cannot be read.
    """
    try:
        return list(_turns(event for event, _ in read_events(path.expanduser() / LOG)))
    except (OSError, RuntimeError, FileError) as error:
        raise SettingsError(
            f"The setting 'async.replay' is '{path}'; it must be the result directory of a run "
            f"whose order is to be replayed ({error})."
        ) from error


def _turns(events: Iterable[Event]) -> Iterator[Turn]:
    began, there = False, set()
    for event in events:
        verb, hospital, outcome = event.verb, event.hospital, event.outcome
        if verb == "query.prepare" and outcome == "ok":
            if began:
                joined = hospital not in there
                yield Turn("query.enrol" if joined else "query.live", hospital, "", outcome, "")
            there.add(hospital)
        elif verb == "query.live":
            yield Turn(verb, hospital, "", outcome, "")
        elif verb.startswith("train"):
            began = True
            if outcome == "useless":  # of a visit that was undone
                continue
            yield Turn(verb, hospital, event.lineage, outcome, event.reason)


@dataclass(frozen=True)
class VirtualJournal:
    """Tells a journal when things happened in virtual time.

    Attributes:
        journal: The journal.
        state: Of the run; has the clock.
    """

    journal: Journal
    state: State

    def record(self, event: Event) -> None:
        """Take note of one event, at once."""
        now = self.state.clock
        began = now if isnan(event.began) else event.began
        self.journal.record(replace(event, began=began, time=now))

    def round_finished(self, server_round: int) -> None:
        """Take note that all events of a round have been recorded."""
        self.journal.round_finished(server_round)
