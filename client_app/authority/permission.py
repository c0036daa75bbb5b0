"""Whether a run, or an order of it, may take place at a hospital, and why not.

`Policy.judge` says what each rule says of a run's settings: the commands `policy`, `preflight` and
`report` show it. `judge` adds what is known of images. Enrolment and every later order come through
`admit`, and are refused by the first rule that is broken.
"""

from collections.abc import Iterator

import numpy as np

from client_app.authority.policy import Policy, Ruling, uphold
from client_app.datasets import LocalData
from client_app.datasets.pool import large_class_rows
from client_app.errors import DataError
from client_app.hospital import Hospital
from gan.presets import chosen_preset
from learning.suited import check_suited
from strategies.engine.orders import check_order
from strategies.engine.strategy import Strategy
from strategies.protocol.order import Order
from strategies.protocol.settings import Settings


def judge(policy: Policy, settings: Settings, data: LocalData) -> Iterator[Ruling]:
    """What each rule of a hospital says of a run, and of the images that it would train on.

    Raises:
        SettingsError: The settings of its method cannot be used.
    """
    yield from policy.judge(settings)
    yield policy.images.ruling("max-size", max(data.train.shape[1:]))
    yield _patients_ruling(policy, data)


def admit(hospital: Hospital, strategy: Strategy, verb: str, order: Order) -> Hospital:
    """The hospital as an order finds it: with the images of its task.

    Args:
        hospital: With all its images; its policy allows the settings of the run.
        strategy: The run's method, with the settings of the run.
        verb: The message type.
        order: What is to take place.

    Raises:
        ParcelError: The method never gives such an order.
        PolicyError: The hospital allows no such large network or images, or not that so few
            patients are learnt from.
        SettingsError: The settings, or the hospital's own, do not fit one another or its images; or
            images of everyone are wanted outside of a simulation.
        ModelError: There is no such network, or it cannot take the hospital's images.
        PresetError: The GAN cannot make such large images.
        DataError: A task has fewer than two images, or nothing says which images it has.
    """
    policy, settings, shape = hospital.policy, hospital.settings, hospital.data.train.shape
    joins, prepares = verb == "query.enrol", verb == "query.prepare"
    if policy:  # in a simulation a run of another method, the baseline, comes after
        check_order(strategy, verb, order, hospital.name, sealed=strategy.settings.sealed)
        policy.images.uphold("max-size", max(shape[1:]))  # with an image-size of 0 they keep theirs
    if not joins:  # before, the classes of the federation are not known
        hospital = hospital.at(order.task, order.so_far)
    if joins and order.images == "everyone" and not hospital.partitions:
        hospital.everyone()  # refuses
    trains = verb.startswith("train") and order.images == "own"
    if joins or trains or (prepares and order.buffer_size):
        # A server decides by fractions, folds and tasks on how many patients there are.
        if policy:
            uphold(_patients_ruling(policy, hospital.data))
        if len(hospital.data.train) < 2:
            raise DataError(f"The hospital has too few images to train on of task {hospital.task}.")
    if joins or prepares:
        hospital.check_first_model()
    if joins:
        check_suited(order.learner, hospital.architecture, settings)
        if order.buffer_size:
            chosen_preset(settings.gan.preset, size=max(shape[1:]))
    return hospital


def _patients_ruling(policy: Policy, data: LocalData) -> Ruling:
    """Whether so many patients are learnt from as a policy wants: a model can tell few apart.

    They are those of classes that are in figures: what is refused depends on no small one.
    """
    owners = data.train_patients
    large = large_class_rows(owners, data.train_strata, policy.figures.smallest_group)
    return policy.images.ruling("min-train-patients", len(np.unique(owners[large])))
