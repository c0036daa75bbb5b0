"""Generator and discriminator: one training step of both networks, and its losses.

Papers: StyleGAN2 (Karras et al. 2020, arXiv:1912.04958), StyleGAN2-ADA (Karras et al. 2020,
arXiv:2006.06676), FedER (Pennisi et al. 2023, arXiv:2206.10048).

Differences from StyleGAN2-ADA as published:
1. R1 is taken with respect to augmented real images: resampling has no second derivative in torch.
2. Both networks see the same synthetic images in a step, which saves one pass of the generator.
3. Batches are sorted by class, and the minibatch standard deviation compares neighbours.
4. The discriminator adds its own logit to the projection, as in Miyato & Koyama.
5. Path lengths are taken on the whole batch without style mixing; the authors' code uses half of
   the batch, with mixing.
6. Augmentation resamples bilinearly; its shifts and turns are only continuous ones.

Shapes: `N` images, `C` channels, `R` pixels a side, `b` a batch, `D` size of a latent, `L` styles.
"""

import copy
import shutil
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gan import losses
from gan.augment import Controller, augment
from gan.networks import Discriminator, Generator, from_bytes
from gan.presets import Preset
from gan.schedule import due

PATH_MEMORY = 0.01  # weight of the newest path length in their running mean
# Pixels from which channels-last weights are faster on a CPU, too: a step of `small` takes 0.7 of
# the time at 64 pixels (benchmarks/results/gan-speed.md).
CHANNELS_LAST = 32


@dataclass(frozen=True, eq=False)
class Examples:
    """Training data of a generative model."""

    images: Tensor  # uint8 [N, C, R, R], R the preset's resolution
    labels: Tensor  # int64 [N]
    classes: int  # number of classes; a class without images is never drawn
    fingerprint: str  # a text that changes with the images and labels


@dataclass(frozen=True)
class Privacy:
    """The privacy term of the generator's loss (FedER, Eqs. 3 and 4)."""

    weight: float  # α; 0 = no phase 2
    # Rule that reduces pairwise distances to one (`gan.losses.privacy`)
    reduction: losses.Reduction
    # Perceptual distances [a, b] of images [a, C, R, R] and [b, C, R, R] in [-1, 1]
    distance: Callable[[Tensor, Tensor], Tensor]


class Adversaries:
    """Both networks in training, with the whole state behind their next step.

    Attributes:
        average: The generator with averaged weights, for rendering.
        ada: The controller of the augmentation.
        sums: Sums [3] over the steps since they were set to zero: loss of the discriminator, loss
            of the generator without the privacy term, and mean distance of synthetic from real
            images (0 without the privacy term).
    """

    TRAINED = ("generator", "discriminator", "average", "g_optimizer", "d_optimizer")

    def __init__(self, examples: Examples, preset: Preset, privacy: Privacy) -> None:
        """Draw initial weights from torch's global generator."""
        self.preset, self.privacy = preset, privacy
        self.images, self.labels = examples.images, examples.labels
        device = self.images.device
        cuda = device.type == "cuda"
        fast = cuda and torch.cuda.is_bf16_supported(including_emulation=False)
        self.half = torch.autocast("cuda", torch.bfloat16, enabled=fast)
        last = cuda or preset.resolution >= CHANNELS_LAST
        layout = torch.channels_last if last else torch.contiguous_format
        sizes = (preset, examples.classes, self.images.shape[1])
        self.generator = Generator(*sizes).to(device).to(memory_format=layout)
        self.discriminator = Discriminator(*sizes).to(device).to(memory_format=layout)
        self.average = copy.deepcopy(self.generator).requires_grad_(False)
        self.g_optimizer = _adam(self.generator, preset.learning_rate, preset.path_every)
        self.d_optimizer = _adam(self.discriminator, preset.learning_rate, preset.r1_every)
        self.ada = Controller(preset.ada_target, preset.ada_images)
        self.synthesise = _compile(self.generator.synthesise, cuda)
        self.judge = _compile(self.discriminator, cuda)
        self.seen = 0  # real images so far
        self.path_mean = 0.0  # running mean of path lengths
        self.sums = torch.zeros(3, device=device)

    def step(self, iteration: int, private: bool) -> None:
        """Train both networks on one batch; `private`: the generator has the privacy term.

        The number of finished steps decides on the parts that not every step has.
        """
        real, real_labels, fake, fake_labels = self._draw()
        d_loss = self._train_discriminator(real, real_labels, fake.detach(), fake_labels, iteration)
        g_loss, apart = self._train_generator(real, fake, fake_labels, iteration, private)
        self.seen += len(real)
        # A short memory while the networks still change fast (StyleGAN2-ADA, appendix C).
        half_life = min(self.preset.ema_images, self.seen / 20)
        _follow(self.average, self.generator, half_life, len(real))
        self.sums += torch.stack([d_loss, g_loss, apart])

    def _draw(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Real images [b, C, R, R] in [-1, 1], their labels [b], synthetic images, their labels.

        Both kinds of labels have the same frequencies.
        """
        size = (2, self.preset.batch_size)
        chosen = torch.randint(len(self.images), size, device=self.images.device)
        # Sorted, so that the minibatch standard deviation compares images of one class.
        real_labels, order = self.labels[chosen[0]].sort()
        real = from_bytes(self.images[chosen[0, order]])
        fake_labels = self.labels[chosen[1]].sort().values
        w = _mix_styles(self.generator, fake_labels, self.preset.style_mixing)  # [b, L, D]
        with self.half:
            fake = self.synthesise(w)
        return real, real_labels, fake, fake_labels

    def _train_discriminator(
        self, real: Tensor, real_labels: Tensor, fake: Tensor, fake_labels: Tensor, iteration: int
    ) -> Tensor:
        """Raise the logits of real images, lower those of synthetic ones; return the loss."""
        preset = self.preset
        self.discriminator.requires_grad_(True)
        self.d_optimizer.zero_grad()
        # Both in 32 bits: rounding of synthetic images alone would give them away.
        real, fake = (augment(each, self.ada.p, preset.mirror) for each in (real, fake))
        with self.half:
            real_logits = self.judge(real, real_labels)
            fake_logits = self.judge(fake, fake_labels)
        loss = losses.discriminator_loss(real_logits, fake_logits)
        loss.backward()
        self.d_optimizer.step()
        if due(iteration, preset.r1_every):
            # Lazy regularisation (StyleGAN2, section 3.1): a rare step of its own, with a weight
            # that makes up for the skipped steps.
            self.d_optimizer.zero_grad()
            penalty = losses.r1(self.discriminator, real, real_labels)
            (penalty * preset.r1_gamma * preset.r1_every).backward()
            self.d_optimizer.step()
        self.ada.observe(real_logits)
        return loss.detach()

    def _train_generator(
        self, real: Tensor, fake: Tensor, fake_labels: Tensor, iteration: int, private: bool
    ) -> tuple[Tensor, Tensor]:
        """Raise the logits of synthetic images; return the loss and the distance from real ones."""
        self.discriminator.requires_grad_(False)
        self.g_optimizer.zero_grad()
        augmented = augment(fake, self.ada.p, self.preset.mirror)
        with self.half:
            fake_logits = self.judge(augmented, fake_labels)
        loss = losses.generator_loss(fake_logits)
        total, apart = loss, torch.zeros((), device=loss.device)
        if private:
            pairs = self.privacy.distance(real, fake)  # [b, b]
            apart = pairs.detach().mean()
            # FedER, Eq. 4.
            total = loss - self.privacy.weight * losses.privacy(pairs, self.privacy.reduction)
        total.backward()
        self.g_optimizer.step()
        if due(iteration, self.preset.path_every):
            self._regularise_paths(fake_labels)
        return loss.detach(), apart

    def _regularise_paths(self, labels: Tensor) -> None:
        """A step of path length regularisation (StyleGAN2, section 3.2)."""
        preset = self.preset
        self.g_optimizer.zero_grad()
        z = torch.randn(len(labels), preset.latent, device=labels.device)
        lengths = losses.path_lengths(self.generator, self.generator.map(labels, z))
        self.path_mean += PATH_MEMORY * (lengths.mean().item() - self.path_mean)
        bend = losses.path_loss(lengths, torch.tensor(self.path_mean, device=labels.device))
        (bend * preset.path_weight * preset.path_every).backward()
        self.g_optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """The state that changes, as plain numbers and tensors."""
        state = {name: getattr(self, name).state_dict() for name in self.TRAINED}
        numbers = {"seen": self.seen, "path_mean": self.path_mean, "sums": self.sums}
        return {**state, **numbers, "ada": vars(self.ada)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of other adversaries."""
        for name in self.TRAINED:
            getattr(self, name).load_state_dict(state[name])
        # A checkpoint may have another layout in memory; fused Adam reads it as that of the weight.
        for optimizer in (self.g_optimizer, self.d_optimizer):
            for weight, moments in optimizer.state.items():
                for name in ("exp_avg", "exp_avg_sq"):
                    moments[name] = torch.empty_like(weight).copy_(moments[name])
        vars(self.ada).update(state["ada"])
        self.seen, self.path_mean = state["seen"], state["path_mean"]
        self.sums = state["sums"].to(self.sums.device)


def _adam(network: nn.Module, learning_rate: float, every: int) -> torch.optim.Adam:
    """Adam, slower by the share of steps that regularisation every `every` iterations adds."""
    # StyleGAN2, appendix B: c = k / (k + 1), λ' = cλ, β' = β^c.
    c = every / (every + 1) if every else 1.0
    parameters = network.parameters()
    return torch.optim.Adam(parameters, lr=learning_rate * c, betas=(0.0, 0.99**c), fused=True)


def _mix_styles(generator: Generator, labels: Tensor, share: float) -> Tensor:
    """Styles w [b, L, D] of labels [b]; a `share` of batches mixes two latents."""
    layers = generator.num_layers
    z = torch.randn(2, len(labels), generator.latent, device=labels.device)
    w = generator.map(labels, z[0])[:, None].repeat(1, layers, 1)
    if torch.rand(()) < share:
        cut = int(torch.randint(1, layers, ()))
        w[:, cut:] = generator.map(labels, z[1])[:, None]
    return w


@torch.no_grad()
def _follow(average: nn.Module, network: nn.Module, half_life: float, images: int) -> None:
    """Move an exponential average of weights on by `images` images."""
    old: list[Tensor] = [*average.parameters()]
    new: list[Tensor] = [*network.parameters()]
    torch._foreach_lerp_(old, new, 1 - 0.5 ** (images / half_life))


def _compile(function: Callable[..., Tensor], cuda: bool) -> Callable[..., Tensor]:
    """Compile a function if that is possible: on CUDA, with Triton, a C compiler and its header."""
    compiler = any(map(shutil.which, ("cc", "gcc", "clang")))
    header = Path(sysconfig.get_path("include"), "Python.h").exists()  # Triton's launchers need it
    possible = cuda and find_spec("triton") and compiler and header
    return torch.compile(function) if possible else function
