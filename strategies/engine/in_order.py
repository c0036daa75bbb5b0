"""Virtual time and replay: the order of processing answers is not their order of arrival.

Two runs have the same models, bit for bit, if their visits end in the same order; speed makes no
difference. So an answer that comes early waits here for its turn:

- In virtual time (`async.seconds`) a visit takes the seconds that the setting gives the hospital,
  and everything else takes no time. Visits that end at one moment end in a random order.
- In a replay (`async.replay`) visits end, and hospitals join and return, in the order of a recorded
  run. A visit that failed there fails here.
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
from strategies.protocol.files import FileError, expand
from strategies.protocol.may_leave import Failure
from strategies.protocol.settings import SettingsError, rng_for


class InVirtualTime(Exchange[Any]):
    """An exchange with deliveries in the order of virtual time, not of real time.

    The seed of the run determines the order of visits that end at one moment.
    """

    def __init__(self, courier: Courier, seed: int) -> None:
        super().__init__(courier)
        self.seed = seed
        self._expected: list[Letter[Any]] = []
        self._early: dict[int, Delivery[Any]] = {}  # by the identity of the letter

    def post(self, letters: Iterable[Letter[Any]]) -> None:
        """Queue messages."""
        for letter in letters:
            self._expected.append(letter)
            super().post([letter])

    def withdraw(self, verb: str) -> list[Letter[Any]]:
        """Take back the unsent messages of a verb."""
        unsent = super().withdraw(verb)
        self._expected = [each for each in self._expected if each not in unsent]
        return unsent

    def take(self) -> Delivery[Any]:
        """Wait for the outcome of the next message in virtual time."""
        return self._take_letter(min(self._expected, key=self._turn))

    def _take_letter(self, letter: Letter[Any]) -> Delivery[Any]:
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
    """An entry of a record: a visit ended, or a hospital joined or returned."""

    # `query.enrol` for a hospital that joined, `query.live` for one that returned, else the verb of
    # the visit
    verb: str
    hospital: str  # name of the hospital
    lineage: str  # lineage of the model; empty if the entry is no visit
    outcome: str  # as in `Event`
    reason: str  # as in `Event`


class Replayed(InVirtualTime):
    """An exchange with deliveries in the order of a record; `State.replayed` counts its turns."""

    def __init__(self, courier: Courier, state: State, turns: list[Turn]) -> None:
        super().__init__(courier, 0)
        self.state, self.turns = state, turns

    @property
    def joining_later(self) -> Collection[str]:
        """The hospitals that join later in the record."""
        turns = self.turns[self.state.replayed :]
        return {turn.hospital for turn in turns if turn.verb == "query.enrol"}

    def take(self) -> Delivery[Any]:
        """Wait for the outcome of the next message in the record.

        Raises:
            RunError: The record does not fit the run.
        """
        if others := [each for each in self._expected if not isinstance(each.about, Ordered)]:
            return self._take_letter(others[0])
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
                delivery = self._take_letter(letter)
                if delivery.failure is Failure.USELESS:  # it is ordered again, in the same turn
                    self.state.replayed -= 1
                    return delivery
                return _recorded_outcome(delivery, turn)
        raise RunError(
            f"In the record of async.replay '{turn.lineage}' visits '{turn.hospital}' next, here "
            "it does not: are settings, hospitals and images the same as in that run?"
        )


def _recorded_outcome(delivery: Delivery[Any], turn: Turn) -> Delivery[Any]:
    """The delivery; a failure if the recorded visit failed."""
    if turn.outcome == "ok":
        return delivery
    failure = Failure[turn.outcome.upper()]
    return replace(delivery, failure=failure, reason=turn.reason, content=RecordDict())


def read_turns(path: Path) -> list[Turn]:
    """The record of a run's order, from its result directory.

    Raises:
        SettingsError: The record cannot be read.
    """
    try:
        return list(_turns(event for event, _ in read_events(expand(path) / LOG)))
    except (OSError, FileError) as error:
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
            if outcome == "useless":  # the visit was undone
                continue
            yield Turn(verb, hospital, event.lineage, outcome, event.reason)


@dataclass(frozen=True)
class VirtualJournal:
    """A journal that adds virtual times to events."""

    journal: Journal  # the journal that records them
    state: State  # state of the run, with the clock

    def record(self, event: Event) -> None:
        """Record one event, at once."""
        now = self.state.clock
        began = now if isnan(event.began) else event.began
        self.journal.record(replace(event, began=began, time=now))

    def round_finished(self, server_round: int) -> None:
        """Note that all events of a round have been recorded."""
        self.journal.round_finished(server_round)
