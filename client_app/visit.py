"""A visit: the local training of a model that has arrived at a hospital.

It raises the errors of client_app/errors.py.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from numpy.typing import NDArray
from torch import Tensor, nn

from client_app.afterwards.home import keep_own, keep_visit
from client_app.authority.judge import Judge
from client_app.authority.policy import PolicyError
from client_app.authority.privacy_account import Spent, require_delta
from client_app.errors import DataError
from client_app.parcels import keep_local, open_buffers, pack, unpack
from client_app.release.details import Details
from client_app.release.disclosure import Noised, open_disclosure
from client_app.release.embeddings import pack_embeddings
from client_app.request import Clock, Request
from client_app.run import Kept, Place, check_newest, count_visit
from learning.dp_sgd import PrivateSteps, check_network
from learning.evaluation import probabilities
from learning.learners.plain import Received
from learning.learners.prototypes import FedSpace
from learning.learners.sums import Sums
from learning.packing import pack_memory, pack_optimizer
from learning.randomness import secret_rng
from learning.samples import Samples
from learning.training import train
from strategies.protocol.console import Pace
from strategies.protocol.parcel import Manifest, bundle, drop_encoder, parcel_in
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import PUBLIC, TrainSettings, rng_for


def train_here(message: Message, context: Context) -> Message:
    """Train the model of the message, and test it if the order says so.

    The answer has the trained model's parcel, with its `snapshots` if they were ordered.
    """
    request = Request.open(message, context, Clock(message.metadata.ttl))
    if policy := request.hospital.policy:
        count_visit(request.run, policy.runs.max_visits)
    if issubclass(request.learner, Sums):
        from client_app.release.sums.ring import visit_ring  # imports that take seconds

        return visit_ring(request)
    visit = Visit(request)
    metrics = visit.train()
    visit.attack()
    figures = visit.tell(metrics)
    figures |= visit.embed()
    parcel = pack(request, visit.network, visit.label, visit.beside)
    visit.keep(parcel, figures)
    return request.answer(figures, visit.content(parcel))


class Visit:
    """A visit; the methods are its steps, in order."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.network, arrived, beside = unpack(request, parcel_in(request.message.content))
        self.images = _images(request)
        self.judge = Judge(request, self.network, arrived, self.images)
        self.arrived = arrived
        self.buffers = open_buffers(request)
        used = request.order.without_buffers(request.order.hash_of.keys() - self.buffers.keys())
        self.label = arrived.advance(used)  # label of the parcel that leaves
        own = {*self.label.visited} == {request.hospital.name} and request.order.images == "own"
        # Whether it is a model's first visit, at the hospital that made it
        self.alone = arrived.round == 0 and own
        self.kept = Kept(request.run, "rehearsal")
        self.place: Place = request.visit  # place of the visit in the kept memories
        if request.order.asynchronous:
            self.place = self.kept.by_arrival(self.label.lineage, request.order.hop)
        rehearsal = self.kept.load(self.place)
        self.received = _collect_received(request, arrived, beside, rehearsal, self.buffers)
        self.beside: dict[str, ArrayRecord] = {}  # records that leave beside the model
        self.snapshots: dict[str, RecordDict] = {}  # the model after earlier epochs, if ordered

    def train(self) -> dict[str, float]:
        """Train the model and judge the result; returns the metrics of training."""
        request, order, hospital = self.request, self.request.order, self.request.hospital
        settings, clock = hospital.settings, request.clock
        place = (*request.visit, hospital.name)
        if order.asynchronous:  # random numbers must not depend on the round of arrival
            place = (0, order.hop, self.label.lineage)
        with clock.measure("train"):
            self.learner = request.learner(self.network, self.images, settings, self.received)
            if order.epochs < 1 or not len(self.learner.samples):
                raise ParcelError("The order asks for training with no epoch, or with no image.")
            if request.seal:  # after all checks: a refused model must not count as the newest
                check_newest(request.run, self.arrived)
            rng = rng_for(settings.seed, "visit", *place)
            pace = Pace(f"{hospital.name} trains the model of {self.label.lineage}", "images")
            # Without rounds the visits of a model count, which no slow hospital delays.
            count = order.hop if order.asynchronous else order.round
            in_round = settings.train.round_settings(count)
            private, spent = None, {}
            if in_round.dp.noise_multiplier:
                private, total = _private_steps(request, in_round, self.network, place)
                spent["epsilon-spent"] = total
            metrics = train(
                self.learner,
                in_round,
                order.epochs,
                rng,
                clock.deadline,
                self._keep_snapshot,
                pace,
                fewest=hospital.policy.images.min_batch if hospital.policy else 2,
                private=private,
            )
            self.judge.check_visit(in_round.learning_rate)
            self.memory = self.learner.memory(rng_for(settings.seed, "importance", *place))
        makers = enumerate(order.hash_of)
        unused = {f"buffer-unused-{k}": 1.0 for k, maker in makers if maker not in self.buffers}
        return metrics | spent | unused

    def attack(self) -> None:
        """Attack the model before it leaves, if the policy asks for it.

        An attack uses all images, which takes time. Without a limit (`max_membership` 1) only
        models of the last round are attacked.
        """
        hospital, order = self.request.hospital, self.request.order
        policy, last = hospital.policy, order.round == hospital.settings.num_server_rounds
        if policy and order.images == "own" and (last or policy.models.max_membership < 1):
            from client_app.release.model_attack import attack_model  # imports that take seconds

            attack_model(self.request, self.network, self.label, policy.models)

    def tell(self, metrics: dict[str, float]) -> dict[str, float]:
        """The figures of the model that leave. The learner's memory is put beside the model.

        In a deployment figures and prototypes count as one model that the hospital answers for.
        """
        self.disclosure = open_disclosure(self.request)
        model = self.disclosure.fingerprint(self.network, self.label)
        figures = {**metrics, "num-examples": self.disclosure.weight(metrics["num-examples"])}
        sums = isinstance(self.learner, FedSpace) and len(self.memory) > 0
        if isinstance(self.disclosure, Noised):
            figures.pop("train-loss")
            self.memory = {} if sums else self.memory
        try:
            self.disclosure.admit(model)
        except PolicyError as error:  # the visit counts all the same
            logging.getLogger("flwr").error(error.explain())
        else:
            figures |= self._measure(model, sums)
        if self.alone:
            Details(self.disclosure).keep_alone(self.network, self.label)
        if self.memory:
            self.beside["memory"] = pack_memory(self.memory)
        if self.learner.optimizer:
            self.beside["optimizer"] = pack_optimizer(self.learner.optimizer)
        return figures

    def embed(self) -> dict[str, float]:
        """Put embeddings beside the model, if they were ordered; returns their figures."""
        if not self.request.order.embeddings:
            return {}
        sent, figures = pack_embeddings(self.request, self.learner, self.disclosure)
        self.beside |= sent
        return figures

    def keep(self, parcel: RecordDict, figures: Mapping[str, float]) -> None:
        """Keep the local layers, the hospital's own copies of models, and a stream's images."""
        request = self.request
        keep_local(request, self.network)
        label = Manifest.read(parcel)  # with the hashes
        if self.alone:
            keep_own(self.disclosure, self.network, label)
        keep_visit(self.disclosure, self.network, label, figures)
        if rehearsal := self.learner.rehearsal():
            arrays = {name: tensor.cpu().numpy() for name, tensor in rehearsal.items()}
            self.kept.save(self.place, arrays)

    def content(self, parcel: RecordDict) -> RecordDict:
        """The records of the answer: the parcel and its snapshots."""
        if self.request.order.encoder:  # a model that came without its encoder returns without it
            came = self.request.message.content.array_records["model"]
            parcel = drop_encoder(parcel, parcel.array_records["model"].keys() - came.keys())
        return RecordDict({**parcel, **bundle(self.snapshots)})

    def _measure(self, model: str, sums: bool) -> dict[str, float]:
        """The figures of a counted model. With `sums`, noised prototypes become the memory."""
        request, disclosure = self.request, self.disclosure
        figures: dict[str, float] = {}
        with request.clock.measure("evaluate"):
            if isinstance(disclosure, Noised):
                # DP-SGD's guarantee does not cover them.
                if not request.hospital.settings.train.dp.noise_multiplier:
                    figures |= disclosure.loss_figures(model, self.network)
                own_images = request.order.images == "own"
                if sums and own_images and isinstance(self.learner, FedSpace):
                    self.memory = disclosure.prototypes(model, self.learner.model)
            if request.order.test:
                images = request.hospital.data.test.images
                scores = probabilities(self.network, images, request.clock.deadline)
                own = disclosure.test_figures(model, scores)
                if "accuracy" in own:
                    figures["accuracy-after-visit"] = own["accuracy"]
        return figures

    def _keep_snapshot(self, epoch: int) -> None:
        if self.request.order.snapshots and epoch < self.request.order.epochs:
            label = replace(self.label, epochs=epoch)
            self.snapshots[f"epoch-{epoch}"] = pack(self.request, self.network, label)


def _private_steps(
    request: Request, settings: TrainSettings, network: nn.Module, place: tuple[int, int, str]
) -> tuple[PrivateSteps, float]:
    """The steps of DP-SGD, if the privacy account allows them; and the ε spent so far.

    In a simulation each run has an account, and the noise follows from the seed and `place`. In a
    deployment the server knows the seed and could subtract such noise. There the noise comes from a
    key of 128 bits of the system's entropy.
    """
    hospital, order, policy = request.hospital, request.order, request.hospital.policy
    settings.check_learner(order.learner)
    if order.images != "own":
        raise ParcelError("With train.dp a model may train on the hospital's own images only.")
    check_network(network)
    owners, dp = hospital.data.train.patients, settings.dp
    require_delta("train.dp.delta", dp.delta, owners, hospital.smallest_group)
    secret = secret_rng() if policy else rng_for(hospital.settings.seed, "dp", *place)
    private = PrivateSteps.plan(owners, settings.batch_size, dp, secret)
    when = f"round {order.round}"
    if order.asynchronous:  # models of two hospitals may make the same hop in one round
        when = f"the model of {place[-1]}"
    what = f"{request.verb} of {when}, hop {order.hop} of run {order.run}"
    spent = Spent(what, dp.noise_multiplier, private.rate, private.steps * order.epochs)
    return private, request.spend(spent, dp.delta)


def _collect_received(
    request: Request,
    label: Manifest,
    beside: Mapping[str, Mapping[str, Tensor]],
    rehearsal: Mapping[str, NDArray[np.generic]],
    buffers: Mapping[str, Samples],
) -> Received:
    """The data that came with the model, and the hospital's memory of its stream."""
    hospital, images, archive = request.hospital, request.order.images, request.learner.archive
    device, policy = hospital.device, hospital.policy
    named = archive and str(hospital.settings.run_config[archive]).startswith(PUBLIC)
    return Received(
        [*buffers.values()],
        beside.get("memory", {}),
        optimizer=beside.get("optimizer", {}),
        rehearsal={name: torch.from_numpy(array).to(device) for name, array in rehearsal.items()},
        leg=request.order.leg,
        new_rounds=request.order.round - label.round,
        task=request.order.task,
        # Images that the learner uses beside the training images
        public=hospital.public(archive) if named and images != "public" else None,
        owners=torch.from_numpy(hospital.data.train.patients) if images == "own" else None,
        fewest=policy.sums.min_class_patients if policy else 1,
        least_kept=policy.images.least_kept if policy else 1,
        min_batch=policy.images.min_batch if policy else 1,
        deadline=request.clock.deadline,
    )


def _images(request: Request) -> Samples:
    """The training images of the order, without buffers."""
    hospital = request.hospital
    own = hospital.data.train
    if request.order.images == "own":
        return own
    if request.order.images == "everyone":
        return hospital.images_of_all()
    if request.order.images == "public":
        images = hospital.public(request.learner.archive)
        if int(images.labels.max()) >= len(hospital.data.classes):
            raise DataError("The public images have more classes than the hospital's.")
        return images
    return own[torch.empty(0, dtype=torch.int64)]
