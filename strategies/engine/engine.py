"""The engine: the one loop of all methods. A method plans visits, and the engine executes them.

A round of a paper has one or more hops. The visits of a hop are under way together. A hospital that
is away, fails, or sends undeclared content does not delay the others. Its model stays unchanged,
counts as being there, and moves on at the next hop.

A method that does not wait (`Strategy.waits`) plans again after each delivery, and ends its round
(`is_over`) while visits go on. Then the engine waits for no hospital: hospitals test after their
present work, and new or returning hospitals are asked between two deliveries.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from logging import INFO
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, RecordDict
from flwr.common import log

from strategies.engine.admission import admit, admit_trained
from strategies.engine.courier import Delivery, Exchange
from strategies.engine.enrolment import (
    enrol,
    enrol_first,
    introductions,
    preparations,
    retry_without_buffer,
    strangers,
    take_cards,
    take_first,
)
from strategies.engine.events import Event
from strategies.engine.in_order import InVirtualTime, Replayed, read_turns
from strategies.engine.run import Content, Ordered, Run
from strategies.engine.state import AWAY, FirstOrder, Model, State
from strategies.engine.strategy import RunError
from strategies.engine.testing import Batch, assign_tests, begin_tests, letters, record_tests
from strategies.engine.undoing import failure, undo, undo_tested, unusable_buffer, vouches
from strategies.engine.visit import Visit
from strategies.protocol.may_leave import Failure
from strategies.protocol.names import join_names
from strategies.protocol.order import Order
from strategies.protocol.records import find_record
from strategies.protocol.text import amount


class Engine:
    """Executes a run, from the present point of its state.

    `keep` writes a checkpoint; it is called with each state from which the run could go on.
    """

    def __init__(self, run: Run, keep: Callable[[State], None]) -> None:
        self.keep = keep
        self.state, self.strategy = run.state, run.strategy
        # A wait for the disk takes longer than a short visit, and a simulation can begin again.
        self.state.shelf.durable = not run.courier.simulates
        self.times = run.settings.asynchrony
        self.exchange: Exchange[Any] = Exchange(run.courier, self._look_round)
        if run.in_virtual_time:
            self.exchange = InVirtualTime(run.courier, run.settings.seed)
        if self.times.replay:
            turns = read_turns(Path(self.times.replay))
            self.exchange = Replayed(run.courier, run.state, turns)
        self.run = run
        self.asked: set[int] = set()  # nodes asked for their card, or whether they are back

    def go(self) -> None:
        """Do the rest of the run.

        Raises:
            RunError: There are too few hospitals, or no visit succeeded.
            SimulationBroken: An actor of Flower's simulation died.
            SettingsError: The method cannot run with the settings (`Strategy.check`); or a
                simulated hospital cannot use them, or their data.
        """
        state, strategy, rounds = self.state, self.strategy, self.run.settings.num_server_rounds
        strategy.check(sealed=self.run.sealed)
        self.keep(state)
        if state.round <= rounds:  # else the run was killed while its results were written
            enrol_first(self.run, self.exchange.joining_later)
            self._require(self.exchange.first)
        log(INFO, "%s at %s", amount(rounds, "round"), join_names(state.hospitals))
        # Tests from before a kill are ordered again.
        state.answers_due = dict.fromkeys(state.answers_due, 0)
        self._ask_for_tests()
        while state.round <= rounds:
            self._hops()
            strategy.finish_round(state)
            self._test()
            state.round, state.hop, state.after_visits = state.round + 1, 0, {}
            self.keep(state)
            if state.round <= rounds and not state.under_way:
                enrol(self.run, self.exchange.joining_later)
            self.asked.clear()
        if not any(model.round for model in state.models.values()):
            raise RunError("No hospital has trained any model; see the failures above.")

    def _hops(self) -> None:
        """Do the remaining hops of the round."""
        state, strategy = self.state, self.strategy
        while not strategy.is_over(state) and (self._hand_out() or state.under_way):
            while state.under_way:
                self._take()
                if not strategy.waits:
                    self.keep(state)
                    if strategy.is_over(state):
                        return
                    self._hand_out()
            self.keep(state)

    def _hand_out(self) -> bool:
        """Send the planned visits; whether there were any."""
        state, planned = self.state, False
        while visits := self.strategy.plan(state):
            state.hop = state.hop + 1 if self.strategy.waits else 1
            self._send(visits)
            planned = True
            if self.strategy.waits:
                break
        self._ask_for_tests()
        return planned

    def _test(self) -> None:
        """Ask for tests of the models after the round.

        The figures of a round are closed when all tests are in, or at the end of the next round;
        later tests are dropped.
        """
        state, run = self.state, self.run
        self._close_tests()
        if not run.evaluates:
            run.journal.round_finished(state.round)
            return
        begin_tests(run)
        self._ask_for_tests()
        while state.answers_due and (self.strategy.waits or run.is_last_round):
            self._take()
        if not state.answers_due:
            self._close_tests()

    def _ask_for_tests(self) -> None:
        """Ask hospitals for the tests that they owe, if it is time."""
        state = self.state
        due = [
            hospital
            for hospital, asked in state.answers_due.items()
            if not asked and (self.run.is_last_round or self.strategy.tests_now(state, hospital))
        ]
        reachable = self._reachable() if due else set()
        chosen = assign_tests(self.run, due)
        for hospital in due:
            del state.answers_due[hospital]
            if state.nodes[hospital] not in reachable:
                place = {"round": state.test_round, "hop": state.hop}
                self.run.record(Event.absence("evaluate", hospital, **place))
            elif batches := letters(self.run, hospital, chosen[hospital]):
                state.answers_due[hospital] = len(batches)
                self.exchange.post(batches)

    def _close_tests(self) -> None:
        """Close the figures of the tested round, with the tests that have come."""
        state = self.state
        if state.test_round:
            self.exchange.withdraw("evaluate")
            undone, final = undo_tested(self.run), state.test_round == state.round
            if undone and final and self.run.is_last_round:  # the final models are tested, too
                begin_tests(self.run, again=True)
                self._ask_for_tests()
                return
            self.run.journal.round_finished(state.test_round)
            state.under_test, state.test_round, state.answers_due = {}, 0, {}

    def _send(self, visits: Sequence[Visit]) -> None:
        """Send models to the hospitals that can be reached; other visits fail."""
        state, reachable = self.state, self._reachable()
        for visit in visits:
            if state.nodes[visit.hospital] in reachable:
                self._post(self._order(visit))
            else:
                self.run.courier.note_absence(state.nodes[visit.hospital])
                place = {"round": state.round, "hop": visit.number or state.hop}
                lineage = state.models[visit.model].lineage
                event = Event.absence(visit.verb, visit.hospital, lineage=lineage, **place)
                self.run.record(event)
                self._end(visit, None)

    def _post(self, ordered: Ordered) -> None:
        """Send a model to the hospital of its visit."""
        visit, state = ordered.visit, self.state
        state.under_way.add(visit)
        state.ordered[visit.key] = replace(state.ordered[visit.key], sent=ordered.sent)
        node, content = state.nodes[visit.hospital], partial(self._content, ordered)
        letter = self.run.letter(visit.verb, node, ordered.order, ordered, content)
        self.exchange.post([letter])

    def _reachable(self) -> set[int]:
        """The nodes that take messages; a method that does not wait asks none of them."""
        return self.run.courier.find_reachable(ask=self.strategy.waits)

    def _order(self, visit: Visit) -> Ordered:
        """The order for a visit; a visit that was ordered before a kill gets the same order."""
        state = self.state
        if visit.key not in state.ordered:
            here = f"{visit.hospital} "  # a hospital has one visit at a time
            ends = [first.ends for key, first in state.ordered.items() if key.startswith(here)]
            state.ordered[visit.key] = FirstOrder(
                round=state.round,
                ends=max([state.clock, *ends]) + self._seconds(visit.hospital),
                replay=[*visit.replay],
                sent=state.models[visit.model].parcel,
            )
        first = state.ordered[visit.key]
        order = self.run.order(
            visit.hospital,
            round=first.round,
            hop=visit.number or state.hop,
            learner=visit.learner,
            epochs=visit.epochs,
            leg=visit.leg,
            images=visit.images,
            replay=[f"{maker}={state.buffer_hash(maker)}" for maker in visit.replay],
            embeddings=visit.embeddings,
            test=visit.test and self.run.evaluates,
            snapshots=self.run.tests_every_visit and self.run.settings.evaluate.epochs,
        )
        return Ordered(visit, order, first.sent, first.ends)

    def _seconds(self, hospital: str) -> float:
        """The seconds of virtual time that a visit takes at a hospital."""
        seconds = self.times.visit_seconds
        return seconds[self.state.hospitals.index(hospital) % len(seconds)] if seconds else 0.0

    def _content(self, ordered: Ordered) -> Content:
        """The model, and the buffers and the encoder that its hospital does not hold yet."""
        state, visit = self.state, ordered.visit
        buffers = {
            f"{hash_}/buffer": state.shelf.get(state.buffers[maker])["buffer"]
            for maker, hash_ in ordered.order.hash_of.items()
            if maker in state.buffers and (visit.hospital, hash_) not in state.delivered
        }
        encoder = state.undelivered_encoder(visit.hospital)
        return {**state.strip_encoder(ordered.sent), **buffers, **encoder}

    def _take(self) -> None:
        """Wait for the next outcome of a message, and process it."""
        delivery = self.exchange.take()
        match delivery.letter.about:
            case Ordered():
                self._receive(delivery)
            case Batch(order=order, round=round_):
                if round_ != self.state.test_round:  # its figures are closed
                    return
                record_tests(self.run, delivery)
                if self.state.answers_due.get(order.hospital):
                    self._pay(order.hospital)
            case Order():
                self._welcome(delivery)
            case str(hospital):
                self.asked.discard(delivery.letter.node)
                if delivery.letter.verb == "query.enrol":  # it joins here in the replayed run
                    enrol(self.run, self.exchange.joining_later)
                    self._require([hospital])
                elif delivery.failure is None:
                    self.run.record(Event.from_delivery(delivery, hospital))
                    self.strategy.take_back(self.state, hospital)

    def _pay(self, hospital: str) -> None:
        """Note that a hospital owes one answer less."""
        due = self.state.answers_due
        due[hospital] -= 1
        if not due[hospital]:
            del due[hospital]
        if not due:
            self._close_tests()

    def _receive(self, delivery: Delivery[Ordered]) -> None:
        """Process the outcome of a visit."""
        state, about = self.state, delivery.letter.about
        visit, order = about.visit, about.order
        sent, check = state.shelf.get(about.sent), self.strategy.check_memory
        encoder, travels = state.encoder_arrays, self.strategy.settings.train.optimizer_state
        expected = order, sent, encoder, check, travels == "travels"
        delivery, parcels = admit(delivery, admit_trained, *expected)
        model = state.models[visit.model]
        state.clock = max(state.clock, about.ends)
        place: dict[str, Any] = {"round": state.round, "hop": order.hop, "epochs": order.epochs}
        facts = _embeddings(order, parcels["visit"]) if parcels and order.embeddings else {}
        held = [*order.hash_of.values(), order.encoder, order.members_hash]
        state.note_delivered(visit.hospital, held, arrived=parcels is not None)
        if parcels is not None and not self.strategy.waits and model.parcel != about.sent:
            reason = "Others refused the copy that it trained, in a test. Its model is dropped."
            delivery, parcels = replace(delivery, failure=Failure.PARCEL, reason=reason), None
        useless = delivery.failure is Failure.USELESS
        refusal = about.sent, [visit.hospital], delivery.reason
        if useless and undo(self.run, visit.model, *refusal):
            self._post(replace(about, sent=state.models[visit.model].parcel))
            return
        place |= {"lineage": model.lineage, "facts": facts}
        event = Event.from_delivery(delivery, visit.hospital, **place)
        if useless and not model.good:  # no other copy: its maker failed
            self.run.record(failure(self.run, *refusal))
        if self.run.in_virtual_time:
            event = replace(event, began=about.ends - self._seconds(visit.hospital))
        self.run.tell(event)
        for maker in order.unused(event.metrics) if parcels is not None else ():
            self.run.record(unusable_buffer(event, maker))
        trained = None
        if parcels is not None:
            names = {name: state.shelf.put(parcel) for name, parcel in parcels.items()}
            if self.run.tests_every_visit:
                state.after_visits |= {f"hop-{order.hop}-{k}": each for k, each in names.items()}
            vouched = not model.good or vouches(self.run, visit.hospital, about.sent)
            trained = replace(
                model,
                parcel=names["visit"],
                good=about.sent if vouched else model.good,
                round=order.round,
                num_examples=event.metrics["num-examples"],
            )
        state.under_way.remove(visit)
        self._end(visit, trained)

    def _end(self, visit: Visit, trained: Model | None) -> None:
        """End a visit for the method; the next one with this key gets a new order."""
        self.state.ordered.pop(visit.key, None)
        self.strategy.arrived(self.state, visit, trained)

    def _look_round(self) -> None:
        """Ask new hospitals for their cards, and resting ones whether they are back."""
        run, state = self.run, self.state
        if self.strategy.waits or run.courier.simulates:
            return
        run.courier.find_reachable(ask=False)  # takes the late answers to earlier questions
        connected = set(run.courier.grid.get_node_ids()) - run.courier.at_work - self.asked
        new = strangers(run, connected)
        self.exchange.post(introductions(run, new))
        away = {state.nodes[hospital]: hospital for hospital in state.resting}
        back = sorted(connected & away.keys() - run.courier.answering)
        self.exchange.post(run.courier.live(node, away[node], away[node]) for node in back)
        self.asked |= {*new, *back}

    def _require(self, hospitals: Collection[str]) -> None:
        """Check that hospitals of the replayed run take part."""
        if missing := join_names(sorted({*hospitals} - self.state.nodes.keys())):
            raise RunError(
                f"Hospitals of the run in async.replay that are not ready here: {missing}. Connect "
                "them; the log of each says why it is not ready."
            )

    def _welcome(self, delivery: Delivery[Order]) -> None:
        """Process the answer of a new or returning hospital, while visits go on."""
        run, state, known = self.run, self.state, set(self.state.nodes)
        if delivery.letter.verb == "query.enrol":
            coming, _ = take_cards(run, [delivery])
            self.exchange.post(preparations(run, coming))
            return
        hospital = delivery.letter.about.hospital
        away = state.nodes.get(hospital) == AWAY
        self.strategy.start(state, take_first(run, delivery, []))
        self.exchange.post(preparations(run, retry_without_buffer(run, delivery)))
        if hospital in known and state.nodes[hospital] == delivery.letter.node:
            if away and hospital in state.resting:  # a replay needs it; `Run.tell` left it out
                run.record(Event.from_delivery(delivery, hospital))
            self.strategy.take_back(state, hospital)


def _embeddings(order: Order, parcel: RecordDict) -> dict[str, Any]:
    """The kind of embeddings that an order asks for, and their number in a parcel."""
    record = find_record(parcel, "embeddings", ArrayRecord)
    return {"embeddings": order.embeddings, "came": record["labels"].shape[0] if record else 0}
