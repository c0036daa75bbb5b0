"""The one training loop of the generative model: first without, then with the privacy term.

Paper: FedER (Pennisi et al. 2023), sections III.B and IV.B: StyleGAN2-ADA, trained until it gets no
better (phase 1), then pushed away from the real images as long as it stays good enough (phase 2).

Where this is not StyleGAN2-ADA as published:
1. R1 is taken with respect to augmented real images: resampling has no second derivative in torch.
2. Both networks see the same synthetic images in a step, which saves one pass of the generator.
3. Batches are sorted by class, and the minibatch standard deviation compares neighbours.
4. The discriminator adds a logit of its own to the projection, as Miyato & Koyama do.
5. Path lengths are taken on the whole batch, without style mixing.
6. Augmentation resamples bilinearly; its shifts and turns are continuous ones only.

Shapes: `N` images, `C` channels, `H, W` pixels, `R` pixels a side in the preset, `b` a batch.
"""

import copy
import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
from gan.presets import Preset
from gan.synthesis import balanced_labels, render, save_grid

ENOUGH = 2.5  # phase 2 ends when the Fréchet distance is that many times phase 1's (FedER IV.B.2)
SHOWN, SHOWN_PIXELS = 160, 2**20  # most images, and pixels, in a picture of the progress
PATH_MEMORY = 0.01  # weight of the newest path length in their running mean


@dataclass(frozen=True)
class Progress:
    """How a training stands at one of its checks.

    Attributes:
        phase: 1 without, 2 with the privacy term.
        iteration: Steps of this phase.
        iterations_per_second: Since the last check.
        frechet: Distance of the averaged generator's images from the real ones.
        ada_p: Probability of augmentation.
        privacy_distance: Mean distance of synthetic from real images; None in phase 1.
        discriminator_loss: Mean since the last check.
        generator_loss: Mean since the last check, without the privacy term.
        seconds: Since the training began, without the time between a kill and going on.
    """

    phase: int
    iteration: int
    iterations_per_second: float
    frechet: float
    ada_p: float
    privacy_distance: float | None
    discriminator_loss: float
    generator_loss: float
    seconds: float


@dataclass(frozen=True)
class Trained:
    """What a training leaves.

    Attributes:
        plain: Averaged generator at the best Fréchet distance of phase 1.
        private: Averaged generator at the last check of phase 2 that was good enough.
        progress: All checks.
    """

    plain: Generator
    private: Generator
    progress: list[Progress]


class _Part(Protocol):
    """Something whose state goes into a checkpoint."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> object: ...


Parts = dict[str, _Part]


@dataclass
class _State:
    """What changes during a training beside weights; plain numbers, all of it in a checkpoint."""

    settings: str  # what the files were made with
    phase: int = 1  # 3 = finished
    iteration: int = 0  # of this phase
    seen: int = 0  # real images so far
    path_mean: float = 0.0  # running mean of path lengths
    best: float = math.inf  # lowest Fréchet distance of phase 1
    best_iteration: int = 0
    seconds: float = 0.0
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # losses since a check
    progress: list[dict[str, Any]] = field(default_factory=list)


def train_gan(
    images: Tensor,
    labels: Tensor,
    classes: int,
    preset: Preset,
    *,
    privacy_weight: float,
    privacy_reduction: Reduction,
    distance: Callable[[Tensor, Tensor], Tensor],
    frechet: Callable[[Tensor], float],
    folder: Path,
    seed: int,
    device: torch.device,
    deadline: float,
    report: Callable[[Progress], None],
) -> Trained:
    """Train a generative model, or go on with or return what `folder` holds.

    Args:
        images: uint8 [N, C, H, W] of any size; resized to the preset's.
        labels: int64 [N].
        classes: Number of classes; those without an image are never drawn.
        preset: Sizes and schedules.
        privacy_weight: α of FedER Eq. 4; 0 = no phase 2.
        privacy_reduction: How pairwise distances become one (`gan.losses.privacy`).
        distance: Perceptual distances [a, b] of images [a, C, R, R] and [b, C, R, R] in [-1, 1].
        frechet: Distance of uint8 images [n, C, R, R] from the real ones.
        folder: For checkpoints, `progress.jsonl` and a picture at every check.
        seed: Decides on everything random; torch's global generators do not change.
        device: Where to train.
        deadline: When to give up, in the time of `time.monotonic`.
        report: Called at every check.

    Raises:
        TimeoutError: The deadline has passed; a later call goes on from here.
        FloatingPointError: A loss is no longer finite.
        ValueError: `folder` holds a training on other images or with other settings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = _fingerprint(
        images, labels, classes, preset, privacy_weight, privacy_reduction, seed
    )
    size = (preset.resolution, preset.resolution)
    labels = labels.cpu()
    images = F.interpolate(images.cpu(), size, mode="bilinear", antialias=True)
    shown = balanced_labels(min(SHOWN, SHOWN_PIXELS // preset.resolution**2), labels)
    # As many images of each class as its share of the real ones, to the nearest image.
    spread = torch.arange(preset.fid_images) * len(labels) // preset.fid_images
    judged = labels.sort().values[spread]
    images, labels = images.to(device), labels.to(device)  # [N, C, R, R], [N]
    batch = preset.batch_size
    cuda = device.type == "cuda"
    fast = cuda and torch.cuda.is_bf16_supported(including_emulation=False)
    half = torch.autocast("cuda", torch.bfloat16, enabled=fast)
    last_phase = 2 if privacy_weight > 0 else 1

    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        layout = torch.channels_last if cuda else torch.contiguous_format
        generator = Generator(preset, classes, images.shape[1])
        discriminator = Discriminator(preset, classes, images.shape[1])
        generator.to(device).to(memory_format=layout)
        discriminator.to(device).to(memory_format=layout)
        average = copy.deepcopy(generator).requires_grad_(False)
        g_step = _adam(generator, preset.learning_rate, preset.path_every)
        d_step = _adam(discriminator, preset.learning_rate, preset.r1_every)
        ada = Controller(preset.ada_target, preset.ada_images)
        parts: Parts = {
            "generator": generator,
            "discriminator": discriminator,
            "average": average,
            "g-optimizer": g_step,
            "d-optimizer": d_step,
            "augmentation": ada,
        }
        synthesise, judge = _compiled(generator.synthesise, cuda), _compiled(discriminator, cuda)
        state = _State(settings)
        if (folder / "checkpoint.pt").exists():
            state = _load(folder / "checkpoint.pt", parts, settings)
        _write_progress(folder, state)
        sums = torch.tensor(state.sums, device=device)  # of both losses and the privacy distance
        began, checked = time.monotonic() - state.seconds, time.monotonic()

        while state.phase <= last_phase:
            if time.monotonic() > deadline:
                state.seconds, state.sums = time.monotonic() - began, sums.tolist()
                _save(folder / "checkpoint.pt", parts, state)
                raise TimeoutError(f"GAN training stopped in phase {state.phase}.")

            # Both networks: synthetic images of labels as frequent as the real ones'.
            # Sorted, so that the minibatch standard deviation compares images of one class.
            chosen = torch.randint(len(images), (2, batch), device=device)
            real_labels, order = labels[chosen[0]].sort()
            real = images[chosen[0, order]].float() / 127.5 - 1  # [b, C, R, R]
            fake_labels = labels[chosen[1]].sort().values
            w = _mixed(generator, fake_labels, preset.style_mixing)  # [b, L, D]
            with half:
                fake = synthesise(w)

            # Discriminator: raise the logits of real images, lower those of synthetic ones.
            discriminator.requires_grad_(True)
            d_step.zero_grad()
            seen = augment(real, ada.p, preset.mirror)
            with half:
                real_logits = judge(seen, real_labels)
                fake_logits = judge(augment(fake.detach(), ada.p, preset.mirror), fake_labels)
            d_loss = discriminator_loss(real_logits, fake_logits)
            d_loss.backward()
            if state.iteration % preset.r1_every == 0:
                # Lazy regularisation (StyleGAN2, section 3.1): seldom, and that much stronger.
                penalty = r1(discriminator, seen, real_labels)
                (penalty * preset.r1_gamma * preset.r1_every).backward()
            d_step.step()
            ada.observe(real_logits)

            # Generator: raise the logits of synthetic images.
            discriminator.requires_grad_(False)
            g_step.zero_grad()
            with half:
                fake_logits = judge(augment(fake, ada.p, preset.mirror), fake_labels)
            g_loss = generator_loss(fake_logits)
            total = g_loss
            apart = torch.zeros((), device=device)
            if state.phase == 2:
                pairs = distance(real, fake)  # [b, b]
                apart = pairs.detach().mean()
                # FedER, Eq. 4.
                total = g_loss - privacy_weight * privacy(pairs, privacy_reduction)
            total.backward()
            if preset.path_every and state.iteration % preset.path_every == 0:
                w = generator.map(fake_labels, torch.randn(batch, preset.latent, device=device))
                lengths = path_lengths(generator, w)
                state.path_mean += PATH_MEMORY * (lengths.mean().item() - state.path_mean)
                bend = path_loss(lengths, torch.tensor(state.path_mean, device=device))
                (bend * preset.path_weight * preset.path_every).backward()
            g_step.step()

            state.iteration += 1
            state.seen += batch
            # A short memory while everything still changes fast (StyleGAN2-ADA, appendix C).
            _follow(average, generator, min(preset.ema_images, state.seen / 20), batch)
            sums += torch.stack([d_loss.detach(), g_loss.detach(), apart])
            limit, every = preset.iterations, preset.check_every
            if state.phase == 2:
                # The private generator is the last one that was still good enough: look closely.
                limit, every = preset.privacy_iterations, max(1, preset.check_every // 5)
            if state.iteration % every and state.iteration < limit:
                continue

            # Check: how good are the images, and is this phase over?
            steps = (state.iteration - 1) % every + 1
            d_mean, g_mean, apart_mean = (sums / steps).tolist()
            rate = steps / (time.monotonic() - checked)
            finite = math.isfinite(d_mean + g_mean + apart_mean)
            score = frechet(render(average, judged, seed)) if finite else math.nan
            if not math.isfinite(score):
                raise FloatingPointError(
                    f"The GAN failed in phase {state.phase} before iteration {state.iteration}: "
                    f"losses {d_mean:.3g} and {g_mean:.3g}, privacy distance {apart_mean:.3g}, "
                    f"Fréchet distance {score:.3g}. Lower the learning rate or raise r1_gamma."
                )
            state.seconds = time.monotonic() - began
            progress = Progress(
                phase=state.phase,
                iteration=state.iteration,
                iterations_per_second=rate,
                frechet=score,
                ada_p=ada.p,
                privacy_distance=apart_mean if state.phase == 2 else None,
                discriminator_loss=d_mean,
                generator_loss=g_mean,
                seconds=state.seconds,
            )
            state.progress.append(asdict(progress))
            picture = folder / f"phase-{state.phase}-{state.iteration:06d}.png"
            save_grid(picture, render(average, shown, seed))
            sums.zero_()
            if state.phase == 1:
                if score < state.best:
                    state.best, state.best_iteration = score, state.iteration
                    _save(folder / "plain.pt", parts, state)
                stale = state.iteration - state.best_iteration >= preset.patience
                if stale or state.iteration >= limit:
                    # Phase 2 goes on from the best of phase 1, optimizers and augmentation too.
                    best = _load(folder / "plain.pt", parts, settings)
                    state = replace(state, phase=2, iteration=0, seen=best.seen)
                    state.path_mean = best.path_mean
            else:
                good = score <= ENOUGH * state.best
                if good:
                    _save(folder / "private.pt", parts, state)
                if not good or state.iteration >= limit:
                    state.phase = 3
            _save(folder / "checkpoint.pt", parts, state)
            _write_progress(folder, state)
            report(progress)
            checked = time.monotonic()

        _load(folder / "plain.pt", parts, settings)
        plain = copy.deepcopy(average)
        if (folder / "private.pt").exists():
            _load(folder / "private.pt", parts, settings)
        return Trained(plain, average, [Progress(**row) for row in state.progress])


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


def _fingerprint(images: Tensor, labels: Tensor, *settings: object) -> str:
    """What a training was made with, so that another is not taken for it."""
    digest = hashlib.sha256(images.cpu().contiguous().numpy().tobytes())
    digest.update(labels.cpu().contiguous().numpy().tobytes())
    return f"{settings}, images {digest.hexdigest()[:16]}"


def _save(path: Path, parts: Parts, state: _State) -> None:
    """Write a checkpoint, whole or not at all."""
    cuda = torch.cuda.is_available()
    content = {
        "state": asdict(state),
        "parts": {name: part.state_dict() for name, part in parts.items()},
        "random": torch.get_rng_state(),
        "random-cuda": torch.cuda.get_rng_state_all() if cuda else [],
    }
    torch.save(content, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def _load(path: Path, parts: Parts, settings: str) -> _State:
    """Bring everything back to where it was when `path` was written."""
    content = torch.load(path, map_location="cpu", weights_only=True)
    state = _State(**content["state"])
    if state.settings != settings:
        raise ValueError(f"{path.parent} holds another training: {state.settings}.")
    for name, part in parts.items():
        part.load_state_dict(content["parts"][name])
    torch.set_rng_state(content["random"])
    if content["random-cuda"]:
        torch.cuda.set_rng_state_all(content["random-cuda"])
    return state


def _write_progress(folder: Path, state: _State) -> None:
    """Write all checks, one line each."""
    lines = [json.dumps(row) + "\n" for row in state.progress]
    (folder / "progress.new").write_text("".join(lines))
    os.replace(folder / "progress.new", folder / "progress.jsonl")
