"""The standing of a training of the generative model, and the next steps in its two phases.

Paper: FedER (Pennisi et al. 2023, arXiv:2206.10048), section IV.B.2. Phase 1 ends when the
generator does not improve any more. Phase 2 has the privacy term, and ends when its images are no
longer good enough.
"""

from dataclasses import dataclass, field

from gan.presets import Preset

# Phase 2 ends when the Fréchet distance is above this multiple of phase 1's second best (IV.B.2).
ENOUGH = 2.5


@dataclass(frozen=True)
class Check:
    """The standing of a training at one of its checks."""

    phase: int  # 1 = without the privacy term, 2 = with it
    iteration: int  # steps of this phase
    iterations_per_second: float  # since the last check, including the time of checks
    frechet: float  # distance of the averaged generator's images from the real ones
    ada_p: float  # probability of augmentation
    privacy_distance: float | None  # mean distance of synthetic from real images; None in phase 1
    discriminator_loss: float  # mean since the last check
    generator_loss: float  # mean since the last check, without the privacy term
    seconds: float  # since the training began, without the time between a kill and the next start


@dataclass
class Standing:
    """The standing of a training, in plain numbers for its checkpoint."""

    phase: int = 1  # the present phase, from 1; after the last phase the training is over
    iteration: int = 0  # finished steps of this phase
    seconds: float = 0.0  # as in `Check`
    progress: list[Check] = field(default_factory=list)  # all checks so far

    @property
    def private(self) -> bool:
        """Whether the generator's loss has the privacy term."""
        return self.phase == 2


def due(iteration: int, every: int) -> bool:
    """Whether this iteration is one of every `every` iterations; 0 = never."""
    return every > 0 and iteration % every == 0


def check_due(standing: Standing, preset: Preset) -> bool:
    """Whether a check follows the last step."""
    every = preset.check_every
    if standing.private:
        # The private generator is the last one that was good enough, so checks are frequent.
        every = max(1, every // 5)
    return due(standing.iteration, every) or _is_last(standing, preset)


def judge(standing: Standing, preset: Preset) -> tuple[bool, bool]:
    """Judge the generator by the last check.

    Returns:
        Whether to keep the generator, which is the best so far (phase 1) or good enough (phase 2);
        and whether the phase ends here.
    """
    now, ends = standing.progress[-1], _is_last(standing, preset)
    best = sorted((p for p in standing.progress if p.phase == 1), key=lambda p: p.frechet)
    if standing.private:
        # The distance goes up and down between checks: one lucky check must not set the limit.
        good = now.frechet <= ENOUGH * best[:2][-1].frechet
        return good, ends or not good
    stale = now.iteration - best[0].iteration >= preset.patience
    return best[0] is now, ends or stale


def limit(standing: Standing, preset: Preset) -> int:
    """The most steps of the present phase."""
    return preset.privacy_iterations if standing.private else preset.iterations


def _is_last(standing: Standing, preset: Preset) -> bool:
    return standing.iteration >= limit(standing, preset)
