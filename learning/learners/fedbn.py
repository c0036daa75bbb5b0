"""FedBN at the hospital (strategies/fedbn.py).

Li et al., ICLR 2021, arXiv:2102.07623, Algorithm 1: BatchNorm layers are not communicated.
"""

from torch import nn

from learning.errors import ModelError
from learning.learners.plain import Learner, batchnorm_keys
from strategies.protocol.settings import Settings


class FedBN(Learner):
    """Cross-entropy; every BatchNorm layer, whatever its name, stays local."""

    @classmethod
    def check_suited(cls, model: nn.Module, settings: Settings) -> None:
        """Refuse a model without BatchNorm layers, since this would be FedAvg."""
        if not batchnorm_keys(model):
            raise ModelError(
                "The strategy 'fedbn' needs a model with BatchNorm layers, and this model has no "
                "BatchNorm layer: choose another one, such as cnn or resnet18."
            )

    @classmethod
    def local(cls, model: nn.Module, settings: Settings) -> set[str]:
        """Weights, biases, running statistics and counters of all BatchNorm layers."""
        return batchnorm_keys(model)
