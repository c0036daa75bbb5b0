"""The one training loop of the generative model: first without, then with the privacy term.

Paper: FedER (Pennisi et al. 2023, arXiv:2206.10048), sections III.B and IV.B. Phase 1 trains
StyleGAN2-ADA until it does not improve any more. Phase 2 moves its images away from the real ones
as long as they are good enough. A step is in gan/adversaries.py, with its differences from
StyleGAN2-ADA; the schedule in gan/schedule.py; a check in gan/checks.py; a checkpoint in
gan/checkpoint.py.
"""

import copy
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gan.adversaries import Adversaries, Examples, Privacy
from gan.checkpoint import Checkpoints
from gan.checks import Checks
from gan.networks import Generator
from gan.presets import Preset
from gan.schedule import Check, Standing, check_due, judge, limit


@dataclass(frozen=True)
class Trained:
    """The result of a training."""

    plain: Generator  # averaged generator at the best Fréchet distance of phase 1
    # Averaged generator at the last check of phase 2 that was good enough. None = the privacy term
    # spoilt the images before the first check.
    private: Generator | None
    progress: list[Check]  # all checks


def train_gan(
    examples: Examples,
    preset: Preset,
    privacy: Privacy,
    frechet: Callable[[Iterable[Tensor]], float],
    folder: Path,
    *,
    seed: int,
    deadline: float,
    report: Callable[[Standing, int], None],
    judged_by: str = "",
) -> Trained:
    """Train a generative model, or continue or return the training in the folder.

    Args:
        examples: Images of the preset's resolution, on the device of the computation.
        preset: Sizes and schedules.
        privacy: The privacy term of phase 2.
        frechet: Distance of uint8 images, in parts [n, C, R, R], from the real ones.
        folder: For checkpoints, `progress.jsonl` and a picture at every check. Its name follows
            from all inputs, since a training in it continues.
        seed: Seed of all randomness; torch's global generators do not change.
        deadline: Time limit, on the clock of `time.monotonic`.
        report: Called before every step with the standing of the training and with the most steps
            of its phase.
        judged_by: Name of `frechet`. If it is given, phase 1 is copied from a folder beside this
            one that has the same training with another privacy term.

    Raises:
        TimeoutError: The deadline has passed; a later call continues from here.
        FloatingPointError: A loss is no longer finite.
    """
    first_phase = (examples.classes, preset, judged_by, seed)
    files = Checkpoints(folder, f"{first_phase}, images {examples.fingerprint}")
    if judged_by and not files.has("checkpoint"):
        files.borrow(folder.parent.iterdir())
    checks = Checks(examples.labels.cpu(), preset, frechet, seed)
    last_phase = 2 if privacy.weight > 0 else 1
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        networks = Adversaries(examples, preset, privacy)
        standing = files.load("checkpoint", networks) if files.has("checkpoint") else Standing()
        began = time.monotonic() - standing.seconds

        while standing.phase <= last_phase:
            if time.monotonic() > deadline:
                standing.seconds = time.monotonic() - began
                files.save("checkpoint", networks, standing)
                raise TimeoutError(f"GAN training stopped in phase {standing.phase}.")
            report(standing, limit(standing, preset))
            networks.step(standing.iteration, standing.private)
            standing.iteration += 1
            if not check_due(standing, preset):
                continue

            standing.seconds = time.monotonic() - began
            progress = checks.measure(networks, standing)
            standing.progress.append(progress)
            picture = folder / f"phase-{standing.phase}-{standing.iteration:06d}.png"
            checks.draw(networks, picture)
            keep, ends = judge(standing, preset)
            if keep:
                files.save("private" if standing.private else "plain", networks, standing)
            if ends:
                standing.phase, standing.iteration = standing.phase + 1, 0
                # Phase 2 starts from the best of phase 1, also its optimizers and random state.
                if standing.private:
                    files.load("plain", networks)
            files.save("checkpoint", networks, standing)

        files.load("plain", networks)
        plain, private = copy.deepcopy(networks.average), None
        if files.has("private"):
            files.load("private", networks)
            private = networks.average
        return Trained(plain, private, standing.progress)
