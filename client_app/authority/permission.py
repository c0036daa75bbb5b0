"""The permission for a run, or an order of a run, at a hospital.

`Policy.judge` applies the rules to a run's settings. The commands `policy`, `preflight` and
`report` show its rulings. `judge` adds rulings about the images. Enrolment and every later order
go through `admit`, which refuses them at the first broken rule.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from flwr.app import RecordDict

from client_app.authority.limits import check_model
from client_app.authority.policy import Policy, Ruling, uphold
from client_app.datasets import LocalData
from client_app.datasets.pool import large_class_rows
from client_app.errors import DataError
from client_app.hospital import Hospital
from gan.presets import choose_preset
from learning.models.whole import frozen_network
from learning.settings import ReservoirSettings
from learning.suited import check_suited
from strategies.engine.orders import check_order
from strategies.engine.strategy import Strategy
from strategies.protocol.order import Order
from strategies.protocol.settings import Settings


def judge(policy: Policy, settings: Settings, data: LocalData) -> Iterator[Ruling]:
    """The rulings of a policy on a run, and on the images to train on.

    Raises:
        SettingsError: The settings of the run's method cannot be used.
    """
    yield from policy.judge(settings)
    yield policy.images.ruling("max-size", max(data.image_shape[1:]))
    yield _weights_ruling(policy, settings, data)
    yield _patients_ruling(policy, data)
    yield from _means_ruling(policy, settings, data)


def admit(hospital: Hospital, strategy: Strategy, verb: str, order: Order) -> Hospital:
    """The hospital with the images of an order's task, if the order is allowed.

    `hospital` has all its images, and its policy allows the settings of the run.

    Raises:
        ParcelError: The method never gives such an order.
        PolicyError: The network or the images are larger than the hospital allows, or the hospital
            has too few training patients.
        SettingsError: The settings do not fit one another or the hospital's images; or images of
            everyone are wanted outside of a simulation.
        ModelError: There is no such network, or it does not support the hospital's images.
        PresetError: The GAN cannot make such large images.
        DataError: A task has fewer than two images, or its images are unknown.
    """
    policy, settings, shape = hospital.policy, hospital.settings, hospital.data.train.shape
    joins, prepares = verb == "query.enrol", verb == "query.prepare"
    if policy:  # in a simulation a run of another method follows: the baseline
        check_order(strategy, verb, order, hospital.name, sealed=strategy.settings.sealed)
        # With image-size 0 the images keep their own size.
        policy.images.uphold("max-size", max(hospital.data.image_shape[1:]))
        if joins or prepares:
            named = replace(settings, model=hospital.model)
            uphold(_weights_ruling(policy, named, hospital.data))
            for ruling in _means_ruling(policy, settings, hospital.data):
                uphold(ruling)
    if not joins:  # at enrolment the classes of the federation are unknown
        hospital = hospital.select_task(order.task, order.tasks_so_far)
    if joins and order.images == "everyone" and not hospital.partitions:
        hospital.images_of_all()  # refuses
    trains = verb.startswith("train") and order.images == "own"
    if joins or trains or (prepares and order.buffer_size):
        # By fractions, folds and tasks a server chooses the number of patients.
        if policy:
            uphold(_patients_ruling(policy, hospital.data))
        if len(hospital.data.train) < 2:
            raise DataError(f"The hospital has too few images to train on of task {hospital.task}.")
    if joins or prepares:  # before the first network is built
        architecture = hospital.architecture.to_json()
        check_model(policy, architecture, RecordDict(), *hospital.memory_of_a_visit)
    if joins:
        check_suited(order.learner, hospital.architecture, settings)
        if order.buffer_size:
            choose_preset(settings.gan.preset, size=max(shape[1:]))
    return hospital


def hash_weights(settings: Settings, data: LocalData) -> str:
    """SHA-256 of the pretrained weights without the head, or of those that made the features."""
    whole = data.whole or frozen_network(settings, data.train.shape)[1]
    return whole.frozen


def _weights_ruling(policy: Policy, settings: Settings, data: LocalData) -> Ruling:
    """The ruling on the pretrained weights."""
    source, allowed = settings.pretrained, policy.models.weights
    reads = data.whole or (source and allowed)  # it takes time to read them
    return policy.models.judge(source, hash_weights(settings, data) if reads else "")


def _patients_ruling(policy: Policy, data: LocalData) -> Ruling:
    """The ruling on the number of training patients: a model can tell few patients apart.

    Only patients of classes that appear in figures count. So no small class decides a refusal.
    """
    owners = data.train.patients
    large = large_class_rows(owners, data.train.strata, policy.figures.smallest_group)
    return policy.images.ruling("min-train-patients", len(np.unique(owners[large])))


def _means_ruling(policy: Policy, settings: Settings, data: LocalData) -> Iterator[Ruling]:
    """The ruling on the kept images of a class, whose mean leaves with iCaRL."""
    if settings.learner == "icarl":
        kept, classes = settings.section("reservoir", ReservoirSettings), data.classes_present
        yield policy.sums.ruling("min-class-patients", kept.size // len(classes))
