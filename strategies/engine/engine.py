"""The engine: the one loop of all methods. A method plans visits; the engine makes them happen.

A round of a paper has one or more hops; the visits of a hop are under way together. A hospital that
is away, fails, or answers with something undeclared does not hold the others up: the model that was
meant for it stays as it was, counts as being there, and moves on at the next hop.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from logging import INFO

from flwr.common import log

from strategies.engine.admission import admit, admit_trained
from strategies.engine.courier import Delivery, Exchange
from strategies.engine.enrolment import check_ready, enrol
from strategies.engine.events import Event
from strategies.engine.run import Content, Run, RunError
from strategies.engine.state import State
from strategies.engine.testing import test_models
from strategies.engine.visit import Visit
from strategies.protocol.order import Order


@dataclass(frozen=True)
class Ordered:
    """A visit, and the order that asks for it."""

    visit: Visit
    order: Order
    sent: str  # the parcel that goes there, on the shelf


class Engine:
    """Does a run, from wherever its state stands.

    Args:
        run: What the run is made of.
        keep: Is handed the state whenever a run could go on from it; writes the checkpoint.
    """

    def __init__(self, run: Run, keep: Callable[[State], None]) -> None:
        self.run = run
        self.keep = keep
        self.state, self.strategy = run.state, run.strategy

    def go(self) -> None:
        """Do all that is left of the run.

        Raises:
            RunError: There are too few hospitals, or no visit succeeded.
            SimulationBroken: An actor of Flower's simulation died.
            SettingsError: The method cannot run with them (`Strategy.check`); or in a simulation a
                hospital cannot use them, or the data that they name.
        """
        state, strategy, rounds = self.state, self.strategy, self.run.settings.num_server_rounds
        strategy.check(sealed=self.run.sealed)
        self.keep(state)
        check_ready(self.run, enrol(self.run))
        log(INFO, "%d rounds at %s", rounds, ", ".join(state.hospitals))
        while state.round <= rounds:
            self._hops()
            strategy.finish_round(state)
            if self.run.evaluates:
                test_models(self.run)
            self.run.journal.round_finished(state.round)
            state.round, state.hop, state.after_visits = state.round + 1, 0, {}
            self.keep(state)
            if state.round <= rounds:
                enrol(self.run)
        if not any(model.round for model in state.models.values()):
            raise RunError("No hospital has trained any model; see the failures above.")

    def _hops(self) -> None:
        """All hops of a round that are left."""
        exchange: Exchange[Ordered] = Exchange(self.run.courier)
        while visits := self.strategy.plan(self.state):
            self.state.hop += 1
            self._send(visits, exchange)
            for delivery in exchange.deliveries():
                self._receive(delivery)
                if not self.strategy.waits:
                    self.keep(self.state)
                    self._send(self.strategy.plan(self.state), exchange)
            self.keep(self.state)

    def _send(self, visits: Sequence[Visit], exchange: Exchange[Ordered]) -> None:
        """Send models on their way to the hospitals that can be reached."""
        state = self.state
        reachable = self.run.courier.reachable() if visits else set()
        for visit in visits:
            model = state.models[visit.model]
            if (node := state.nodes[visit.hospital]) in reachable:
                ordered = Ordered(visit, self._order(visit), model.parcel)
                state.under_way.append(visit)
                letter = self.run.letter(
                    visit.verb, node, ordered.order, ordered, partial(self._content, ordered)
                )
                exchange.post([letter])
            else:
                place = {"round": state.round, "hop": state.hop, "lineage": model.lineage}
                self.run.journal.record(Event.absence(visit.verb, visit.hospital, **place))
                self.strategy.arrived(state, visit, None)

    def _order(self, visit: Visit) -> Order:
        return self.run.order(
            visit.hospital,
            round=self.state.round,
            hop=self.state.hop,
            learner=visit.learner,
            epochs=visit.epochs,
            leg=visit.leg,
            images=visit.images,
            replay=[f"{whose}={self.state.buffer_hash(whose)}" for whose in visit.replay],
            test=visit.test and self.run.evaluates,
            snapshots=self.run.tests_every_visit and self.run.settings.evaluate.epochs,
        )

    def _content(self, ordered: Ordered) -> Content:
        """The model, and the buffers that its hospital does not hold yet."""
        state, visit = self.state, ordered.visit
        buffers = {
            f"{hash_}/buffer": state.shelf.get(state.buffers[whose])["buffer"]
            for whose, hash_ in ordered.order.hash_of.items()
            if (visit.hospital, hash_) not in state.delivered
        }
        return {**state.shelf.get(ordered.sent), **buffers}

    def _receive(self, delivery: Delivery[Ordered]) -> None:
        """Take in what a visit has come to."""
        state, about = self.state, delivery.letter.about
        visit, order = about.visit, about.order
        sent, layout = state.shelf.label(about.sent), state.shelf.layout(about.sent)
        delivery, parcels = admit(delivery, admit_trained, order, sent, layout)
        model = state.models[visit.model]
        place = {"round": order.round, "hop": order.hop, "epochs": order.epochs}
        event = Event.of(delivery, visit.hospital, lineage=model.lineage, **place)
        self.run.tell(event)
        held = {(visit.hospital, hash_) for hash_ in order.hash_of.values()}
        trained = None
        if parcels is None:
            state.delivered -= held  # it may have lost what it held
        else:
            state.delivered |= held
            names = {name: state.shelf.put(parcel) for name, parcel in parcels.items()}
            if self.run.tests_every_visit:
                state.after_visits |= {f"hop-{order.hop}-{k}": each for k, each in names.items()}
            trained = replace(
                model,
                parcel=names["visit"],
                round=order.round,
                num_examples=event.metrics["num-examples"],
            )
        state.under_way.remove(visit)
        self.strategy.arrived(state, visit, trained)
