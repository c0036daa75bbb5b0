"""The one training loop of the generative model: first without, then with the privacy term.

Paper: FedER (Pennisi et al. 2023, arXiv:2206.10048), sections III.B and IV.B: StyleGAN2-ADA,
trained until it gets no better (phase 1), then pushed away from the real images as long as it stays
good enough (phase 2). A step is in gan/adversaries.py, with its differences from StyleGAN2-ADA;
what is due when in gan/schedule.py; a check in gan/checks.py; a checkpoint in gan/checkpoint.py.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gan.adversaries import Adversaries, Examples, Privacy
from gan.checkpoint import Checkpoints, Part
from gan.checks import Checks, Progress
from gan.networks import Generator
from gan.presets import Preset
from gan.schedule import Schedule


@dataclass(frozen=True)
class Place:
    """Where and until when to train.

    Attributes:
        folder: For checkpoints, `progress.jsonl` and a picture at every check.
        device: Where to compute.
        deadline: When to give up, in the time of `time.monotonic`.
    """

    folder: Path
    device: torch.device
    deadline: float


@dataclass(frozen=True)
class Trained:
    """What a training leaves.

    Attributes:
        plain: Averaged generator at the best Fréchet distance of phase 1.
        private: Averaged generator at the last check of phase 2 that was good enough; equal to
            `plain` if there was none.
        progress: All checks.
    """

    plain: Generator
    private: Generator
    progress: list[Progress]


def train_gan(
    examples: Examples,
    preset: Preset,
    privacy: Privacy,
    frechet: Callable[[Tensor], float],
    place: Place,
    *,
    seed: int,
    report: Callable[[Progress], None],
) -> Trained:
    """Train a generative model, or go on with or return what the folder holds.

    Args:
        examples: What to learn from.
        preset: Sizes and schedules.
        privacy: The privacy term of phase 2.
        frechet: Distance of uint8 images [n, C, R, R] from the real ones.
        place: Where and until when.
        seed: Decides on everything random; torch's global generators do not change.
        report: Called at every check.

    Raises:
        TimeoutError: The deadline has passed; a later call goes on from here.
        FloatingPointError: A loss is no longer finite.
        ValueError: The images are not of the preset's resolution, or the folder holds a training on
            other images or with other settings.
    """
    size = tuple(examples.images.shape[2:])
    if size != (preset.resolution, preset.resolution):
        raise ValueError(f"Images of {size} pixels for a GAN of {preset.resolution}: resize them.")
    made_with = (examples.classes, preset, privacy.weight, privacy.reduction, seed)
    files = Checkpoints(place.folder, f"{made_with}, images {examples.fingerprint}")
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        networks = Adversaries(examples, preset, privacy, place.device)
        schedule = Schedule(preset, phases=2 if privacy.weight > 0 else 1)
        checks = Checks(examples.labels, preset, frechet, seed, place.device)
        everything: dict[str, Part] = {
            "networks": networks,
            "schedule": schedule,
            "checks": checks,
        }
        if files.has("checkpoint"):
            files.load("checkpoint", **everything)
        files.write_progress(checks.progress)

        while not schedule.over:
            if time.monotonic() > place.deadline:
                files.save("checkpoint", **everything)
                raise TimeoutError(f"GAN training stopped in phase {schedule.phase}.")
            losses = networks.step(
                r1_due=schedule.r1_due, path_due=schedule.path_due, private=schedule.private
            )
            schedule.iteration += 1
            checks.add(losses)
            if not schedule.check_due:
                continue

            phase, iteration = schedule.phase, schedule.iteration
            progress = checks.check(networks.average, phase, iteration, networks.ada.p)
            checks.draw(networks.average, place.folder / f"phase-{phase}-{iteration:06d}.png")
            keep, ends = schedule.judge(progress.frechet)
            if keep:
                files.save("private" if schedule.private else "plain", networks=networks)
            if ends:
                schedule.next_phase()
                if schedule.private:
                    # From the best of phase 1, optimizers, augmentation and random state too.
                    files.load("plain", networks=networks)
            files.save("checkpoint", **everything)
            files.write_progress(checks.progress)
            report(progress)

        files.load("plain", networks=networks)
        plain = copy.deepcopy(networks.average)
        if files.has("private"):
            files.load("private", networks=networks)
        return Trained(plain, networks.average, checks.progress)
