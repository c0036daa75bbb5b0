"""Virtual time and replay: the order of processing answers is not their order of arrival.

Two runs have the same models, bit for bit, if their visits end in the same order; speed makes no
difference. So an answer that comes early waits here for its turn:

- In virtual time (`async.seconds`) a visit takes the seconds that the setting gives the hospital,
  and everything else takes no time. Visits that end at one moment end in a random order.
- In a replay (`async.replay`) visits end, and hospitals join and return, in the order of a recorded
  run. A visit that failed there fails here.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from strategies.engine.courier import Courier, Delivery, Exchange, Letter
from strategies.engine.events import LOG, Event, read_events
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
        letters = [*letters]
        self._expected += letters
        super().post(letters)

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


class Replayed(InVirtualTime):
    """An exchange with deliveries in the order of a record; `State.replayed` counts its turns."""

    def __init__(self, courier: Courier, state: State, turns: list[Event]) -> None:
        super().__init__(courier, 0)
        self.state = state
        self.first = {turn.hospital for turn in turns if turn.verb == "query.prepare"}
        self.turns = [turn for turn in turns if turn.verb != "query.prepare"]

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
        if self.state.replayed == len(self.turns):
            raise RunError("The record of async.replay has ended, and the run has not.")
        turn = self.turns[self.state.replayed]
        self.state.replayed += 1
        if turn.verb.startswith("query."):
            there: Letter[Any] = Letter(0, turn.verb, turn.hospital, RecordDict, 0.0, "")
            return Delivery(there, RecordDict(), None, "", 0.0, 0)
        for letter in self._expected:
            visit = letter.about.visit
            model = self.state.models[visit.model]
            if (visit.hospital, model.lineage) == (turn.hospital, turn.lineage):
                delivery = self._take_letter(letter)
                if turn.outcome != "ok" and delivery.failure is not Failure.USELESS:
                    failure = Failure[turn.outcome.upper()]
                    failed = replace(delivery, failure=failure, reason=turn.reason)
                    delivery = replace(failed, content=RecordDict())
                undone = model.good not in ("", letter.about.sent)
                if delivery.failure is Failure.USELESS and undone:
                    self.state.replayed -= 1  # the visit is ordered again, in the same turn
                return delivery
        raise RunError(
            f"In the record of async.replay '{turn.lineage}' visits '{turn.hospital}' next, here "
            "it does not: are settings, hospitals and images the same as in that run?"
        )


def read_turns(path: Path) -> list[Event]:
    """The record of a run's order, from its result directory.

    Its events are the hospitals at the start (`query.prepare`), then visits that ended, hospitals
    that joined (`query.enrol`) and hospitals that returned (`query.live`).

    Raises:
        SettingsError: The record cannot be read.
    """
    try:
        return list(_turns(read_events(expand(path) / LOG)))
    except (OSError, FileError) as error:
        raise SettingsError(
            f"The setting 'async.replay' is '{path}'; it must be the result directory of a run "
            f"whose order is to be replayed ({error})."
        ) from error


def _turns(events: Iterable[Event]) -> Iterator[Event]:
    began, there = False, set()
    outcomes = {"ok", *(each.outcome for each in Failure)}
    for event in events:
        if event.verb == "query.prepare" and event.outcome == "ok":
            if began:
                joined = event.hospital not in there
                event = replace(event, verb="query.enrol" if joined else "query.live")
            there.add(event.hospital)
            yield event
        elif event.verb == "query.live":
            yield event
        elif event.verb.startswith("train"):
            began = True
            if event.outcome not in outcomes:
                raise FileError(f"'{event.hospital}' has the unknown outcome '{event.outcome:.80}'")
            yield event
