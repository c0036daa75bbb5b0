"""FedBN at the hospital (strategies/fedbn.py).

Li et al., ICLR 2021, arXiv:2102.07623, Algorithm 1: BatchNorm layers are not communicated.
"""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from client_app.learners.plain import Plain
from strategies.settings import Settings, SettingsError


class FedBN(Plain):
    """Cross-entropy; every BatchNorm layer, whatever its name, stays home."""

    @staticmethod
    def owns(model: nn.Module, settings: Settings) -> set[str]:
        """Weights, biases, running statistics and counters of all BatchNorm layers.

        Raises:
            SettingsError: There is none, so that this would be FedAvg.
        """
        names = {
            f"{prefix}.{name}"
            for prefix, module in model.named_modules()
            if isinstance(module, _BatchNorm)
            for name in module.state_dict()
        }
        if not names:
            raise SettingsError(
                "The setting 'strategy' is 'fedbn', but the model has no BatchNorm layer: choose a "
                "model that has some, such as cnn or resnet18."
            )
        return names
