"""Testing: the models that each hospital tests after a round, and its figures of them."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from strategies.engine.admission import admit, admit_tested
from strategies.engine.courier import Delivery, Letter
from strategies.engine.events import Event
from strategies.engine.run import Content, Run
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.parcel import Manifest, bundle
from strategies.protocol.records import size_of
from strategies.protocol.settings import rng_for

TEST_BYTES = 256 * 1024**2  # of models in a message, well below Flower's limit


@dataclass(frozen=True)
class Batch:
    """The models that one message asks a hospital to test, each under a name."""

    order: Order  # what its hospital is asked for
    round: int  # the round of the models
    parcels: Mapping[str, str]  # the names of their parcels on the shelf
    labels: Mapping[str, Manifest]  # the labels of their parcels
    sizes: Mapping[str, int]  # the bytes of each model


def begin_tests(run: Run, again: bool = False) -> None:
    """Note the models to test, as they are now, and record the hand-off to each hospital.

    `again`: older copies have replaced some of the final models. All are tested once more, since
    hospitals also test the models together, and keep nothing from one message to the next.
    """
    state = run.state
    everything = {name: model.parcel for name, model in state.models.items()}
    state.answers_due = dict.fromkeys(run.strategy.present(state), 0)
    if again:
        state.under_test = everything
        return
    chosen = state.after_visits if run.settings.evaluate.cross is True else {}
    state.under_test, state.test_round = {**(chosen or everything)}, state.round
    holders = run.strategy.holders(state)
    state.sampled = _sample_tests(run, holders)
    for hospital, model in holders.items():
        lineage = state.models[model].lineage
        run.record(Event("hand-off", state.round, state.hop, hospital, lineage))


def _sample_tests(run: Run, holders: Mapping[str, str]) -> dict[str, list[str]]:
    """With `evaluate.cross = "sample:k"` the models that each hospital tests.

    A hospital tests the model that it holds. Each model is also tested at k hospitals that do not
    hold it; all sets of k are equally likely.
    """
    state, settings = run.state, run.settings
    if not (size := settings.evaluate.sample):
        return {}
    testers = sorted(state.answers_due)
    chosen = {name: [holders[name]] if name in holders else [] for name in testers}
    for model in sorted(state.models):
        others = [hospital for hospital in chosen if holders.get(hospital) != model]
        rng = rng_for(settings.seed, "sample", state.round, hospital=model)
        for hospital in rng.choice(others, min(size, len(others)), replace=False):
            chosen[str(hospital)].append(model)
    return chosen


def assign_tests(run: Run, hospitals: Collection[str]) -> dict[str, Collection[str]]:
    """The names of the models that each hospital is asked to test."""
    state, cross = run.state, run.settings.evaluate.cross
    if cross is True:
        return dict.fromkeys(hospitals, state.under_test)
    if not hospitals or cross:
        return {hospital: state.sampled.get(hospital, ()) for hospital in hospitals}
    chosen: dict[str, set[str]] = {hospital: set() for hospital in hospitals}
    placed = ((model.place, name) for name, model in state.models.items())
    for hospital, name in (*placed, *run.strategy.holders(state).items()):
        if hospital in chosen:
            chosen[hospital].add(name)
    return {**chosen}


def letters(run: Run, hospital: str, models: Collection[str]) -> list[Letter[Batch]]:
    """The messages that ask a hospital to test some models."""
    state, settings = run.state, run.settings.evaluate
    last = state.test_round == run.settings.num_server_rounds
    ensemble = settings.ensemble and settings.cross is True and last and len(state.models) > 1
    parcels = {name: parcel for name, parcel in state.under_test.items() if name in models}
    once = size_of(state.encoder_arrays)
    sizes = {name: state.shelf.model_bytes(parcel) - once for name, parcel in parcels.items()}
    labels = {name: state.shelf.label(parcel) for name, parcel in parcels.items()}
    batches = list(_batches(parcels, sizes))
    order = run.order(
        hospital,
        at=state.test_round,
        round=state.round,
        hop=state.hop,
        ensemble=ensemble and len(batches) == 1,
        final=last,
    )
    node, round_ = state.nodes[hospital], state.test_round
    asked = [Batch(order, round_, batch, labels, sizes) for batch in batches]
    return [run.letter("evaluate", node, order, one, partial(_content, run, one)) for one in asked]


def _batches(parcels: Mapping[str, str], sizes: Mapping[str, int]) -> Iterator[dict[str, str]]:
    """Divide models into batches that are not much larger than `TEST_BYTES`."""
    batch: dict[str, str] = {}
    size = 0
    for name, parcel in parcels.items():
        batch[name] = parcel
        size += sizes[name]
        if size >= TEST_BYTES:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch


def _content(run: Run, batch: Batch) -> Content:
    parcels = {name: run.state.strip_encoder(each) for name, each in batch.parcels.items()}
    return {**bundle(parcels), **run.state.undelivered_encoder(batch.order.hospital)}


def record_tests(run: Run, delivery: Delivery[Batch]) -> None:
    """Record a hospital's figures of each model; those of the whole message are divided evenly."""
    state, batch = run.state, delivery.letter.about
    hop, hospital = state.hop, batch.order.hospital
    delivery, reported = admit(delivery, admit_tested, batch.order, batch.parcels)
    held = [batch.order.encoder, batch.order.members_hash]
    state.note_delivered(hospital, held, arrived=reported is not None)
    answer = Event.from_delivery(delivery, hospital, round=batch.round, hop=hop, metrics={})
    reported = reported or {}
    for verb in ("ensemble", "standalone"):
        if figures := reported.get(verb):
            run.record(Event(verb, batch.round, hop, hospital, metrics=figures))
    tested = len(batch.parcels)
    share = {key: value / tested for key, value in reported.get("", {}).items()}
    for name, parcel in batch.parcels.items():
        label = batch.labels[name]
        event = replace(
            answer,
            hop=label.hop,
            lineage=label.lineage,
            metrics=share | reported.get(name, {}),
            seconds=delivery.seconds / tested,
            bytes_sent=batch.sizes[name],
            epochs=label.epochs,
        )
        event = _read_refusal(event)
        run.record(event)
        useless = event.outcome == Failure.USELESS.outcome
        if event.outcome == "ok" or useless:
            state.judgements.setdefault(parcel, {})[hospital] = useless


def _read_refusal(event: Event) -> Event:
    """The event; a failure if the hospital could not do the test."""
    metrics = dict(event.metrics)
    refused = metrics.pop("refused", None)
    if refused is None:
        return event
    outcome = next((f.outcome for f in Failure if f == refused), Failure.CRASHED.outcome)
    reason = "The hospital could not test this model."
    return replace(event, outcome=outcome, reason=reason, metrics=metrics)
