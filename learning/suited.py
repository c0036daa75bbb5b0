"""A check before a run: can a learner train a network with the run's settings and images?

`fedhandoff check` runs it, and each hospital when it enrols. Both judge only what is known
before a visit. A learner declares its needs in `tables` and `check_suited`.
"""

from learning.augmentation import check_augmentation
from learning.dp_sgd import check_network
from learning.errors import ModelError, warn_once
from learning.learners import LEARNERS
from learning.learners.plain import batchnorm_layers
from learning.models import Architecture, activations
from strategies.protocol.settings import Settings


def check_suited(
    learner: str, architecture: Architecture, settings: Settings, *, sized: bool = True
) -> None:
    """Refuse settings and networks with which visits would fail.

    `sized`: the size of the images is known. Else the network is not tried on them.

    Raises:
        SettingsError: A setting that the learner reads cannot be used, or not with such images.
        ModelError: The learner, or DP-SGD, cannot train the network, or not on such images.
    """
    kind = LEARNERS[learner]
    kind.read_settings(settings)
    settings.train.check_learner(learner)
    check_augmentation(settings.train.augment, architecture.image_shape)
    network = architecture.skeleton()
    kind.check_suited(network, settings)
    has_batchnorm = bool(batchnorm_layers(network))
    if settings.train.freeze == "statistics" and not has_batchnorm:
        raise ModelError(
            "The setting 'train.freeze' is 'statistics', and the model "
            f"'{architecture.name}' has no BatchNorm layer: set 'train.freeze' to 'none'."
        )
    if settings.train.freeze == "none" and architecture.unit_features and has_batchnorm:
        warn_once(
            "The last layer of 'pretrained' fits the statistics of BatchNorm in that file, and "
            "training changes them: the model is much worse. Set 'train.freeze' to 'statistics'."
        )
    if settings.train.dp.noise_multiplier:
        check_network(network)
    if sized:
        activations(architecture)
