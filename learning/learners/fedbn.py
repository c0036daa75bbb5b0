"""FedBN at the hospital (strategies/fedbn.py).

Li et al., ICLR 2021, arXiv:2102.07623, Algorithm 1: BatchNorm layers are not communicated.
"""

from torch import nn

from learning.learners.plain import Learner, batchnorm_keys
from strategies.protocol.settings import Settings, SettingsError


class FedBN(Learner):
    """Cross-entropy; every BatchNorm layer, whatever its name, stays local."""

    @classmethod
    def local(cls, model: nn.Module, settings: Settings) -> set[str]:
        """Weights, biases, running statistics and counters of all BatchNorm layers.

        Raises:
            SettingsError: The model has no BatchNorm layer, so this would be FedAvg.
        """
        names = batchnorm_keys(model)
        if not names:
            raise SettingsError(
                "The setting 'strategy' is 'fedbn', but the model has no BatchNorm layer: choose a "
                "model that has some, such as cnn or resnet18."
            )
        return names
