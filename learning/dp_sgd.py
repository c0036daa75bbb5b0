"""DP-SGD: a visit with differential privacy for each patient (Abadi et al. 2016, arXiv:1607.00133).

Each step draws each patient independently (Poisson sampling, as the accountant assumes), and one
image of each drawn patient. If patients are not known, each image counts as one. Each image's
gradient is clipped to a norm C, and noise of σ C is added to their sum (opacus). The guarantee
covers the model. It does not cover the loss of a visit or test figures.
"""

import hmac
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from learning.augmentation import Augment
from learning.errors import ModelError
from strategies.protocol.settings import DPSettings


def check_network(network: nn.Module) -> None:
    """Refuse a network that mixes the images of a batch.

    Raises:
        ModelError: It has BatchNorm, or a layer that opacus does not support.
    """
    from opacus.grad_sample import GradSampleModule  # takes seconds
    from opacus.validators import ModuleValidator

    flaws = ModuleValidator.validate(network.train(), strict=False)
    # Weights of the network itself, as in a ViT of timm, belong to no layer: opacus fails on them.
    if flaws or GradSampleModule.validate(network) or [*network.parameters(recurse=False)]:
        raise ModelError(
            "With 'train.dp.noise-multiplier' above 0 no layer may mix the images of a batch, as "
            "BatchNorm does, and opacus must know all layers. Choose the model 'mlp', "
            "'squeezenet1_1' or 'vgg11'."
        )


@dataclass(frozen=True, eq=False)
class PrivateSteps:
    """The changes of DP-SGD to the training loop (learning/training.py).

    The loss must be a mean of losses of single images.
    """

    owners: NDArray[np.int64]  # the patient of each image [N]
    rate: float  # the probability that a step draws a patient
    steps: int  # steps of an epoch; on average an epoch draws a patient once
    settings: DPSettings  # noise and clipping
    # Source of the sampling and the noise. Anyone who can repeat its draws can subtract the noise.
    secret: np.random.Generator

    @classmethod
    def plan(
        cls,
        owners: NDArray[np.int64],
        batch_size: int,
        settings: DPSettings,
        secret: np.random.Generator,
    ) -> "PrivateSteps":
        """The steps for a mean batch size."""
        patients = len(np.unique(owners))
        rate, steps = min(1.0, batch_size / patients), max(1, round(patients / batch_size))
        return cls(owners, rate, steps, settings, secret)

    def batches(self) -> list[Tensor]:
        """The images of each step of an epoch; a step may be empty."""
        return [torch.from_numpy(self.draw()) for _ in range(self.steps)]

    def draw(self) -> NDArray[np.int64]:
        """The images of a step: one of each drawn patient."""
        order = self.secret.permutation(len(self.owners))
        patients, first = np.unique(self.owners[order], return_index=True)
        return np.asarray(order[first[self.secret.random(len(patients)) < self.rate]])

    def augment_alone(self, augment: Augment) -> Augment:
        """An augmentation that changes each image alone, whatever else is in the batch.

        With numbers for the batch as a whole, a drawn patient would change those of all images
        behind it, and so their gradients.
        """

        def change(images: Tensor, generator: torch.Generator) -> Tensor:
            key, parts = self.secret.bytes(16), []
            for image in images.split(1):
                digest = hmac.digest(key, image.cpu().numpy().tobytes(), "sha256")
                parts.append(augment(image, generator.manual_seed(int.from_bytes(digest[:7]))))
            return torch.cat(parts)

        return change

    @contextmanager
    def wrap(
        self, network: nn.Module, optimizer: torch.optim.Optimizer
    ) -> Iterator[torch.optim.Optimizer]:
        """The optimizer with clipping and noise; inside, gradients are computed image by image.

        `check_network` has accepted the network. The noise is not torch's: its generators have 32
        bits of a seed on a CPU and 64 on a GPU, and somebody could try them all.
        """
        from opacus.grad_sample import GradSampleModule  # takes seconds
        from opacus.optimizers import DPOptimizer

        class FiniteOptimizer(DPOptimizer):  # type: ignore[misc]
            """Counts numbers of a gradient that are not finite as 0.

            No factor clips an infinite gradient, and a sender can make a network that overflows for
            one image. The weights would be NaN, and the refusal of the model would reveal it.
            """

            def clip_and_accumulate(self) -> None:
                for gradients in self.grad_samples:
                    gradients.nan_to_num_(0.0, 0.0, 0.0)
                super().clip_and_accumulate()

        hooks = []
        for layer in network.modules():
            if not [*layer.children(), *layer.parameters()]:
                hooks.append(layer.register_forward_pre_hook(_draw_nothing))
            if hasattr(layer, "inplace"):  # opacus fails in place; the results are the same
                layer.inplace = False  # type: ignore[assignment]
            if isinstance(layer, nn.Conv2d):  # opacus reads the input as if it were contiguous
                hooks.append(
                    layer.register_forward_pre_hook(lambda _, inputs: inputs[0].contiguous())
                )
        watched = GradSampleModule(network)
        batch_size = self.rate * len(np.unique(self.owners))  # on average
        clipping = FiniteOptimizer(
            optimizer,
            noise_multiplier=0.0,  # `add_noise` adds the noise
            max_grad_norm=self.settings.clipping_norm,
            expected_batch_size=batch_size,
        )
        deviation = self.settings.noise_multiplier * self.settings.clipping_norm / batch_size

        def add_noise(step: DPOptimizer) -> None:
            for parameter in step.params:
                drawn = torch.from_numpy(self.secret.standard_normal(parameter.shape, np.float32))
                parameter.grad.add_(drawn.to(parameter.device), alpha=deviation)

        clipping.attach_step_hook(add_noise)
        with warnings.catch_warnings():
            # opacus needs only gradients of outputs; in torch the first layer has no others.
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            try:
                yield clipping
            finally:  # after an error the network serves the next visit
                watched.to_standard_module()
                for hook in hooks:
                    hook.remove()


def _draw_nothing(layer: nn.Module, inputs: object) -> None:
    """Dropout and the like do nothing, for the reason that `PrivateSteps.augment_alone` gives."""
    layer.eval()


def noise_alone(parameters: Iterable[nn.Parameter]) -> None:
    """Set gradients of no image, so that a private step adds noise alone."""
    for parameter in parameters:
        parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))  # type: ignore[attr-defined]
