"""A hospital judges the models that arrive, and its own visits before they leave.

The rule: strategies/protocol/soundness.py, learning/judgement.py and docs/methods/run.md. Where a
patient's image must not decide it runs on random pixels: between hospitals, since that a model is
refused is told without noise; and with `train.dp`, whose guarantee it would break.
"""

from torch import nn

from client_app.request import Request
from learning.errors import DivergedError
from learning.judgement import arrival_flaw, random_samples, relative_loss, sample, visit_flaw
from learning.packing import numpy_arrays
from learning.samples import Samples
from strategies.protocol.parcel import Manifest
from strategies.protocol.records import UselessError
from strategies.protocol.soundness import flaw_of


class Judge:
    """Judges a model at a hospital.

    Args:
        request: That it came with.
        network: The model, as it has arrived.
        label: Of its parcel.
        images: What it is to be trained on; None if it is tested.

    Raises:
        UselessError: The model is of no use.
    """

    def __init__(
        self, request: Request, network: nn.Module, label: Manifest, images: Samples | None = None
    ) -> None:
        self.request, self.network = request, network
        hospital = request.hospital
        with request.clock.measure("evaluate"):
            self.images = random_samples(hospital.data.test, len(label.classes))
            private = hospital.policy or hospital.settings.train.dp.noise_multiplier
            if images and not private:
                self.images = sample(images)
            self.loss = relative_loss(network, self.images)
        if flaw := arrival_flaw(self.loss):
            raise UselessError(f"The model of lineage '{label.lineage}' is of no use: {flaw}.")
        # Nothing is compared with a model that is tested.
        self.arrays = numpy_arrays(network.state_dict()) if images is not None else {}
        self.arrays = {name: array.copy() for name, array in self.arrays.items()}

    def check_visit(self) -> None:
        """Refuse to hand on what training has made of the model.

        Raises:
            DivergedError: Training has blown up.
        """
        request = self.request
        with request.clock.measure("evaluate"):
            flaw = flaw_of(numpy_arrays(self.network.state_dict()), self.arrays) or visit_flaw(
                self.loss, relative_loss(self.network, self.images)
            )
        if flaw:
            rate = request.hospital.settings.train.round_settings(request.order.round).learning_rate
            raise DivergedError(
                f"Training at '{request.hospital.name}' in round {request.order.round} blew up and "
                f"nothing of it was sent: {flaw}. Lower train.learning-rate there (it is {rate:g})."
            )
