"""The permission for a run, or an order of a run, at a hospital.

`Policy.judge` applies the rules to a run's settings. The commands `policy`, `preflight` and
`report` show its rulings. `judge` adds rulings about the images. A session (client_app.session)
begins with `admit_run`, whatever the first message is. Each order goes through `admit`. Both refuse
at the first broken rule.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from flwr.app import RecordDict

from client_app.authority.limits import check_model
from client_app.authority.policy import Policy, Ruling, uphold
from client_app.datasets import LocalData
from client_app.datasets.pool import large_class_rows, least_patients
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
    """The rulings of a policy on a run, and on the images to train on."""
    yield from policy.judge(settings)
    yield from _run_rulings(policy, settings, data)
    yield _patients_ruling(policy, data)


def admit_run(hospital: Hospital) -> None:
    """Raise a `PolicyError` if the policy does not allow a run's images, weights or means."""
    if hospital.policy:
        named = replace(hospital.settings, model=hospital.model)
        for ruling in _run_rulings(hospital.policy, named, hospital.data):
            uphold(ruling)


def admit(hospital: Hospital, strategy: Strategy, verb: str, order: Order) -> Hospital:
    """The hospital with the images of an order's task, if the order is allowed.

    `hospital` has all its images, and its policy allows the run (`admit_run`).

    Raises:
        ParcelError: The method never gives such an order.
        PolicyError: The network is too large, or the hospital has too few training patients.
        SettingsError: The settings do not fit one another or the hospital's images.
        ModelError, PresetError: The network or the GAN does not support the hospital's images.
        DataError: A task has fewer than two images, or its images are unknown.
    """
    policy, settings, shape = hospital.policy, hospital.settings, hospital.data.train.shape
    joins, prepares = verb == "query.enrol", verb == "query.prepare"
    if policy:  # in a simulation a run of another method follows: the baseline
        check_order(strategy, verb, order, hospital.name, sealed=strategy.settings.sealed)
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
        needed = *hospital.memory_of_a_visit, hospital.bytes_beside
        check_model(policy, architecture, RecordDict(), *needed)
    if joins:
        check_suited(order.learner, hospital.architecture, settings)
        if order.buffer_size and settings.gan.method == "stylegan2-ada":
            choose_preset(settings.gan.preset, size=max(shape[1:]))
    return hospital


def hash_weights(settings: Settings, data: LocalData) -> str:
    """SHA-256 of the pretrained weights without the head, or of those that made the features."""
    whole = data.whole or frozen_network(settings, data.train.shape)[1]
    return whole.frozen


def _run_rulings(policy: Policy, settings: Settings, data: LocalData) -> Iterator[Ruling]:
    """The rulings on the size of the images, the pretrained weights, and means that leave."""
    # With image-size 0 the images keep their own size.
    yield policy.images.ruling("max-size", max(data.image_shape[1:]))
    source, allowed = settings.pretrained, policy.models.weights
    reads = data.whole or (source and allowed)  # it takes time to read them
    yield policy.models.judge_weights(source, hash_weights(settings, data) if reads else "")
    if settings.learner == "icarl":  # the mean of a class's kept images leaves
        kept, classes = settings.section("reservoir", ReservoirSettings), data.classes_present
        yield policy.sums.ruling("min-class-patients", kept.size // len(classes))


def _patients_ruling(policy: Policy, data: LocalData) -> Ruling:
    """The ruling on the number of training patients: a model can tell few patients apart.

    Only patients of classes that appear in figures count. So no small class decides a refusal. A
    server chooses the classes of a task, so their patients count in whole groups.
    """
    owners, strata, group = data.train.patients, data.train.strata, policy.figures.smallest_group
    large = large_class_rows(owners, strata, group)
    if data.train.tasks is None:
        count = len(np.unique(owners[large]))
    else:
        count = least_patients(owners[large], strata[large], group)
    return policy.images.ruling("min-train-patients", count)
