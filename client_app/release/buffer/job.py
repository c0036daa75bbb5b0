"""What the stages of making a buffer work with, and what comes of them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.errors import ReleaseError
from client_app.hospital import Hospital
from gan.perceptual import PairwiseLPIPS
from gan.presets import Preset
from learning.samples import Samples


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
        folder: Where the sampler is kept.
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

    def pictures(self) -> Path:
        """Where pictures go: below `folder`, if one of several samplers of its GAN made them."""
        sampler = self.hospital.settings.gan.sampler
        place = self.folder if sampler == "random" else self.folder / sampler
        place.mkdir(parents=True, exist_ok=True)
        return place

    def refusal(self, *reasons: str) -> ReleaseError:
        """What a hospital says when its synthetic images may not leave."""
        why = " ".join(reasons).replace("perceptual", self.distance.name)
        return ReleaseError(
            f"The synthetic images of '{self.hospital.name}' may not leave it. {why}"
        )


@dataclass(frozen=True, eq=False)
class Release:
    """Synthetic images that may leave.

    Attributes:
        samples: They.
        figures: Of the sampler and the audit, all of them declared.
        attacked: What attacks found, which stays (`Attacked` of audit/buffer.py); empty if nobody
            attacked them.
    """

    samples: Samples
    figures: dict[str, float]
    attacked: dict[str, Any] = field(default_factory=dict)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The same for the hospital's store."""
        return {
            "images": self.samples.images.cpu().numpy(),
            "labels": self.samples.labels.cpu().numpy(),
            "names": np.array(list(self.figures)),
            "values": np.array(list(self.figures.values()), dtype=float),
            "attacked": np.array(json.dumps(self.attacked)),
        }

    @classmethod
    def from_arrays(cls, kept: Mapping[str, NDArray[Any]], device: torch.device) -> "Release":
        """Read what `arrays` gave."""
        samples = Samples(torch.from_numpy(kept["images"]), torch.from_numpy(kept["labels"]))
        figures = zip(kept["names"].tolist(), kept["values"].tolist(), strict=True)
        attacked = json.loads(str(kept["attacked"]))
        return cls(samples.to(device), dict(figures), attacked)


def frequent(samples: Samples, fewest: int) -> Samples:
    """Those of classes with at least `fewest` images: fewer would be learnt one by one."""
    return samples[torch.bincount(samples.labels)[samples.labels] >= fewest]


def sample(samples: Samples, count: int) -> Samples:
    """At most `count` of the samples, at random."""
    chosen = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))[:count]
    return samples[chosen.to(samples.labels.device)]
