"""Whether a learner can train a network with a run's settings and images, before it does.

`python -m server_app check` asks before a run, and each hospital when it enrols. What a learner
needs is declared beside it: `tables` and `check_suited`.
"""

from learning.augmentation import check_augmentation
from learning.dp_sgd import check_network
from learning.learners import LEARNERS
from learning.models import Architecture
from strategies.protocol.settings import Settings


def check_suited(learner: str, architecture: Architecture, settings: Settings) -> None:
    """Refuse what visits would fail with.

    Raises:
        SettingsError: A setting that the learner reads cannot be used, or not with such images.
        ModelError: The learner, or DP-SGD, cannot train the network.
    """
    kind = LEARNERS[learner]
    kind.check(settings)
    settings.train.check_learner(learner)
    shape = architecture.channels, architecture.height, architecture.width
    check_augmentation(settings.train.augment, shape)
    network = architecture.skeleton()
    kind.check_suited(network, settings)
    if settings.train.dp.noise_multiplier:
        check_network(network)
