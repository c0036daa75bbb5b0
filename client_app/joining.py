"""What keeps a hospital from joining a run, as far as it is known before anything is trained."""

from client_app.hospital import Hospital
from client_app.presets import fitted_preset
from learning.augmentation import check_augmentation
from learning.suited import check_suited


def check_joining(hospital: Hospital, learner: str, buffer_size: int) -> None:
    """Refuse a run that would fail later at a hospital.

    Args:
        hospital: With its settings and its images.
        learner: What its visits are going to minimise.
        buffer_size: How many synthetic images it is to make.

    Raises:
        SettingsError: The settings, or the hospital's own, do not fit one another or its images.
        PolicyError: The network is larger than the hospital allows.
        ModelError: There is no such network, or it cannot take the hospital's images.
    """
    settings, shape = hospital.settings, hospital.data.train.shape
    hospital.check_first_model()
    check_suited(learner, hospital.architecture, settings)
    check_augmentation(settings.train.augment, shape)
    if buffer_size:
        fitted_preset(settings.gan, shape)
