"""Making a buffer: the input (`Job`), what learns (`Sampler`), and the result (`Release`)."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from client_app.errors import ReleaseError
from client_app.hospital import Hospital
from gan.noised_features import project
from gan.perceptual import PairwiseLPIPS
from gan.presets import Preset
from learning.samples import Samples
from strategies.protocol.code import code_hash


@dataclass(frozen=True, eq=False)
class Job:
    """One buffer to make."""

    hospital: Hospital
    size: int  # number of synthetic images
    train: Samples  # the hospital's training images, in memory
    learnt: Samples  # training images that the sampler learns from
    patients: NDArray[np.int64]  # their patients
    preset: Preset  # size and schedule of the GAN
    distance: PairwiseLPIPS  # of the privacy term and the figures
    inception: Path | None  # file of the FID's network; None = another Fréchet distance
    seed: int
    folder: Path  # folder of the sampler
    deadline: float  # in the time of `time.monotonic`

    def pictures(self) -> Path:
        """The folder for pictures: `folder`, or a folder in it for a sampler with code sets."""
        sampler = self.hospital.settings.gan.sampler
        place = self.folder if sampler == "random" else self.folder / sampler
        place.mkdir(parents=True, exist_ok=True)
        return place

    @property
    def noun(self) -> str:
        """The noun for the content of the buffer: "images", or "vectors" of features."""
        return "vectors" if self.hospital.data.whole else "images"

    def comparable(self, images: Tensor) -> Tensor:
        """Real images [N, ...], to compare with synthetic ones.

        Synthetic features of `dp-mean-embedding` are in a subspace, so real ones are projected.
        """
        settings = self.hospital.settings
        projected = self.hospital.data.whole and settings.gan.method == "dp-mean-embedding"
        return project(images) if projected else images

    def refusal(self, *reasons: str) -> ReleaseError:
        """The error for a hospital whose buffer may not leave."""
        why = " ".join(reasons).replace("perceptual", self.distance.name)
        return ReleaseError(
            f"The synthetic {self.noun} of '{self.hospital.name}' may not leave it. {why}"
        )


class Sampler(Protocol):
    """A sampler, which has learnt from a hospital's images and renders synthetic images.

    Shapes: `N` images, `C` channels, `H, W` pixels.
    """

    figures: dict[str, float]  # its measured figures, under declared names
    classes: Tensor  # classes that it can render, int64 [.]

    def render(self, labels: Tensor, seed: int) -> Tensor:
        """Images uint8 [N, C, H, W] of classes int64 [N], in the size of the hospital's own.

        On features they are features, float32 [N, d, 1, 1] of length 1.
        """


@dataclass(frozen=True, eq=False)
class Release:
    """Synthetic images that may leave."""

    samples: Samples  # the synthetic images with labels
    figures: dict[str, float]  # figures of the sampler and the audit, under declared names
    attacked: dict[str, Any] = field(default_factory=dict)  # results of attacks, which stay here
    code: str = field(default_factory=code_hash)  # of the code that made and checked them

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the images and labels."""
        digest = hashlib.sha256(self.samples.images.cpu().numpy().tobytes())
        digest.update(self.samples.labels.cpu().numpy().tobytes())
        return digest.hexdigest()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The release as arrays for the hospital's store."""
        return {
            "images": self.samples.images.cpu().numpy(),
            "labels": self.samples.labels.cpu().numpy(),
            "names": np.array(list(self.figures)),
            "values": np.array(list(self.figures.values()), dtype=float),
            "attacked": np.array(json.dumps(self.attacked)),
            "code": np.array(self.code),
        }

    @classmethod
    def from_arrays(cls, kept: Mapping[str, NDArray[Any]], device: torch.device) -> "Release":
        """Read a release from the arrays of `arrays`."""
        samples = Samples(torch.from_numpy(kept["images"]), torch.from_numpy(kept["labels"]))
        figures = zip(kept["names"].tolist(), kept["values"].tolist(), strict=True)
        attacked = json.loads(str(kept["attacked"]))
        return cls(samples.to(device), dict(figures), attacked, str(kept["code"]))


def fingerprint(samples: Samples) -> str:
    """A hash of the images and labels."""
    digest = hashlib.sha256()
    for tensor in (samples.images, samples.labels):
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def frequent_rows(labels: Tensor, fewest: int, group: int = 1) -> Tensor:
    """Images in classes of at least `fewest`, in whole groups: bool [n], from labels [n]."""
    sizes = torch.bincount(labels)
    return ((2 * sizes + group) // (2 * group) * group >= fewest)[labels]


def averaged_rows(labels: Tensor, patients: NDArray[np.int64], fewest: int) -> Tensor:
    """Images in classes whose mean is of at least `fewest` patients: bool [n], from labels [n].

    A patient with many images decides on the mean of a class. So patients with k images each count
    as (Σ k)² / Σ k² patients. This is their number if they have equally many images, and about one
    if one patient has most images.
    """
    (kinds, _), images = np.unique((labels.numpy(), patients), axis=1, return_counts=True)
    alike = np.bincount(kinds, images) ** 2 / np.bincount(kinds, images**2).clip(1)
    return torch.from_numpy(alike >= fewest)[labels]


def sample(samples: Samples, count: int) -> Samples:
    """At most `count` of the samples, at random."""
    chosen = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))[:count]
    return samples[chosen.to(samples.labels.device)]
