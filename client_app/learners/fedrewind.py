"""FedRewind at the hospital (strategies/fedrewind.py): how BatchNorm is trained.

By default, `rewind.batch-norm = "train"`, a visit is like any other. With "reference" it is as in
the authors' code. That measures the loss after each epoch and does not go back to training mode:
after the first epoch, BatchNorm normalises by running statistics that stay as they are (and there
is no dropout). Its FedAvg, on which other clients work, stays in training mode until the rewind leg
and averages parameters only: every hospital has running statistics of its own, which go with the
model on that leg.
"""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from client_app.hospital import Hospital
from client_app.learners.plain import NOTHING, Plain, Received
from strategies.settings import Settings


class FedRewind(Plain):
    """Cross-entropy; a round's second and third leg find a model that had a visit in that round."""

    withholds = False

    def __init__(self, model: nn.Module, hospital: Hospital, received: Received = NOTHING) -> None:
        super().__init__(model, hospital)
        settings, first_leg = hospital.settings.rewind, received.new_rounds > 0
        self.training_epochs = 0  # in which the network is in training mode, from the first one on
        if settings.batch_norm == "train" or (first_leg and settings.base == "fedavg"):
            self.training_epochs = hospital.settings.train.epochs
        elif first_leg:
            self.training_epochs = 1

    def begin_epoch(self, epoch: int) -> None:
        """Put the network into its mode."""
        self.model.train(epoch <= self.training_epochs)

    @staticmethod
    def owns(model: nn.Module, settings: Settings) -> set[str]:
        """Running statistics and counters of all BatchNorm layers, if they are not averaged."""
        if settings.rewind.batch_norm == "train" or settings.rewind.base != "fedavg":
            return set()
        return {
            f"{prefix}.{name}"
            for prefix, module in model.named_modules()
            if isinstance(module, _BatchNorm)
            for name, _ in module.named_buffers()
        }
