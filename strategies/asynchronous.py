"""Asynchronous hand-off: queues replace rounds, for hospitals of unequal speed.

FedER, section III-C: a node may receive a model and buffer "from any random node in the federation
at any time, using queues to handle incoming data". Only the movement of models changes: the visits
are those of another method (`HandsOn`).

 1. There are always N lineages, each in the queue of one hospital. A hospital trains the head of
    its queue. The server keeps the queues (`State.queues`), because hospitals cannot be addressed.
    So a checkpoint has the queues too; the server writes it after every delivery.
 2. After a visit the model goes to a hospital that is drawn from the others (`async.choose`).
 3. Drawing and training take their random numbers from (lineage, number of its visit). So the order
    in which visits end determines all models, bit for bit. With `uniform`, without failures and
    without `tasks`, a lineage after k visits does not depend on the speed of hospitals.
 4. A round is N successful visits. Then models are tested as they are, and no hospital waits for
    the tests (`async.tests`, `evaluate.every`). The last round begins only the visits that it
    still needs.
 5. If a visit fails, or its hospital is away, the model goes on from its last good copy. A later
    answer is dropped. After two failures in a row a hospital rests: it gives its queue back, and is
    not drawn. One failure may be chance: if it were enough, all quick hospitals might rest, and
    every model would wait for a slow one.
 6. If a tested model is undone during a visit, the visit ends without a model: it began with the
    refused copy. The lineage goes on from its last good copy.
 7. A rest ends when the hospital answers again, or else with the next round. The hospital then gets
    a waiting model at once.
 8. Where models stay (`HandsOn.stays`, FedER's `buffer-only`), a queue holds the hospital's own
    model. The draw chooses the hospital whose buffer is replayed.

Deviations:
 1. With `shortest`, the default, a model goes to one of the shortest queues, and a hospital with an
    empty queue takes the first model that waits in the longest queue. With `uniform`, the paper's
    choice, nearly all models soon wait for the slowest hospital
    (benchmarks/results/asynchronous.md).
 2. If no other hospital is there, a model stays in the queue of its present hospital.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from strategies.engine.state import Model, State
from strategies.engine.strategy import HandsOn, Strategy
from strategies.engine.visit import Visit
from strategies.protocol.declared import refusal
from strategies.protocol.settings import SettingsError, require, rng_for


class Asynchronous(Strategy):
    """The hand-off of another method, without rounds.

    Raises:
        SettingsError: The models of this method must move in rounds, or stay while tests wait for
            an idle hospital.
    """

    waits = False

    def __init__(self, base: Strategy) -> None:
        super().__init__(base.settings)
        if not isinstance(base, HandsOn):
            allowed = f"false with the strategy '{self.settings.strategy}': {base.needs_rounds}"
            raise SettingsError(refusal("asynchronous", True, allowed))
        self.base, self.times = base, self.settings.asynchrony
        allowed = "next if models stay (feder.variant 'buffer-only'), for no hospital is ever idle"
        fits = self.times.tests == "next" or not base.stays
        require(fits, "async.tests", self.times.tests, allowed)
        self.learner, self.images, self.own_start = base.learner, base.images, base.own_start
        self.buffer_size, self.needs_own_buffer = base.buffer_size, base.needs_own_buffer

    def start(self, state: State, newcomers: Mapping[str, Model]) -> None:
        """Queue each first model at the hospital that made it."""
        super().start(state, newcomers)
        state.queues |= {name: [name] for name in newcomers}

    def plan(self, state: State) -> list[Visit]:
        """Each idle hospital trains the head of its queue."""
        busy = {visit.hospital for visit in state.under_way}
        idle = [
            self._visit(state, hospital, queue[0])
            for hospital, queue in sorted(state.queues.items())
            if queue and hospital not in busy and hospital not in state.resting
        ]
        if state.round < self.settings.num_server_rounds:
            return idle
        left = len(state.models) - state.finished - len(state.under_way)
        idle.sort(key=lambda visit: visit.key not in state.ordered)  # those before a kill first
        return idle[: max(left, 0)]

    def kinds(self) -> list[Visit]:
        """The kinds of visits of the base method."""
        return self.base.kinds()

    def _visit(self, state: State, hospital: str, name: str) -> Visit:
        model = state.models[name]
        source = model.place
        if self.base.stays and model.turns:
            others = [each for each in sorted(state.queues) if each != hospital]
            source = _draw(others or [hospital], self._rng(model))
        visit = replace(self.base.hand_on(state, hospital, name, source), number=model.turns + 1)
        first = state.ordered.get(visit.key)  # from before a kill
        makers = first.replay if first else visit.replay
        return replace(visit, replay=tuple(each for each in makers if each in state.buffers))

    def arrived(self, state: State, visit: Visit, trained: Model | None) -> None:
        """Send the model on; a hospital that now rests gives back its whole queue."""
        super().arrived(state, visit, trained)
        model = state.models[visit.model]
        state.models[visit.model] = replace(model, turns=model.turns + 1)
        state.finished += trained is not None
        here = visit.hospital
        if trained:
            state.last_trained[here] = visit.model
            state.failed = [each for each in state.failed if each != here]
        elif here not in state.failed:
            state.failed.append(here)
        elif here not in state.resting:
            state.resting.append(here)
        if self.base.stays:
            return
        queue = state.queues[here]
        leaving = queue[:] if here in state.resting else queue[:1]
        del queue[: len(leaving)]
        for name in leaving:
            self._send_on(state, name)
        if self.times.choose == "shortest":
            for hospital in sorted(state.queues):
                self._take(state, hospital)

    def _send_on(self, state: State, name: str) -> None:
        """Put a model into the queue of the hospital that is drawn for it."""
        model = state.models[name]
        there = [each for each in sorted(state.queues) if each not in state.resting]
        others = [each for each in there if each != model.place] or there or [model.place]
        if self.times.choose == "shortest":
            shortest = min(len(state.queues[each]) for each in others)
            others = [each for each in others if len(state.queues[each]) == shortest]
        state.queues[_draw(others, self._rng(model))].append(name)

    def _take(self, state: State, hospital: str) -> None:
        """Give an idle hospital the first model that waits in the longest queue.

        A model whose last visit was at this hospital does not count.
        """
        if state.queues[hospital] or hospital in state.resting:
            return
        waiting = {
            other: [
                name
                for name in queue[other not in state.resting :]  # the head is trained there
                if state.models[name].place != hospital
            ]
            for other, queue in sorted(state.queues.items())
        }
        longest = max(waiting, key=lambda other: len(waiting[other]))
        if waiting[longest]:
            state.queues[longest].remove(name := waiting[longest][0])
            state.queues[hospital].append(name)

    def is_over(self, state: State) -> bool:
        """Whether as many visits have succeeded as there are models."""
        return state.finished >= len(state.models)

    def tests_now(self, state: State, hospital: str) -> bool:
        """Whether to ask now: with `next` always, with `idle` if no model is there to train."""
        return self.times.tests == "next" or not state.queues.get(hospital)

    def take_back(self, state: State, hospital: str) -> None:
        """End a hospital's rest: it is drawn again, and takes a model at once."""
        if hospital in state.resting:
            state.resting.remove(hospital)
            self._take(state, hospital)

    def finish_round(self, state: State) -> None:
        """Start to count visits again, and end all rests."""
        state.finished = 0
        for hospital in [*state.resting]:
            self.take_back(state, hospital)

    def holders(self, state: State) -> dict[str, str]:
        """The model that each hospital trains now or next; if none waits, that it trained last."""
        next_one = {hospital: queue[0] for hospital, queue in state.queues.items() if queue}
        return {**state.last_trained, **next_one}

    def _rng(self, model: Model) -> np.random.Generator:
        return rng_for(self.settings.seed, "next", hop=model.turns, hospital=model.lineage)


def _draw(hospitals: list[str], rng: np.random.Generator) -> str:
    return hospitals[int(rng.integers(len(hospitals)))]
