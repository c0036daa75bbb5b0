"""The handlers of the messages in client_app/app.py, without visits (client_app/visit.py).

They raise the errors of client_app/errors.py. The guard (release/guard.py) makes answers of them.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from torch import Tensor, nn

from client_app.afterwards.home import count_images, keep_ensemble, keep_mixture, keep_tested
from client_app.authority.judge import Judge
from client_app.authority.policy import PolicyError
from client_app.errors import DataError, failure_of, line_of
from client_app.parcels import keep_local, keep_record, pack, unpack
from client_app.release.details import Details, Outputs
from client_app.release.disclosure import Disclosure, fingerprint, open_disclosure
from client_app.request import Clock, Request
from learning.errors import DivergedError, ModelError
from learning.evaluation import probabilities
from learning.packing import pack_buffer
from strategies.protocol.may_leave import Failure
from strategies.protocol.parcel import Manifest, unbundle
from strategies.protocol.records import ParcelError, find_record
from strategies.protocol.text import amount

# The sentence on a card about a buffer that no attack has tested.
UNTESTED = {
    "too small to tell": "The attacks on them were too weak to exclude a leak.",
    "not attacked": "No attack was tried on them.",
}
# The errors for which a model is not tested.
REFUSED = (ParcelError, ModelError, PolicyError, DivergedError)


def enrol(message: Message, context: Context) -> Message:
    """Introduce the hospital, or refuse a run that would fail later."""
    clock = Clock(message.metadata.ttl)
    with clock.measure("prepare"):
        request = Request.open(message, context, clock)
    card = request.hospital.card
    if request.seal:
        card["identity"] = str(request.seal.identity.member)
    return request.answer({}, card=card)


def prepare(message: Message, context: Context) -> Message:
    """Make the hospital's first model, and its buffer if the order asks for one."""
    clock = Clock(message.metadata.ttl)
    with clock.measure("prepare"):
        request = Request.open(message, context, clock)
        order, hospital = request.order, request.hospital
        network = hospital.first_model(order.own_start)
        # Numbers and hashes are about all images, for any task of the order.
        disclosure = open_disclosure(replace(request, hospital=hospital.select_task(0)))
        data = disclosure.data
        metrics = disclosure.counts()
        counts = count_images(data, disclosure.smallest, disclosure.number)
        counts = _numbers(counts, data.classes)
        metrics |= {name: disclosure.round_count(count) for name, count in counts.items()}
        card: dict[str, str | list[str] | list[int]] = {
            "data": data.kind,
            **data.hashes(hospital.secret),
        }
        if hospital.own_settings:
            card["own-settings"] = list(hospital.own_settings)
        beside = {}
        if order.buffer_size:
            from client_app.release.buffer import make_buffer  # its imports take seconds
            from client_app.release.dossier.contents import keep_dossier

            of_task = open_disclosure(request)
            size, large = order.buffer_size, of_task.learnt
            made = make_buffer(hospital, size, clock.deadline, large, request.run)
            card["dossier"] = keep_dossier(request, made)
            beside["buffer"] = pack_buffer(made.samples, str(card["dossier"]))
            metrics |= of_task.buffer_figures(made.figures, made.samples.labels)
            kind = f"synthetic {'vector' if hospital.data.whole else 'image'}"
            release = f"{amount(len(made.samples), kind)} passed the release check."
            if untested := UNTESTED.get(made.attacked.get("verdict", "not attacked")):
                release += f" {untested}"
            withheld = hospital.policy.figures.withheld if hospital.policy else ()
            told = {name: each for name, each in made.figures.items() if name not in withheld}
            if told.get("gan-private") == 0:
                release += " The privacy loss had no part in them."
            if {"gan-epsilon", "gan-delta"} <= told.keys():
                epsilon, delta = (told[f"gan-{each}"] for each in ("epsilon", "delta"))
                release += f" Before the check their guarantee is ε = {epsilon:g}, δ = {delta:g}."
            card["release"] = release
        label = Manifest(hospital.name, hospital.architecture.to_json(), list(data.classes))
        parcel = pack(request, network, label, beside)
        keep_local(request, network)
        if buffer := find_record(parcel, "buffer", ArrayRecord):
            hash_ = Manifest.read(parcel).hash_of["buffer"]
            keep_record(hospital, f"buffers/{hash_}", buffer)
    return request.answer(metrics, parcel, card)


def test(message: Message, context: Context) -> Message:
    """Test the models of the message on the hospital's own test images; refuse unusable models."""
    request = Request.open(message, context, Clock(message.metadata.ttl))
    hospital, disclosure = request.hospital, open_disclosure(request)
    if request.order.task and not len(disclosure.labels):
        raise DataError("The hospital has too few test images of the tasks so far.")
    # Operating points need training images. A task may have none here.
    detailed = request.order.final and len(hospital.data.train) > 0
    details = Details(disclosure) if detailed else None
    metrics = _prefix("standalone", details.alone_figures()) if details else {}
    images = hospital.data.test.images  # read once: the property may make a copy
    parcels = unbundle(message.content)
    newest = _newest(parcels) if request.order.final else set()
    members: list[Outputs] = []  # of the ensemble, if it was ordered
    scores: dict[str, Tensor] = {}  # of the newest models, by lineage
    for name, parcel in parcels.items():
        try:
            network, label, _ = unpack(request, parcel, tested=True)
            of_model = details if name in newest else None
            outputs, figures = _test_model(disclosure, of_model, network, label, images)
            if name in newest:
                keep_tested(disclosure, network, label, figures)
        except REFUSED as error:  # the other models are tested all the same
            figures = {"refused": _log_refusal(name, error)}
        else:
            if request.order.ensemble:
                members.append(outputs)
            if name in newest:
                scores[label.lineage] = outputs.test
        metrics |= _prefix(name, figures)
    if members and len(members) == len(parcels):
        try:
            figures = _test_ensemble(disclosure, details, members)
        except REFUSED as error:
            _log_refusal("ensemble", error)
        else:
            metrics |= _prefix("ensemble", figures)
    if details and not request.order.task:
        own = details.alone_outputs()
        keep_mixture(request, scores, own.test if own else None)
    return request.answer(metrics)


def _test_model(
    disclosure: Disclosure,
    details: Details | None,
    network: nn.Module,
    label: Manifest,
    images: Tensor,
) -> tuple[Outputs, dict[str, float]]:
    """Test a model on all test images [n, C, H, W] of the hospital."""
    request = disclosure.request
    with request.clock.measure("evaluate"):
        model = disclosure.fingerprint(network, label)
        disclosure.admit(model, label)
    Judge(request, network, label)  # after the count: layers that stay here decide, too
    with request.clock.measure("evaluate"):
        scores = probabilities(network, images, request.clock.deadline)
    per_class = request.hospital.settings.evaluate.per_class
    figures = disclosure.test_figures(model, scores, per_class=per_class)
    outputs = Outputs(model, scores, torch.zeros((), device=scores.device))
    if details:
        outputs = details.outputs(model, network, scores)
        figures = details.figures(outputs, figures)
    return outputs, figures


def _test_ensemble(
    disclosure: Disclosure, details: Details | None, members: list[Outputs]
) -> dict[str, float]:
    """Test the mean of the models' probabilities, and keep its figures at home."""
    if disclosure.rules:  # sums depend on their order, and each order would be a question
        members = sorted(members, key=lambda each: each.model)
    model = fingerprint(sorted((each.model, each.seen.ndim) for each in members))
    none = torch.zeros((), device=members[0].test.device)
    test = sum((each.test for each in members), none)
    disclosure.admit(model)
    figures = disclosure.test_figures(model, test)
    if details:
        seen = sum((each.seen for each in members), none)
        outputs = Outputs(model, test / len(members), seen / len(members))
        figures = details.figures(outputs, figures)
    keep_ensemble(disclosure.request, figures)
    return figures


def _numbers(counts: Mapping[str, float], classes: Sequence[str]) -> dict[str, float]:
    """The numbers of images and patients, by metric (client_app.afterwards.home.count_images)."""
    figures = {
        f"{part}-images-of-class-{k}": counts[f"{part}/{name}"]
        for part in ("train", "test")
        for k, name in enumerate(classes)
        if f"{part}/{name}" in counts
    }
    groups = {f"num-{part}-patients": f"{part}-groups" for part in ("train", "test")}
    return figures | {key: counts[name] for key, name in groups.items() if name in counts}


def _newest(parcels: Mapping[str, RecordDict]) -> set[str]:
    """The names of the parcels with the newest model of each lineage."""
    newest: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, parcel in parcels.items():
        with suppress(ParcelError):  # it is refused when it is tested
            label = Manifest.read(parcel)
            place = (label.round, label.hop, label.epochs)
            newest[label.lineage] = max(newest.get(label.lineage, ((), "")), (place, name))
    return {name for _, name in newest.values()}


def _log_refusal(name: str, error: Exception) -> Failure:
    """The kind of failure of a test; the hospital's own log gets the reason."""
    logging.getLogger("flwr").error("The model %a is not tested: %s", name, line_of(error))
    return failure_of(error)


def _prefix(lineage: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"{lineage}/{name}": value for name, value in metrics.items()}
