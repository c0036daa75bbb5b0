"""All that the stages of making a buffer work with."""

from dataclasses import dataclass
from pathlib import Path

import torch

from client_app.errors import ReleaseError
from client_app.hospital import Hospital
from gan.perceptual import PairwiseLPIPS
from gan.presets import Preset
from learning.samples import Samples

REAL_IMAGES = 1000  # real images that are enough to compare with, where not all are needed


@dataclass(frozen=True, eq=False)
class Job:
    """One buffer to make.

    Attributes:
        hospital: Whose.
        size: How many images it shall have.
        train: The hospital's training images, in memory.
        learnt: Those of them that the sampler learns from.
        fingerprint: Changes with `train`.
        preset: Size and schedule of the GAN.
        distance: The perceptual distance of the privacy term, the audit and the figures.
        seed: Of everything random.
        folder: Where the sampler is kept, and the pictures.
        deadline: When to give up, in the time of `time.monotonic`.
    """

    hospital: Hospital
    size: int
    train: Samples
    learnt: Samples
    fingerprint: str
    preset: Preset
    distance: PairwiseLPIPS
    seed: int
    folder: Path
    deadline: float

    def refusal(self, *reasons: str) -> ReleaseError:
        """What a hospital says when its synthetic images may not leave."""
        why = " ".join(reasons).replace("perceptual", self.distance.name)
        return ReleaseError(
            f"The synthetic images of '{self.hospital.name}' may not leave it. {why}"
        )


def frequent(samples: Samples, fewest: int) -> Samples:
    """Those of classes with at least `fewest` images: fewer would be learnt one by one."""
    chosen = torch.bincount(samples.labels)[samples.labels] >= fewest
    return samples[chosen]


def some(samples: Samples, count: int) -> Samples:
    """At most `count` of the samples, at random."""
    chosen = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))[:count]
    chosen = chosen.to(samples.labels.device)
    return samples[chosen]
