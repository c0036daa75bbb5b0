"""The search for copies of training images "in any dress".

A copy may be mirrored, turned, shifted, cropped, brighter, inverted, blurred, noisy, compressed,
or mixed with another image. Each image is compared with all training images in three steps.

1. Aligned: whole images in the 8 orientations of a square, by the absolute correlation of whitened
   vectors, which neither brightness nor contrast nor inversion changes. Whitening takes away what
   all training images have in common. A second training image is added in the way of orthogonal
   matching pursuit (Pati et al. 1993): that finds mixes.
2. Moved: the middle of the image among windows of the training images, at a grid of shifts and
   scales, first coarsely; the best few are then registered, turned and scaled in small steps.
3. Altered: how much of the image is a linear combination of a training image, the same blurred,
   and its square: that finds blur and changes of gamma. Of aligned and of moved candidates.

The time is linear in the number of training images. Colour is not looked at.

N images, M training images, C channels, H x W pixels, R pixels a side, F features, K candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, conv2d, grid_sample, interpolate, pad

SCORES = ("aligned", "mixed", "altered", "moved", "moved and altered")
SIDE, COARSE = 32, 12  # pixels a side in which images are compared, and windows are looked for
MIDDLE = 0.75  # side of the middle of an image that is looked for in others, as a share
WINDOW, WINDOW_FEATURES = 8, 40  # pixels a side of a coarse window; its features
FEATURES = 256  # most of an image
SHIFTS = (-0.24, -0.16, -0.08, 0.0, 0.08, 0.16, 0.24)  # of windows, in halves of a side
SCALES = (0.8, 1.0, 1.25)
NEAREST, MOVED, SECONDS = 4, 10, 5  # candidates: aligned, moved, and as the first of a mix
STEPS, ROUNDS = (0.06, 0.06, 0.1, 0.1), 8  # of a registration: shifts, log scale, angle
SHARP, PLAIN, ROUGH = 0.05, 30.0, 1.0  # added to eigenvalues, as a share of their mean
LEARNT = 4000  # training images that the whitening is learnt from
QUERIES, VALUES = 64, 2**23  # images, and correlations, at once
LEAST = 1e-5  # residual of an exact copy: below it float32 tells nothing


@dataclass(frozen=True, eq=False)
class Found:
    """What the search found for N images.

    Attributes:
        residuals: Float32 [N, scores]: the logarithm of the share of an image that is not
            explained by training images, for each of `SCORES`; small for copies.
        index: The training image that is most like it in one of them, int64 [N].
        frame: In which of the 8 orientations the image is most like it, int64 [N].
        pose: Where its middle lies in the training image: shifts, log scale and angle, [N, 4].
    """

    residuals: Tensor
    index: Tensor
    frame: Tensor
    pose: Tensor


class Search:
    """Looks for copies of training images among others."""

    def __init__(self, training: Tensor) -> None:
        """Prepare the search.

        Args:
            training: Images [M, C, H, W] uint8.
        """
        rng = torch.Generator().manual_seed(0)
        self.whole, self.small = squares(training, SIDE), squares(training, COARSE)
        learnt = torch.randperm(len(training), generator=rng)[:LEARNT].to(training.device)
        shares = [(z, dx, dy) for z in SCALES for dx in SHIFTS for dy in SHIFTS]
        self.poses = torch.tensor(
            [(dx, dy, log(z), 0.0) for z, dx, dy in shares], device=training.device
        )  # [P, 4]
        some = _frames(self.whole[learnt]).flatten(0, 1)
        drawn = torch.randint(len(self.poses), (len(some),), generator=rng)
        poses = self.poses[drawn.to(training.device)]
        self.pixels = 2 * max(1, round(self.whole.shape[-1] * MIDDLE / 2))
        self.middle = self.pixels / self.whole.shape[-1]
        self.sharp = _whitening(_vectors(some), SHARP)
        self.plain = _whitening(_vectors(some), PLAIN)
        self.rough = _whitening(self._windows(some, poses, self.pixels), ROUGH)
        small = _frames(self.small[learnt]).flatten(0, 1)
        self.coarse = _whitening(self._windows(small, poses, WINDOW), ROUGH, WINDOW_FEATURES)
        vectors = _vectors(self.whole)
        self.sharp_known = _unit(vectors @ self.sharp)  # [M, F]
        self.plain_known = _unit(vectors @ self.plain)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Found:
        """Search for the training images that are behind images [N, C, H, W] uint8."""
        candidates, frames, poses = self._moved(squares(images, COARSE))
        found = []
        whole = squares(images, SIDE)
        for first in range(0, len(images), QUERIES):
            rows = slice(first, first + QUERIES)
            moved = candidates[rows], frames[rows], poses[rows]
            found.append(self._found(whole[rows], *moved))
        return Found(*map(torch.cat, zip(*found, strict=True)))

    @torch.no_grad()
    def aligned(self, images: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """How similar each image's nearest other is in any orientation, [N], and which, [N]."""
        known = _unit(_vectors(squares(others, SIDE)) @ self.plain)  # [M, F]
        best = [
            _correlations(_vectors(_frames(some)) @ self.plain, known).abs().amax(1).max(1)
            for some in squares(images, SIDE).split(QUERIES)
        ]
        return torch.cat([each.values for each in best]), torch.cat([e.indices for e in best])

    def dressed(self, index: Tensor, frame: Tensor, pose: Tensor, side: int) -> Tensor:
        """Training images in the dress that was found: float [N, 1, side, side]."""
        drawn = _sampled(self.whole[index], pose, 1.0, side)
        return torch.stack([_back(each, int(f)) for each, f in zip(drawn, frame, strict=True)])

    def _found(self, whole: Tensor, index: Tensor, frame: Tensor, pose: Tensor) -> Sequence[Tensor]:
        """Fields of `Found` for a few images [n, 1, R, R] and their moved candidates [n, K]."""
        framed = _frames(whole)  # [n, 8, 1, R, R]
        vectors = _vectors(framed)  # [n, 8, R·R]
        sharp = _correlations(vectors @ self.sharp, self.sharp_known)  # [n, 8, M]
        plain = _correlations(vectors @ self.plain, self.plain_known)
        tops = [_top(each, NEAREST) for each in (plain, sharp)]
        aligned = torch.cat([top[0] for top in tops], 1)
        orientation = torch.cat([top[1] for top in tops], 1)
        rows = torch.arange(len(whole), device=whole.device)[:, None]
        explained = {
            "aligned": plain.abs().amax(dim=1).gather(1, aligned).square(),
            "mixed": self._mixed(sharp),
            "altered": _altered(
                vectors[rows, orientation], self.whole[aligned].flatten(0, 1), None
            ),
        }
        middles = self._windows(
            framed.flatten(0, 1), torch.zeros_like(pose[:, 0]).repeat_interleave(8, 0), self.pixels
        )
        targets = middles.view(len(whole), 8, -1)[rows, frame]  # [n, K, G·G]
        pose = self._registered(targets, index, pose)
        known = self.whole[index].flatten(0, 1)
        windows = self._windows(known, pose.flatten(0, 1), self.pixels).view_as(targets)
        alike = (_unit(windows @ self.rough) * _unit(targets @ self.rough)).sum(dim=2)
        explained["moved"] = alike.square()
        explained["moved and altered"] = _altered(
            targets, known, (pose.flatten(0, 1), self.middle, self.pixels)
        )
        residuals = {
            name: (1 - each).clamp(min=LEAST).log() for name, each in explained.items()
        }  # [n, candidates]
        every = torch.cat([residuals["altered"], residuals["moved and altered"]], 1).argmin(dim=1)
        zero = pose.new_zeros(len(whole), aligned.shape[1], 4)
        each = every[:, None]
        return (
            torch.stack([residuals[name].amin(dim=1) for name in SCORES], 1),
            torch.cat([aligned, index], 1).gather(1, each)[:, 0],
            torch.cat([orientation, frame], 1).gather(1, each)[:, 0],
            torch.cat([zero, pose], 1)[rows[:, 0], every],
        )

    def _mixed(self, correlations: Tensor) -> Tensor:
        """How much of images two training images explain, [n, firsts], from those [n, 8, M]."""
        rows = torch.arange(len(correlations), device=correlations.device)
        index, frames = _top(correlations, SECONDS)
        explained = []
        for i, f in zip(index.T, frames.T, strict=True):
            own = correlations[rows, f]  # [n, M], all in the orientation of the first
            first = own[rows, i][:, None]
            shared = self.sharp_known[i] @ self.sharp_known.T
            more = (own - first * shared).square() / (1 - shared.square()).clamp(min=0.05)
            more[rows, i] = 0
            explained.append(first[:, 0].square() + more.amax(dim=1))
        return torch.stack(explained, 1)

    def _moved(self, small: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Candidates [N, K] for images [N, 1, R, R], their orientations, and poses [N, K, 4]."""
        framed = _frames(small)
        zero = self.poses.new_zeros(framed.shape[:2].numel(), 4)
        middles = _unit(self._windows(framed.flatten(0, 1), zero, WINDOW) @ self.coarse)
        best, index, arg = [], [], []
        count = len(small)
        first = 0
        for known in self.small.split(max(1, VALUES // (8 * count))):
            most = known.new_zeros(count, len(known))
            which = torch.zeros_like(most, dtype=torch.int64)
            for number, pose in enumerate(self.poses):
                windows = self._windows(known, pose.expand(len(known), 4), WINDOW)
                alike = (middles @ _unit(windows @ self.coarse).T).abs_().view(count, 8, -1)
                value, frame = alike.max(dim=1)
                better = value > most
                most = value.where(better, most)
                which = (frame * len(self.poses) + number).where(better, which)
            top = most.topk(min(MOVED, len(known)), dim=1)
            best.append(top.values)
            index.append(top.indices + first)
            arg.append(which.gather(1, top.indices))
            first += len(known)
        values, all_index, all_arg = (torch.cat(each, 1) for each in (best, index, arg))
        top = values.topk(min(MOVED, values.shape[1]), dim=1).indices
        chosen = all_arg.gather(1, top)
        poses = self.poses[chosen % len(self.poses)]
        return all_index.gather(1, top), chosen // len(self.poses), poses

    def _registered(self, targets: Tensor, index: Tensor, pose: Tensor) -> Tensor:
        """Better poses [n, K, 4] of the middles [n, K, G·G] in the training images [n, K]."""
        known = self.whole[index].flatten(0, 1)
        wanted = _unit(targets @ self.rough).flatten(0, 1)
        poses = pose.flatten(0, 1).clone()

        def alike(poses: Tensor) -> Tensor:
            windows = self._windows(known, poses, self.pixels)
            return (_unit(windows @ self.rough) * wanted).sum(dim=1).abs()

        best, steps = alike(poses), poses.new_tensor(STEPS)
        for turn in range(ROUNDS):
            for axis in range(4):
                for sign in (1, -1):
                    moved = poses.clone()
                    moved[:, axis] += sign * steps[axis] / 2 ** (turn // 2)
                    value = alike(moved)
                    better = value > best
                    best = value.where(better, best)
                    poses = moved.where(better[:, None], poses)
        return poses.view_as(pose)

    def _windows(self, images: Tensor, poses: Tensor, pixels: int) -> Tensor:
        """Unit vectors [n, pixels²] of one window of each image [n, 1, R, R]."""
        return _vectors(_sampled(images, poses, self.middle, pixels))


def squares(images: Tensor, side: int) -> Tensor:
    """Grey images float [N, 1, R, R] in [0, 1] of uint8 ones, R = `side` or less."""
    grey = images.float().mean(dim=1, keepdim=True) / 255
    side = min(side, *images.shape[2:])
    return grey if grey.shape[2:] == (side, side) else interpolate(grey, (side, side), mode="area")


def blurred(images: Tensor, sigma: float) -> Tensor:
    """Images [N, C, H, W] behind a Gaussian filter."""
    reach = max(1, round(3 * sigma))
    offsets = torch.arange(-reach, reach + 1, device=images.device)
    kernel = torch.exp(-(offsets**2) / (2 * sigma**2))
    kernel = kernel / kernel.sum()
    padded = pad(images, (reach,) * 4, mode="replicate").flatten(0, 1)[:, None]
    rows = conv2d(padded, kernel.view(1, 1, 1, -1))
    return conv2d(rows, kernel.view(1, 1, -1, 1)).view_as(images)


def _frames(images: Tensor) -> Tensor:
    """The 8 orientations [n, 8, 1, R, R] of square images [n, 1, R, R]."""
    turned = [images.rot90(k, (2, 3)) for k in range(4)]
    return torch.stack([each for x in turned for each in (x, x.flip(3))], 1)


def _back(image: Tensor, frame: int) -> Tensor:
    """An image [1, R, R] in the orientation from which `_frames` made `frame`."""
    unflipped = image.flip(2) if frame % 2 else image
    return unflipped.rot90(-(frame // 2), (1, 2))


def _sampled(images: Tensor, poses: Tensor, middle: float, pixels: int) -> Tensor:
    """Windows [n, 1, pixels, pixels] of images [n, 1, R, R] at poses [n, 4], without a gap."""
    dx, dy, zoom, angle = poses.unbind(1)
    size = middle * zoom.exp()
    cos, sin = size * angle.cos(), size * angle.sin()
    rows = [torch.stack([cos, -sin, dx], 1), torch.stack([sin, cos, dy], 1)]
    grid = affine_grid(torch.stack(rows, 1), [len(images), 1, pixels, pixels], align_corners=False)
    return grid_sample(images, grid, padding_mode="border", align_corners=False)


def _unit(vectors: Tensor) -> Tensor:
    scaled: Tensor = vectors / (vectors.norm(dim=-1, keepdim=True) + 1e-6)
    return scaled


def _vectors(images: Tensor) -> Tensor:
    """Unit vectors [..., R·R] of images [..., 1, R, R] without their brightness."""
    flat = images.flatten(-3)
    flat = flat - flat.mean(dim=-1, keepdim=True)
    scaled: Tensor = flat / (flat.norm(dim=-1, keepdim=True) + 1e-3)
    return scaled


def _whitening(vectors: Tensor, added: float, most: int = FEATURES) -> Tensor:
    """A matrix [values, F] after which the second moments of vectors are nearly equal.

    Args:
        vectors: [n, values].
        added: To each eigenvalue, as a share of their mean: the more, the less is whitened.
        most: Eigenvectors that are kept, those of the largest eigenvalues.
    """
    values, axes = torch.linalg.eigh((vectors.T @ vectors).double() / len(vectors))
    values, axes = values.clamp(min=0).flip(0), axes.flip(1)
    scale = (values + added * values.mean() + 1e-12).rsqrt()
    scaled: Tensor = (axes * scale)[:, :most].float()
    return scaled


def _correlations(vectors: Tensor, known: Tensor) -> Tensor:
    """Of each of n images in 8 orientations [n, 8, F] with M known ones: [n, 8, M]."""
    return _unit(vectors) @ known.T


def _top(correlations: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The most similar of M known images [n, count], and in which orientation, of [n, 8, M]."""
    value, frame = correlations.abs().max(dim=1)
    index = value.topk(min(count, value.shape[1]), dim=1).indices
    return index, frame.gather(1, index)


def _altered(targets: Tensor, known: Tensor, window: tuple[Tensor, float, int] | None) -> Tensor:
    """How much [n, K] of unit vectors [n, K, values] known images [n·K, 1, R, R] explain.

    A known image explains with it its square and itself behind a filter; of a window, where it is.
    """
    family = [known, blurred(known, 0.7), known.square()]
    if window:
        family = [_sampled(each, *window) for each in family]
    basis: list[Tensor] = []
    for vector in map(_vectors, family):
        for other in basis:  # Gram-Schmidt; what is left of a vector that adds nothing is zero
            vector = vector - (vector * other).sum(dim=1, keepdim=True) * other
        norm = vector.norm(dim=1, keepdim=True)
        basis.append(torch.where(norm > 1e-3, vector / norm.clamp(min=1e-3), 0.0))
    flat = targets.flatten(0, 1)
    explained = torch.stack([(flat * each).sum(dim=1).square() for each in basis]).sum(dim=0)
    return explained.view(targets.shape[:2])
