"""What keeps a hospital from joining a run, as far as it is known before anything is trained."""

import numpy as np

from client_app.authority.policy import Policy, Ruling, at_least, uphold
from client_app.datasets import LocalData
from client_app.errors import DataError
from client_app.hospital import Hospital
from client_app.release.disclosure import large_class_rows
from gan.presets import chosen_preset
from learning.augmentation import check_augmentation
from learning.suited import check_suited


def check_joining(hospital: Hospital, learner: str, buffer_size: int, images: str) -> None:
    """Refuse a run that would fail later at a hospital.

    Args:
        hospital: With its settings and its images.
        learner: What its visits are going to minimise.
        buffer_size: How many synthetic images it is to make.
        images: Which its visits are going to train on.

    Raises:
        SettingsError: The settings, or the hospital's own, do not fit one another or its images; or
            images of everyone are wanted outside of a simulation.
        PolicyError: The network is larger than the hospital allows, or too few patients would be
            learnt from.
        ModelError: There is no such network, or it cannot take the hospital's images.
        PresetError: There is no such GAN, or it cannot make such images.
    """
    settings, shape = hospital.settings, hospital.data.train.shape
    if images == "everyone" and not hospital.partitions:
        hospital.everyone()  # refuses
    check_enough(hospital)
    hospital.check_first_model()
    check_suited(learner, hospital.architecture, settings)
    check_augmentation(settings.train.augment, shape)
    if buffer_size:
        chosen_preset(settings.gan.preset, size=max(shape[1:]))


def check_enough(hospital: Hospital) -> None:
    """Refuse to learn from few patients, whom a model can tell, or a GAN.

    A server decides by fractions, folds and tasks on how many there are.

    Raises:
        PolicyError: There are fewer than the hospital wants.
        DataError: A task has fewer than two images.
    """
    if policy := hospital.policy:
        uphold(enough(policy, hospital.data))
    if len(hospital.data.train) < 2:
        raise DataError(f"The hospital has too few images to train on of task {hospital.task}.")


def enough(policy: Policy, data: LocalData) -> Ruling:
    """Whether so many patients are learnt from as a policy wants.

    They are those of classes that are in figures: what is refused depends on no small one.
    """
    owners = data.train_patients
    large = large_class_rows(owners, data.train_strata, policy.figures.smallest_group)
    patients, least = len(np.unique(owners[large])), policy.images.min_train_patients
    return at_least("images.min-train-patients", patients, least)
