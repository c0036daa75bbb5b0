"""A hospital judges the models that arrive, and its own visits before they leave.

The rule: strategies/protocol/soundness.py, learning/judgement.py and docs/methods/run.md. Where a
patient's image must not decide it runs on random pixels: between hospitals, since that a model is
refused is told without noise; and with `train.dp`, whose guarantee it would break.
"""

from torch import nn

from client_app.request import Request
from learning.errors import DivergedError
from learning.judgement import flaw_of_visit, flaw_on_arrival, loss_of, nobodys, some
from learning.packing import as_arrays
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
            self.images = nobodys(hospital.data.test, len(label.classes))
            private = hospital.policy or hospital.settings.train.dp.noise_multiplier
            if images and not private:
                self.images = some(images)
            self.loss = loss_of(network, self.images)
        if flaw := flaw_on_arrival(self.loss):
            raise UselessError(f"The model of lineage '{label.lineage}' is of no use: {flaw}.")
        # Nothing is compared with a model that is tested.
        self.arrays = as_arrays(network.state_dict()) if images is not None else {}
        self.arrays = {name: array.copy() for name, array in self.arrays.items()}

    def check_visit(self) -> None:
        """Refuse to hand on what training has made of the model.

        Raises:
            DivergedError: Training has blown up.
        """
        request = self.request
        with request.clock.measure("evaluate"):
            flaw = flaw_of(as_arrays(self.network.state_dict()), self.arrays) or flaw_of_visit(
                self.loss, loss_of(self.network, self.images)
            )
        if flaw:
            rate = request.hospital.settings.train.round_settings(request.order.round).learning_rate
            raise DivergedError(
                f"Training at '{request.hospital.name}' in round {request.order.round} blew up and "
                f"nothing of it was sent: {flaw}. Lower train.learning-rate there (it is {rate:g})."
            )
