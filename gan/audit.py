"""The release check: no buffer of synthetic images leaves a hospital without passing it.

It checks the form of a buffer and the distance to the closest record (DCR): how near each synthetic
image is to a training image, in pixels and in perceptual distance. Held-out images, which the
generator has not seen, set the scale: the threshold is a `quantile` of their distances to the
training images. A synthetic image below the threshold is refused, and so is any copy.

The texts of a verdict, which name synthetic images and their distances, are for the hospital's own
log. The check compares single images. It is no proof of privacy, and says nothing about what a
buffer reveals as a whole.

N, M images, C channels, H x W pixels, F features.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from math import sqrt
from pathlib import Path

import torch
from torch import Tensor

from gan.pixel_range import from_bytes
from gan.synthesis import save_grid

BLOCK, BLOCK_VALUES = 2048, 2**28  # most images, and float32 values (1 GiB), in a block of vectors
KEPT_VALUES = 2**29  # most float32 values (2 GiB) of a set of vectors that is kept
NAMED = 10  # refused images that a reason names
PAIRS, COLUMNS, PIXELS = 60, 6, 96  # pairs, pairs in a row, smallest side of an image in pixels


@dataclass(frozen=True)
class Verdict:
    """Whether a buffer may leave.

    Attributes:
        passed: It may.
        reasons: Why not.
        figures: What was measured.
        refused: Indices of the synthetic images that are too near.
    """

    passed: bool
    reasons: tuple[str, ...]
    figures: dict[str, float]
    refused: tuple[int, ...]


class Vectors:
    """The vectors of images in blocks; they are kept if they are few enough."""

    def __init__(self, images: Tensor, embed: Callable[[Tensor], Tensor]) -> None:
        """Prepare the vectors of images.

        Args:
            images: [N, C, H, W], at least one.
            embed: Maps images [n, C, H, W] to vectors [n, F].
        """
        self.images, self.embed = images, embed
        values = self._vectors(images[:1]).numel()
        self.block = max(1, min(BLOCK, BLOCK_VALUES // values))
        self.keeps = len(images) * values <= KEPT_VALUES
        self.kept: list[Tensor] = []

    def __iter__(self) -> Iterator[Tensor]:
        """Blocks [n, F] in the order of the images."""
        if self.keeps and not self.kept:
            self.kept = [self._vectors(images) for images in self.images.split(self.block)]
        return iter(self.kept) if self.keeps else map(self._vectors, self.images.split(self.block))

    @torch.no_grad()
    def _vectors(self, images: Tensor) -> Tensor:
        vectors = self.embed(images)
        if not vectors.isfinite().all():
            raise ValueError("The features of some images are not finite.")
        return vectors


def nearest(x: Vectors, y: Vectors) -> tuple[Tensor, Tensor]:
    """The squared distance [N] of every x to the nearest y, and its index [N].

    It needs memory for four blocks and for what is kept. The vectors of x are computed once. Those
    of y are computed once per block of x, unless they are kept: for 512 x 20,000 images of
    256 x 256 pixels and the 8 million features of LPIPS, a VGG16 sees the 20,000 images 16 times.
    """
    distances, indices = [], []
    for some in x:
        best = torch.full((len(some),), torch.inf, device=some.device)
        found = torch.zeros(len(some), dtype=torch.int64, device=some.device)
        first = 0
        for others in y:
            # ‖x − y‖² less ‖x‖², which all y share: exact enough to find the nearest, but not to
            # tell a small distance from zero.
            index = (others.square().sum(dim=1) - 2 * some @ others.T).argmin(dim=1)
            exact = (some - others[index]).square_().sum(dim=1)
            better = exact < best
            best, found = exact.where(better, best), (first + index).where(better, found)
            first += len(others)
        distances.append(best)
        indices.append(found)
    return torch.cat(distances), torch.cat(indices)


def pixels(images: Tensor) -> Tensor:
    """Vectors of uint8 images whose distance is the root mean square difference, in [0, 1]."""
    vectors = images.flatten(1).float()
    return vectors / (255 * sqrt(vectors.shape[1]))


def perceptual(images: Tensor, features: Callable[[Tensor], Tensor]) -> Tensor:
    """Vectors of uint8 images whose squared distance is the perceptual one."""
    return features(from_bytes(images))


class Auditor:
    """Checks buffers against a hospital's images; what depends on these alone is computed once."""

    def __init__(
        self,
        training: Tensor,
        held_out: Tensor,
        *,
        wanted: Tensor,
        classes: Sequence[str],
        features: Callable[[Tensor], Tensor],
        quantile: float,
    ) -> None:
        """Set the thresholds: how near held-out images come to the training images.

        Held-out images that are copies of a training image are left out: they would pull the
        threshold to zero. With fewer than 1 / quantile others the threshold is their smallest
        distance. The fewer there are, the more is refused, which is the safe side: one in M + 1
        new images of the same distribution.

        Args:
            training: The images [N, C, H, W] uint8 that the generator was trained on.
            held_out: Images [M, C, H, W] uint8 of the same hospital that it was not trained on.
            wanted: Labels int64 [.] of the classes that a buffer must show.
            classes: The names of all classes.
            features: Maps images in [-1, 1] to [N, F]; the perceptual distance is the squared norm
                of the difference. On the images' device.
            quantile: Share of the held-out images that are below the threshold, in [0, 1].

        Raises:
            ValueError: All held-out images are copies of training images.
        """
        self.training, self.classes, self.quantile = training, classes, quantile
        self.wanted = wanted.unique().tolist()
        self.hashes = set(map(_hash, training))
        unseen = held_out[~self._copied(held_out)]
        if not len(unseen):
            raise ValueError(
                "Every held-out image is a copy of a training image: there is no other to compare "
                "with."
            )
        perceive = partial(perceptual, features=features)
        self.vectors = {
            "pixels": Vectors(training, pixels),
            "perceptual": Vectors(training, perceive),
        }
        self.unseen = self._distances(self._embed(unseen))
        # Not interpolated: the thresholds are distances that were measured.
        self.thresholds = {
            name: each.quantile(quantile, interpolation="lower").item()
            for name, each in self.unseen.items()
        }
        size = min(len(training), len(unseen))
        rng = torch.Generator().manual_seed(0)
        self.equal = [
            Vectors(each[torch.randperm(len(each), generator=rng)[:size].to(each.device)], perceive)
            for each in (training, unseen)
        ]

    def refuses(self, images: Tensor) -> Tensor:
        """Which of the images [N, C, H, W] uint8 may not be in a buffer, bool [N]."""
        return self._too_near(images, self._distances(self._embed(images)))

    def check(self, images: Tensor, labels: Tensor) -> Verdict:
        """Whether images [N, C, H, W] uint8 with labels [N] int64 may leave the hospital.

        The figures for each metric m, `pixels` (root mean square difference as a share of the full
        range) and `perceptual`, are `release-threshold-m`, `release-nearest-m`, `release-median-m`,
        `held-out-nearest-m` and `held-out-median-m`. `release-refused` is the share of images that
        are too near. `release-nearer-to-training` is the share of images whose perceptually nearest
        real image, among as many training as held-out ones, is a training image: 0.5 if nothing was
        memorised. A buffer of the wrong form has no figures.
        """
        reasons = list(self._faults(images, labels))
        if reasons:
            return Verdict(False, tuple(reasons), {}, ())
        vectors = self._embed(images)
        distances = self._distances(vectors)
        too_near = self._too_near(images, distances)
        refused = too_near.nonzero().flatten().tolist()
        if refused:
            named = "; ".join(self._why(i, images, distances) for i in refused[:NAMED])
            more = ", ..." if len(refused) > NAMED else "."
            reasons.append(
                f"{len(refused)} of {len(images)} images are too near to a training image "
                f"(quantile {self.quantile:g} of held-out images): {named}{more}"
            )
        figures = {
            "release-refused": len(refused) / len(images),
            "release-nearer-to-training": self._nearer_to_training(vectors["perceptual"]),
        }
        for name, threshold in self.thresholds.items():
            figures[f"release-threshold-{name}"] = threshold
            for whose, values in (("release", distances[name]), ("held-out", self.unseen[name])):
                figures[f"{whose}-nearest-{name}"] = values.min().item()
                figures[f"{whose}-median-{name}"] = values.quantile(0.5).item()
        return Verdict(not reasons, tuple(reasons), figures, tuple(refused))

    def _faults(self, images: Tensor, labels: Tensor) -> Iterator[str]:
        """What is wrong with a buffer's form."""
        shape = tuple(self.training.shape[1:])
        if images.dtype != torch.uint8:
            yield f"Images are {images.dtype}, not torch.uint8."
        if tuple(images.shape[1:]) != shape:
            yield f"Images are of shape {tuple(images.shape[1:])}, the hospital's of {shape}."
        if labels.dtype != torch.int64:
            yield f"Labels are {labels.dtype}, not torch.int64."
        elif labels.shape != images.shape[:1]:
            yield f"There are labels of shape {tuple(labels.shape)} for {len(images)} images."
        elif ((labels < 0) | (labels >= len(self.classes))).any():
            yield f"Labels are not all within 0..{len(self.classes) - 1}."
        elif missing := sorted(set(self.wanted) - set(labels.tolist())):
            yield "No image of class " + ", ".join(self.classes[i] for i in missing) + "."

    def _embed(self, images: Tensor) -> dict[str, Vectors]:
        return {name: Vectors(images, each.embed) for name, each in self.vectors.items()}

    def _distances(self, vectors: dict[str, Vectors]) -> dict[str, Tensor]:
        """The distance [N] to the closest training image in each metric."""
        squared = {name: nearest(each, self.vectors[name])[0] for name, each in vectors.items()}
        return {"pixels": squared["pixels"].sqrt(), "perceptual": squared["perceptual"]}

    def _copied(self, images: Tensor) -> Tensor:
        return torch.tensor([_hash(each) in self.hashes for each in images], device=images.device)

    def _too_near(self, images: Tensor, distances: dict[str, Tensor]) -> Tensor:
        too_near = self._copied(images)  # a distance of zero, whatever the thresholds
        for name, threshold in self.thresholds.items():
            too_near |= distances[name] < threshold
        return too_near

    def _why(self, index: int, images: Tensor, distances: dict[str, Tensor]) -> str:
        if self._copied(images[index : index + 1]):
            return f"{index} (a copy)"
        measured = [
            f"{name} {distances[name][index]:.4g} < {threshold:.4g}"
            for name, threshold in self.thresholds.items()
            if distances[name][index] < threshold
        ]
        return f"{index} ({', '.join(measured)})"

    def _nearer_to_training(self, vectors: Vectors) -> float:
        training, held_out = (nearest(vectors, each)[0] for each in self.equal)
        wins = (training < held_out).float() + 0.5 * (training == held_out).float()
        return wins.mean().item()


def save_nearest(
    path: Path, images: Tensor, others: Tensor, features: Callable[[Tensor], Tensor]
) -> None:
    """Draw images, each with the perceptually nearest other on its right; nearest pairs first.

    The images [N, C, H, W] uint8 are synthetic and the others [M, C, H, W] the training images, or
    the other way round. The picture shows real images: it is for the hospital's own eyes.
    """
    embed = partial(perceptual, features=features)
    distances, indices = nearest(Vectors(images, embed), Vectors(others, embed))
    order = distances.argsort(stable=True)[:PAIRS]
    pairs = torch.cat([images[order], others[indices[order]]], dim=3).cpu()  # [pairs, C, H, 2W]
    save_grid(path, pairs, COLUMNS, PIXELS, border=8, grey=1)


def _hash(image: Tensor) -> bytes:
    return sha256(image.cpu().contiguous().numpy().tobytes()).digest()
