"""Generator and discriminator against each other: one step of their training, and its losses.

Papers: StyleGAN2 (Karras et al. 2020, arXiv:1912.04958), StyleGAN2-ADA (Karras et al. 2020,
arXiv:2006.06676), FedER (Pennisi et al. 2023, arXiv:2206.10048).

Where this is not StyleGAN2-ADA as published:
1. R1 is taken with respect to augmented real images: resampling has no second derivative in torch.
2. Both networks see the same synthetic images in a step, which saves one pass of the generator.
3. Batches are sorted by class, and the minibatch standard deviation compares neighbours.
4. The discriminator adds a logit of its own to the projection, as Miyato & Koyama do.
5. Path lengths are taken on the whole batch, without style mixing.
6. Augmentation resamples bilinearly; its shifts and turns are continuous ones only.

Shapes: `N` images, `C` channels, `R` pixels a side, `b` a batch, `D` size of a latent, `L` styles.
"""

import copy
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from gan.augment import Controller, augment
from gan.losses import (
    Reduction,
    discriminator_loss,
    generator_loss,
    path_lengths,
    path_loss,
    privacy,
    r1,
)
from gan.networks import Discriminator, Generator
from gan.pixel_range import from_bytes
from gan.presets import Preset

PATH_MEMORY = 0.01  # weight of the newest path length in their running mean


@dataclass(frozen=True, eq=False)
class Examples:
    """What a generative model learns from.

    Attributes:
        images: uint8 [N, C, R, R], R the preset's resolution.
        labels: int64 [N].
        classes: Number of classes; those without an image are never drawn.
        fingerprint: Changes with the images and labels.
    """

    images: Tensor
    labels: Tensor
    classes: int
    fingerprint: str


@dataclass(frozen=True)
class Privacy:
    """The privacy term of the generator's loss (FedER, Eqs. 3 and 4).

    Attributes:
        weight: α; 0 = no phase 2.
        reduction: How pairwise distances become one (`gan.losses.privacy`).
        distance: Perceptual distances [a, b] of images [a, C, R, R] and [b, C, R, R] in [-1, 1].
    """

    weight: float
    reduction: Reduction
    distance: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class _Batch:
    """Real and synthetic images [b, C, R, R] in [-1, 1] and their labels [b], sorted."""

    real: Tensor
    real_labels: Tensor
    fake: Tensor
    fake_labels: Tensor


class Adversaries:
    """Both networks in training, with all that their next step depends on.

    Attributes:
        average: The generator with averaged weights: the one to render with.
        ada: The controller of the augmentation.
    """

    def __init__(
        self, examples: Examples, preset: Preset, privacy_term: Privacy, device: torch.device
    ) -> None:
        """Draw initial weights from torch's global generator."""
        self.preset, self.privacy_term = preset, privacy_term
        self.images, self.labels = examples.images.to(device), examples.labels.to(device)
        cuda = device.type == "cuda"
        fast = cuda and torch.cuda.is_bf16_supported(including_emulation=False)
        self.half = torch.autocast("cuda", torch.bfloat16, enabled=fast)
        layout = torch.channels_last if cuda else torch.contiguous_format
        channels = examples.images.shape[1]
        self.generator = Generator(preset, examples.classes, channels)
        self.discriminator = Discriminator(preset, examples.classes, channels)
        self.generator.to(device).to(memory_format=layout)
        self.discriminator.to(device).to(memory_format=layout)
        self.average = copy.deepcopy(self.generator).requires_grad_(False)
        self.g_optimizer = _adam(self.generator, preset.learning_rate, preset.path_every)
        self.d_optimizer = _adam(self.discriminator, preset.learning_rate, preset.r1_every)
        self.ada = Controller(preset.ada_target, preset.ada_images)
        self.synthesise = _compiled(self.generator.synthesise, cuda)
        self.judge = _compiled(self.discriminator, cuda)
        self.seen = 0  # real images so far
        self.path_mean = 0.0  # running mean of path lengths

    def step(self, *, r1_due: bool, path_due: bool, private: bool) -> Tensor:
        """Train both networks on one batch.

        Args:
            r1_due: Whether the discriminator is regularised.
            path_due: Whether the generator is regularised.
            private: Whether the generator's loss has the privacy term.

        Returns:
            Loss of the discriminator, loss of the generator without the privacy term, and mean
            distance of synthetic from real images (0 without the privacy term): [3].
        """
        batch = self._draw()
        d_loss = self._train_discriminator(batch, r1_due)
        g_loss, apart = self._train_generator(batch, path_due, private)
        self.seen += len(batch.real)
        # A short memory while everything still changes fast (StyleGAN2-ADA, appendix C).
        half_life = min(self.preset.ema_images, self.seen / 20)
        _follow(self.average, self.generator, half_life, len(batch.real))
        return torch.stack([d_loss, g_loss, apart])

    def _draw(self) -> _Batch:
        """Real images, and synthetic ones of labels that are as frequent as the real ones'."""
        size = (2, self.preset.batch_size)
        chosen = torch.randint(len(self.images), size, device=self.images.device)
        # Sorted, so that the minibatch standard deviation compares images of one class.
        real_labels, order = self.labels[chosen[0]].sort()
        real = from_bytes(self.images[chosen[0, order]])
        fake_labels = self.labels[chosen[1]].sort().values
        w = _mixed(self.generator, fake_labels, self.preset.style_mixing)  # [b, L, D]
        with self.half:
            fake = self.synthesise(w)
        return _Batch(real, real_labels, fake, fake_labels)

    def _train_discriminator(self, batch: _Batch, r1_due: bool) -> Tensor:
        """Raise the logits of real images, lower those of synthetic ones; the loss."""
        preset = self.preset
        self.discriminator.requires_grad_(True)
        self.d_optimizer.zero_grad()
        real = augment(batch.real, self.ada.p, preset.mirror)
        with self.half:
            real_logits = self.judge(real, batch.real_labels)
            fake = augment(batch.fake.detach(), self.ada.p, preset.mirror)
            fake_logits = self.judge(fake, batch.fake_labels)
        loss = discriminator_loss(real_logits, fake_logits)
        loss.backward()
        if r1_due:
            # Lazy regularisation (StyleGAN2, section 3.1): seldom, and that much stronger.
            penalty = r1(self.discriminator, real, batch.real_labels)
            (penalty * preset.r1_gamma * preset.r1_every).backward()
        self.d_optimizer.step()
        self.ada.observe(real_logits)
        return loss.detach()

    def _train_generator(
        self, batch: _Batch, path_due: bool, private: bool
    ) -> tuple[Tensor, Tensor]:
        """Raise the logits of synthetic images; the loss, and the distance from real images."""
        preset, term = self.preset, self.privacy_term
        self.discriminator.requires_grad_(False)
        self.g_optimizer.zero_grad()
        with self.half:
            seen = augment(batch.fake, self.ada.p, preset.mirror)
            fake_logits = self.judge(seen, batch.fake_labels)
        loss = generator_loss(fake_logits)
        total, apart = loss, torch.zeros((), device=loss.device)
        if private:
            pairs = term.distance(batch.real, batch.fake)  # [b, b]
            apart = pairs.detach().mean()
            # FedER, Eq. 4.
            total = loss - term.weight * privacy(pairs, term.reduction)
        total.backward()
        if path_due:
            self._regularise_paths(batch.fake_labels)
        self.g_optimizer.step()
        return loss.detach(), apart

    def _regularise_paths(self, labels: Tensor) -> None:
        """Add the gradient of path length regularisation (StyleGAN2, section 3.2)."""
        preset = self.preset
        z = torch.randn(len(labels), preset.latent, device=labels.device)
        lengths = path_lengths(self.generator, self.generator.map(labels, z))
        self.path_mean += PATH_MEMORY * (lengths.mean().item() - self.path_mean)
        bend = path_loss(lengths, torch.tensor(self.path_mean, device=labels.device))
        (bend * preset.path_weight * preset.path_every).backward()

    @property
    def _parts(self) -> dict[str, Any]:
        return {
            "generator": self.generator,
            "discriminator": self.discriminator,
            "average": self.average,
            "g-optimizer": self.g_optimizer,
            "d-optimizer": self.d_optimizer,
            "augmentation": self.ada,
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes, as plain numbers and tensors."""
        state = {name: part.state_dict() for name, part in self._parts.items()}
        return {**state, "seen": self.seen, "path-mean": self.path_mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where other adversaries were."""
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        self.seen, self.path_mean = state["seen"], state["path-mean"]


def _adam(network: nn.Module, learning_rate: float, every: int) -> torch.optim.Adam:
    """Adam, slowed for the steps that regularisation every `every` iterations adds."""
    # StyleGAN2, appendix B: c = k / (k + 1), λ' = cλ, β' = β^c.
    c = every / (every + 1) if every else 1.0
    parameters = network.parameters()
    return torch.optim.Adam(parameters, lr=learning_rate * c, betas=(0.0, 0.99**c), fused=True)


def _mixed(generator: Generator, labels: Tensor, share: float) -> Tensor:
    """Styles w [b, L, D] of labels [b]; a share takes its last layers from a second latent."""
    z = torch.randn(2, len(labels), generator.latent, device=labels.device)
    first, second = generator.map(labels, z[0]), generator.map(labels, z[1])
    layers = generator.num_layers
    cut = torch.randint(1, layers, (len(labels), 1), device=labels.device)
    whole = torch.rand(len(labels), 1, device=labels.device) >= share
    early = (torch.arange(layers, device=labels.device) < cut) | whole  # [b, L]
    return torch.where(early[:, :, None], first[:, None], second[:, None])


@torch.no_grad()
def _follow(average: nn.Module, network: nn.Module, half_life: float, images: int) -> None:
    """Move an exponential average of weights on by so many images."""
    old: list[Tensor] = [*average.parameters()]
    new: list[Tensor] = [*network.parameters()]
    torch._foreach_lerp_(old, new, 1 - 0.5 ** (images / half_life))


def _compiled(function: Callable[..., Tensor], cuda: bool) -> Callable[..., Tensor]:
    """Compile where that is possible: on CUDA, with Triton and a C compiler."""
    possible = cuda and find_spec("triton") and any(map(shutil.which, ("cc", "gcc", "clang")))
    return torch.compile(function) if possible else function
