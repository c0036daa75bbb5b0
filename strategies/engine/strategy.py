"""The methods' base class: a few functions of a run's state. The engine does the rest."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord

from strategies.engine.presence import ACTIVE, plan_table
from strategies.engine.state import Model, State
from strategies.engine.topology import Route
from strategies.engine.visit import Visit
from strategies.protocol.learners import KEEP_NETWORK
from strategies.protocol.order import Images
from strategies.protocol.records import Layout
from strategies.protocol.settings import Settings, require
from strategies.protocol.streams import arrived_tasks, task_at


class RunError(RuntimeError):
    """The run cannot start or go on."""


class Strategy(ABC):
    """A method: it plans visits, and may override these defaults.

    Unlike Flower's strategies it sends no messages and sees no answers: `Engine` runs the loop.

    A method reads its own table of the settings (`Settings.section`).
    """

    learner = "plain"  # the local objective of its visits (learning.learners.LEARNERS)
    images: Images = "own"  # the images that its visits train on
    reads_models = False  # whether the server opens the models; then they cannot be sealed
    own_start = False  # whether each hospital's first model has initial weights of its own
    # Whether a hospital's model has layers that never leave: then no other hospital tests it
    keeps_layers = False
    # Whether each hospital trains its own model in round 1, and models are handed on from round 2
    begins_at_home = False
    tests_every_visit = False  # whether the one model is tested after each visit of the round
    # Whether a hop ends when all its visits have ended. Else the method plans again after each
    # delivery, and `is_over` ends a round.
    waits = True
    buffer_size = 0  # synthetic images that each hospital renders before the first hop
    has_encoder = False  # whether a frozen encoder travels to each hospital once, beside models
    needs_own_buffer = False  # whether a hospital takes no part if its buffer may not leave
    # The reason why no optimizer's state travels with its models, for an error; empty if it can
    needs_fresh_optimizer = ""
    enrols_by_plan = False  # whether hospitals may join and leave by the plan `enrolment`
    has_baseline = True  # whether a run is compared with one in which nothing is handed on
    # The reason why its models must move in rounds, for an error. Methods without such a reason are
    # `HandsOn`.
    needs_rounds = "its models move in rounds"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        here = f"with strategy '{settings.strategy}'"
        if settings.learner:
            allowed = f"empty {here}, which has a learner of its own"
            require(self.learner == "plain", "learner", settings.learner, allowed)
            self.learner = settings.learner
            wrapped = dict(settings.tables).get("ser.learner")  # a missing one is refused elsewhere
            inner = wrapped if self.learner == "ser" else self.learner
            fits = inner not in KEEP_NETWORK or not self.begins_at_home
            allowed = f"one network {here}: with the learner '{inner}' hospitals keep a network"
            require(fits or len(settings.networks) == 1, "model", settings.model, allowed)
        state, reason = settings.train.optimizer_state, self.needs_fresh_optimizer
        fits = state == "fresh" or not reason
        require(fits, "train.optimizer-state", state, f"fresh {here}, {reason}")
        if plan := settings.enrolment:
            allowed = f"empty {here}, which has all hospitals in all tasks"
            require(self.enrols_by_plan, "enrolment", plan, allowed)
            allowed = "empty with a task-order or task-spread that gives hospitals their own tasks"
            require(not settings.own_streams, "enrolment", plan, allowed)

    @property
    def cross(self) -> bool | str:
        """`evaluate.cross`, or False if no model is tested at other hospitals."""
        return False if self.keeps_layers else self.settings.evaluate.cross

    def check(self, *, sealed: bool) -> None:
        """Refuse a run that this method cannot do, before the run starts.

        Raises:
            SettingsError: The server must read the models, but they are sealed or rounded; or the
                file `enrolment` cannot be used.
        """
        settings = self.settings
        plan_table(settings, [])  # here, since hospitals must not open the server's file
        if self.reads_models:
            reason = f"since strategy '{settings.strategy}' averages models at the server"
            require(not sealed, "sealed", sealed, f"false (all hospitals must agree), {reason}")
            dtype = settings.wire_dtype
            require(dtype == "float32", "wire-dtype", dtype, f"float32, {reason}")

    def task_at(self, server_round: int, hospital: str = "") -> int:
        """The task whose images are at a hospital in a round (strategies/protocol/streams.py)."""
        return task_at(self.settings, server_round, hospital)

    def arrived_tasks(self, server_round: int, hospitals: Iterable[str]) -> list[int]:
        """The tasks that any hospital has had until a round; empty = all until the present one."""
        return arrived_tasks(self.settings, server_round, hospitals)

    def start(self, state: State, newcomers: Mapping[str, Model]) -> None:
        """Take in the first models of hospitals that have joined, in order of their names."""
        state.models.update(newcomers)

    def is_over(self, state: State) -> bool:
        """Whether the round is over while visits go on, for a method that does not wait."""
        return False

    def tests_now(self, state: State, hospital: str) -> bool:
        """Whether a hospital is asked now for the tests that it owes."""
        return True

    def take_back(self, state: State, hospital: str) -> None:  # noqa: B027 - for those that wait
        """Take back a hospital that failed, while visits go on; methods that wait do nothing."""

    def present(self, state: State) -> list[str]:
        """The hospitals that take part in the round, by plan."""
        table = plan_table(self.settings, state.hospitals)
        task = max(self.task_at(state.round), 1)
        return [hospital for hospital, here in table.items() if here[task - 1] == ACTIVE]

    @abstractmethod
    def plan(self, state: State) -> Sequence[Visit]:
        """The visits of the next hop; none if the round is over. A pure function of the state."""

    def kinds(self) -> list[Visit]:
        """The kinds of visits that `plan` may return, each with its largest number of epochs.

        A hospital refuses every other learner, verb, leg and choice of images, more epochs, and
        embeddings or tests that no such kind has (engine/orders.py).
        """
        return [self.visit("", "")]

    def arrived(self, state: State, visit: Visit, trained: Model | None) -> None:
        """Move the model of a visit to its hospital; `trained` is None if the visit failed."""
        before = state.models[visit.model]
        after = replace(trained or before, place=visit.hospital, previous=before.place)
        state.models[visit.model] = after

    def finish_round(self, state: State) -> None:  # noqa: B027 - most need nothing here
        """Do the server's part after the last hop of a round; most methods have none."""

    def check_memory(self, memory: ArrayRecord, layout: Layout) -> None:  # noqa: B027 - as above
        """Refuse (ParcelError) a memory that the server cannot read."""

    def holders(self, state: State) -> Mapping[str, str]:
        """The model that each hospital uses after the round: the one that it receives next."""
        coming = replace(state, round=state.round + 1, hop=0)
        return {visit.hospital: visit.model for visit in self.plan(coming)}

    def visit(self, hospital: str, model: str, **changes: Any) -> Visit:
        """A visit with the method's usual values, and changes."""
        plain = Visit(hospital, model, self.learner, self.settings.train.epochs, images=self.images)
        return replace(plain, **changes)

    def follow(self, route: Route, state: State) -> list[Visit]:
        """The visits of a route: each receiver trains the model of its source."""
        models = state.models_at
        return [self.visit(hospital, models[source]) for hospital, source in route.items()]


class HandsOn(Strategy):
    """A method whose models can also move one by one (strategies/asynchronous.py)."""

    stays = False  # whether models stay at their hospitals, which hand on other records

    @abstractmethod
    def hand_on(self, state: State, hospital: str, model: str, source: str) -> Visit:
        """The visit by which a hospital trains a model of the state.

        `source` is the hospital that hands on: the model's last place, unless models stay.
        """


def commonest_model(state: State, newcomers: Mapping[str, Model]) -> tuple[str, Model]:
    """The first of the hospitals that sent the commonest first model, and this model.

    All derive the same model from the seed. So one hospital's bad first model begins no lineage of
    all. Sealed models all differ.
    """
    hashes = {
        name: state.shelf.label(model.parcel).hash_of["model"] for name, model in newcomers.items()
    }
    ((most, _),) = Counter(hashes.values()).most_common(1)
    return next((name, newcomers[name]) for name, each in hashes.items() if each == most)
