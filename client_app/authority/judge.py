"""A hospital judges the models that arrive, and its own visits before they leave.

The rule: strategies/protocol/soundness.py, learning/judgement.py and docs/methods/run.md. In a
deployment it runs on random pixels: the server learns of a refusal without noise, so no patient's
image may decide it. With `train.dp` it does too: a decision by real images would break the
guarantee.
"""

from torch import nn

from client_app.request import Inquiry
from learning.errors import DivergedError
from learning.judgement import (
    HOPELESS,
    WORSE,
    arrival_flaw,
    random_samples,
    relative_loss,
    sample,
    visit_flaw,
)
from learning.packing import numpy_arrays
from learning.samples import Samples
from strategies.protocol.parcel import Manifest
from strategies.protocol.records import UselessError
from strategies.protocol.soundness import flaw_of


class Judge:
    """Judges a model at a hospital; raises a `UselessError` if it is of no use.

    `images` are the images to train on; None if the model is only tested.
    """

    def __init__(
        self, request: Inquiry, network: nn.Module, label: Manifest, images: Samples | None = None
    ) -> None:
        self.request, self.network = request, network
        hospital = request.hospital
        with request.clock.measure("evaluate"):
            private = hospital.policy or hospital.settings.train.dp.noise_multiplier
            if images and not private:
                self.images, self.limit = sample(images), WORSE
            else:
                self.images = random_samples(hospital.data.test, len(label.classes))
                self.limit = HOPELESS
            self.loss = relative_loss(network, self.images)
        if flaw := arrival_flaw(self.loss):
            raise UselessError(f"The model of lineage '{label.lineage}' is of no use: {flaw}.")
        # A model that is only tested does not change: no copy is needed.
        self.arrays = numpy_arrays(network.state_dict()) if images is not None else {}
        self.arrays = {name: array.copy() for name, array in self.arrays.items()}

    def check_visit(self, learning_rate: float) -> None:
        """Raise a `DivergedError` if training with this learning rate has spoilt the model."""
        request = self.request
        with request.clock.measure("evaluate"):
            flaw = flaw_of(numpy_arrays(self.network.state_dict()), self.arrays) or visit_flaw(
                self.loss, relative_loss(self.network, self.images), self.limit
            )
        if flaw:
            raise DivergedError(
                f"Training at '{request.hospital.name}' in round {request.order.round} diverged "
                f"and nothing of it was sent: {flaw}. Lower train.learning-rate there (it is "
                f"{learning_rate:g})."
            )
