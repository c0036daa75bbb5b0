"""FedRewind at the hospital (strategies/fedrewind.py): how BatchNorm is trained.

By default, `rewind.batch-norm = "train"`, a visit is like any other. With "reference" it is as in
the authors' code. That code measures the loss after each epoch and does not go back to training
mode: after the first epoch, BatchNorm normalises by its running statistics, which no longer change,
and there is no dropout. Its FedAvg stays in training mode until the rewind leg, and it averages
parameters only: the running statistics stay local, and go with the model on the rewind leg.
"""

from math import inf

from torch import nn

from learning.learners.plain import Learner, batchnorm_keys
from learning.settings import BatchNormSettings
from strategies.protocol.settings import Settings


class FedRewind(Learner):
    """Cross-entropy on one of a visit's three legs."""

    tables = (("rewind", BatchNormSettings),)
    own: BatchNormSettings
    reference_epochs: float = 1  # of the first leg in training mode, in the authors' code

    def begin_visit(self) -> None:
        """Set the number of epochs in training mode, from the first one on."""
        self.training_epochs = inf
        if self.own.batch_norm == "reference":
            self.training_epochs = self.reference_epochs if self.received.leg == 1 else 0

    def begin_epoch(self, epoch: int) -> None:
        """Set the network's mode."""
        self.set_mode(epoch <= self.training_epochs)


class FedRewindAveraged(FedRewind):
    """FedRewind for a server that averages afterwards."""

    withholds = False  # the statistics go with the model on the rewind leg
    reference_epochs = inf

    @classmethod
    def local(cls, model: nn.Module, settings: Settings) -> set[str]:
        """Running statistics and counters of all BatchNorm layers, if they are not averaged."""
        averaged = cls.read_settings(settings).batch_norm == "train"
        return set() if averaged else batchnorm_keys(model, statistics_alone=True)
