"""What a method is: a few functions of the state of a run. The engine does the rest."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord

from strategies.engine.presence import ACTIVE, planned
from strategies.engine.state import Model, State
from strategies.engine.topology import Route
from strategies.engine.visit import Images, Visit
from strategies.protocol.parcel import Layout
from strategies.protocol.settings import Settings, SettingsError, require
from strategies.protocol.streams import task_at


class RunError(RuntimeError):
    """The run cannot start or go on."""


class Strategy(ABC):
    """A method plans visits, and overrides what differs from these defaults.

    Unlike Flower's strategies it neither sends messages nor sees answers: `Engine` runs the loop.

    Args:
        settings: The settings of the run; a method reads its own table (`Settings.section`).

    Attributes:
        learner: The local objective of its visits (learning.learners.LEARNERS).
        images: Which images its visits train on.
        reads_models: The server opens the models, so that they cannot be sealed.
        own_start: Each hospital's first model has initial weights of its own, instead of one start
            for all.
        tests_every_visit: The one model is tested as it was after each visit of the round.
        waits: A hop ends when all its visits have. Without, the method plans again after each
            delivery, and says itself when a round is `is_over`.
        buffer_size: Synthetic images that each hospital renders before the first hop.
        has_encoder: A frozen encoder travels to each hospital once, apart from the models.
        needs_own_buffer: A hospital takes no part if its buffer may not leave; else it does so
            without one.
        enrols_by_plan: Hospitals may join and leave as the setting `enrolment` plans it.
        needs_rounds: Why its models have to move in rounds (`HandsOn` is for others).
    """

    learner = "plain"
    images: Images = "own"
    reads_models = False
    own_start = False
    tests_every_visit = False
    waits = True
    buffer_size = 0
    has_encoder = False
    needs_own_buffer = False
    enrols_by_plan = False
    needs_rounds = "its models move in rounds"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        if settings.learner:
            allowed = f"empty with strategy '{settings.strategy}', which has a learner of its own"
            require(self.learner == "plain", "learner", settings.learner, allowed)
            self.learner = settings.learner
        fits = not settings.enrolment or self.enrols_by_plan
        allowed = f"empty with strategy '{settings.strategy}', whose models go from one to the next"
        require(fits, "enrolment", settings.enrolment, allowed)
        fits = not (settings.enrolment and settings.own_streams)
        allowed = "empty with a task-order or task-spread by which hospitals have their own tasks"
        require(fits, "enrolment", settings.enrolment, allowed)

    def check(self, *, sealed: bool) -> None:
        """Refuse, before anything starts, a run that this method cannot do.

        Args:
            sealed: Whether parcels would travel sealed.

        Raises:
            SettingsError: The server must read the models, and they are sealed or rounded; or the
                file `enrolment` cannot be used.
        """
        settings = self.settings
        planned(settings, [])  # here: the file is the server's, and a hospital opens none of its
        if sealed and self.reads_models:
            raise SettingsError(
                f"The setting 'sealed' is true, and for '{settings.strategy}' the server must read "
                "the models: set it to false if all hospitals agree."
            )
        if settings.wire_dtype == "float16" and self.reads_models:
            raise SettingsError(
                f"The setting 'wire-dtype' is 'float16', in which '{settings.strategy}' would "
                "average models: set it to float32."
            )

    def task_at(self, server_round: int, hospital: str = "") -> int:
        """The task whose images are at a hospital in a round (strategies/protocol/streams.py)."""
        return task_at(self.settings, server_round, hospital)

    def start(self, state: State, newcomers: Mapping[str, Model]) -> None:
        """Take in the first models of hospitals that have joined, in order of their names."""
        state.models.update(newcomers)

    def is_over(self, state: State) -> bool:
        """Whether the round is over while visits go on: of a method that does not wait."""
        return False

    def tests_now(self, state: State, hospital: str) -> bool:
        """Whether a hospital is asked now for the tests that it owes."""
        return True

    def returned(self, state: State, hospital: str) -> None:  # noqa: B027 - for those that wait
        """A hospital that failed is back, while visits go on; a method that waits plans on."""

    def present(self, state: State) -> list[str]:
        """The hospitals that take part in the round, as far as that is planned."""
        table = planned(self.settings, state.hospitals)
        task = max(self.task_at(state.round), 1)
        return [hospital for hospital, here in table.items() if here[task - 1] == ACTIVE]

    @abstractmethod
    def plan(self, state: State) -> Sequence[Visit]:
        """The visits of the next hop; none: the round is over. A pure function of the state."""

    def kinds(self) -> list[Visit]:
        """The kinds of visits that `plan` may return, with the most epochs of each.

        A hospital refuses what is not among them: another learner, verb, leg or choice of images,
        more epochs, and embeddings or tests that none of that kind has (engine/orders.py).
        """
        return [self.visit("", "")]

    def arrived(self, state: State, visit: Visit, trained: Model | None) -> None:
        """A visit has ended; None: it failed, and the model counts as being there, untrained."""
        before = state.models[visit.model]
        after = replace(trained or before, place=visit.hospital, previous=before.place)
        state.models[visit.model] = after

    def finish_round(self, state: State) -> None:  # noqa: B027 - most need nothing here
        """What the server does after the last hop of a round; for most methods nothing."""

    def check_memory(self, memory: ArrayRecord, layout: Layout) -> None:  # noqa: B027 - as above
        """Refuse (ParcelError) what came beside a model, if the server reads it; here nothing."""

    def holders(self, state: State) -> Mapping[str, str]:
        """Which hospital uses which model once the round is over: the one that it receives next."""
        coming = replace(state, round=state.round + 1, hop=0)
        return {visit.hospital: visit.model for visit in self.plan(coming)}

    def visit(self, hospital: str, model: str, **changes: Any) -> Visit:
        """A visit with what is the same for all visits of the method."""
        plain = Visit(hospital, model, self.learner, self.settings.train.epochs, images=self.images)
        return replace(plain, **changes)

    def follow(self, route: Route, state: State) -> list[Visit]:
        """Every model goes from its place to the one that a route hands it to."""
        models = state.models_at
        return [self.visit(hospital, models[source]) for hospital, source in route.items()]


class HandsOn(Strategy):
    """A method whose models can also move one by one (strategies/asynchronous.py).

    Attributes:
        stays: Models stay where they are, and what is handed on is something else.
    """

    stays = False

    @abstractmethod
    def hand_on(self, state: State, hospital: str, model: str, source: str) -> Visit:
        """The visit by which a hospital trains a model.

        Args:
            state: Of the run.
            hospital: The hospital.
            model: The model's name in the state.
            source: The hospital that hands on: the one that had the model, unless models stay.
        """
