"""Testing: which hospital tests which models after a round, and what it tells of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from strategies.engine.admission import admit, admit_tested
from strategies.engine.courier import Delivery, Letter
from strategies.engine.events import Event
from strategies.engine.run import Content, Run
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.parcel import bundle

# Models are tested several at a time, but a message stays well below what Flower can carry.
TEST_BYTES = 256 * 1024**2


@dataclass(frozen=True)
class Batch:
    """What one message asks of a hospital: to test these parcels, each under a name."""

    hospital: str
    parcels: Mapping[str, str]


def test_models(run: Run) -> None:
    """Have the models of a round tested, and record who uses which from now on."""
    state = run.state
    holders = run.strategy.holders(state)
    for delivery in run.courier.exchange(_letters(run, holders)):
        _record(run, delivery)
    for hospital, model in holders.items():
        lineage = state.models[model].lineage
        run.journal.record(Event("hand-off", state.round, state.hop, hospital, lineage))


def _letters(run: Run, holders: Mapping[str, str]) -> Iterator[Letter[Batch]]:
    """The messages to all hospitals that can be reached."""
    state, settings = run.state, run.settings.evaluate
    reachable = run.courier.reachable()
    ensemble = settings.ensemble and settings.cross and run.is_last_round and len(state.models) > 1
    for hospital, node in state.nodes.items():
        if node not in reachable:
            absence = Event.absence("evaluate", hospital, round=state.round, hop=state.hop)
            run.journal.record(absence)
            continue
        batches = list(_batches(run, hospital, _tested_at(run, hospital, holders)))
        order = run.order(
            hospital,
            round=state.round,
            hop=state.hop,
            # Hospitals keep nothing from one message to the next.
            ensemble=ensemble and len(batches) == 1,
            final=run.is_last_round,
        )
        for batch in batches:
            yield _letter(run, node, order, batch)


def _tested_at(run: Run, hospital: str, holders: Mapping[str, str]) -> dict[str, str]:
    """The parcels that a hospital tests, by name."""
    state = run.state
    if run.settings.evaluate.cross:
        everything = {name: model.parcel for name, model in state.models.items()}
        return state.after_visits or everything
    here = {name for name, model in state.models.items() if model.place == hospital}
    chosen = here | {holders.get(hospital, "")}
    return {name: model.parcel for name, model in state.models.items() if name in chosen}


def _batches(run: Run, hospital: str, parcels: Mapping[str, str]) -> Iterator[Batch]:
    """Cut models into batches that are not much larger than `TEST_BYTES`."""
    batch: dict[str, str] = {}
    size = 0
    for name, parcel in parcels.items():
        batch[name] = parcel
        size += run.state.shelf.model_bytes(parcel)
        if size >= TEST_BYTES:
            yield Batch(hospital, batch)
            batch, size = {}, 0
    if batch:
        yield Batch(hospital, batch)


def _letter(run: Run, node: int, order: Order, batch: Batch) -> Letter[Batch]:
    def content() -> Content:
        parcels = {name: run.state.shelf.get(each) for name, each in batch.parcels.items()}
        return bundle(parcels, ["manifest", "model"])

    return run.letter("evaluate", node, order, batch, content)


def _record(run: Run, delivery: Delivery[Batch]) -> None:
    """Record what a hospital tells of each model; its seconds and bytes are shared out evenly."""
    state, batch = run.state, delivery.letter.about
    delivery, told = admit(delivery, admit_tested, batch.parcels)
    answer = Event.of(delivery, batch.hospital, round=state.round, hop=state.hop, metrics={})
    told = told or {}
    for verb in ("ensemble", "standalone"):
        if figures := told.get(verb):
            hospital = batch.hospital
            run.journal.record(Event(verb, state.round, state.hop, hospital, metrics=figures))
    tested = len(batch.parcels)
    share = {key: value / tested for key, value in told.get("", {}).items()}
    for name, parcel in batch.parcels.items():
        label = state.shelf.label(parcel)
        event = replace(
            answer,
            hop=label.hop,
            lineage=label.lineage,
            metrics=share | told.get(name, {}),
            seconds=delivery.seconds / tested,
            bytes_sent=state.shelf.model_bytes(parcel),
            epochs=label.epochs,
        )
        run.journal.record(_judged(event))


def _judged(event: Event) -> Event:
    """A test that the hospital could not make, as a failure; others as they are."""
    metrics = dict(event.metrics)
    refused = metrics.pop("refused", None)
    if refused is None:
        return event
    outcome = next((f.name.lower() for f in Failure if f == refused), Failure.CRASHED.name.lower())
    reason = "The hospital could not test this model."
    return replace(event, outcome=outcome, reason=reason, metrics=metrics)
