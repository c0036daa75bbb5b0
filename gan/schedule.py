"""Where a training of the generative model stands, and what is due next in its two phases.

Paper: FedER (Pennisi et al. 2023, arXiv:2206.10048), section IV.B.2: phase 1 ends when the
generator gets no better; phase 2, with the privacy term, when its images are no longer good enough.
"""

from dataclasses import dataclass, field

from gan.presets import Preset

# Phase 2 ends when the Fréchet distance is that many times phase 1's (IV.B.2), at its second best
# check.
ENOUGH = 2.5


@dataclass(frozen=True)
class Progress:
    """How a training stood at one of its checks.

    Attributes:
        phase: 1 without, 2 with the privacy term.
        iteration: Steps of this phase.
        iterations_per_second: Since the last check, with the time that checks take.
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


@dataclass
class Standing:
    """Where a training stands: plain numbers, all of which go into its checkpoint.

    Attributes:
        phase: The present one, from 1; after the last one the training is over.
        iteration: Finished steps of this phase.
        seconds: As in `Progress`.
        progress: All checks so far.
    """

    phase: int = 1
    iteration: int = 0
    seconds: float = 0.0
    progress: list[Progress] = field(default_factory=list)

    @property
    def private(self) -> bool:
        """Whether the generator's loss has the privacy term."""
        return self.phase == 2


def due(iteration: int, every: int) -> bool:
    """Whether something that comes every so many iterations comes now; 0 = never."""
    return every > 0 and iteration % every == 0


def check_due(standing: Standing, preset: Preset) -> bool:
    """Whether the step just taken is followed by a check."""
    every = preset.check_every
    if standing.private:
        # The private generator is the last one that was still good enough: look closely.
        every = max(1, every // 5)
    return due(standing.iteration, every) or _is_last(standing, preset)


def judge(standing: Standing, preset: Preset) -> tuple[bool, bool]:
    """Judge the generator by the check just made.

    Returns:
        Whether the generator is the best so far (phase 1) or good enough (phase 2) and is to be
        kept, and whether the phase ends here.
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
    """The most steps that the present phase can have."""
    return preset.privacy_iterations if standing.private else preset.iterations


def _is_last(standing: Standing, preset: Preset) -> bool:
    return standing.iteration >= limit(standing, preset)
