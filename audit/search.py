"""The search for changed copies of training images.

A change, for example a shift or blur, is called a dress of the copy (dresses.py). Each image is
compared with all training images in seven steps.

1. Aligned: whole images are compared in the 8 orientations of a square, by the absolute correlation
   of whitened vectors. Whitening removes the common features of all training images. Orthogonal
   matching pursuit (Pati et al. 1993) adds a second training image: that finds mixes.
2. Moved: the middle of the image is compared with windows of the training images, at a grid of
   shifts, scales and angles. The best windows are registered, and the best of these once more.
3. Altered: the image is fitted by a training image, the same blurred, and its square. That finds
   blur and changes of gamma. The candidates of steps 1 and 2 are tried.
4. Alone: the best moved candidate is compared with the others. The source of a noisy copy stands
   out.
5. In parts: each block of the image is compared with blocks of a training image. Blocks near its
   place find bent copies; blocks anywhere find patches that were moved. The third of the blocks
   with the best fit counts: the rest may be hidden, or belong to another image.
6. Elsewhere: halves and quarters of the image, and the image without a border, are compared with
   shrunken training images; its colours, as grey images, with training images and their colours.
7. Of a patient: two moved candidates of one patient count as more than one.

The time is linear in the number of training images. Steps 1 to 5 and 7 look at grey images.

N images, M training images, C channels, H x W pixels, R pixels a side, F features, K candidates,
B blocks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor
from torch.nn.functional import conv2d, grid_sample, interpolate, pad, unfold

SCORES = (
    "aligned",
    "mixed",
    "altered",
    "moved",
    "moved and altered",
    "alone",
    "bent",
    "in parts",
    "shrunken",
    "in colour",
    "of a patient",
)
SIDE, COARSE = 32, 12  # pixels a side for the comparison of images, and for the search of windows
MIDDLE = 0.75  # side of the middle of an image that is searched for in others, as a share
WINDOW, WINDOW_FEATURES = 8, 24  # pixels a side of a coarse window; its features
FEATURES = 256  # most features of an image
SHIFTS = (-0.24, -0.16, -0.08, 0.0, 0.08, 0.16, 0.24)  # of windows, in halves of a side
SCALES, ANGLES = (0.8, 0.9, 1.0, 1.12, 1.25), (-0.15, 0.15)  # of windows; turned ones at scale 1
NEAREST, SECONDS = 4, 5  # candidates for aligned images; candidates for the first part of a mix
COARSELY = 40, 0.02  # moved candidates: at least this number, or this share of the training images
MOVED = 10  # moved candidates that remain after the first registration
BLOCKS, BLOCK = 4, 4  # blocks a side of an image; the least side of one in pixels
BLOCK_FEATURES, PLACES = 24, 4  # features of a block; candidates by blocks, in place and moved
SEEN = 3  # one of this number of blocks counts: the rest may be hidden
FAINT = 0.02  # contrast (norm) of a block that counts half: flat blocks are alike by chance
EXACT = 0.002  # residual of a block that counts as the same
SOFT = 0.7  # deviation in pixels of the filter
STEPS = (0.06, 0.06, 0.1, 0.1)  # of a registration: shifts, log scale, angle
FIRST, LAST = 3, 4  # its rounds, for all candidates and for the best
LEAST_GAIN = 0.2  # least gain of a window: below it steps would be too long
SHARP, PLAIN, ROUGH = 0.05, 30.0, 1.0  # added to eigenvalues, as a share of their mean
LEARNT = 4000  # training images that the whitening is learnt from
QUERIES, VALUES = 64, 2**19  # images, and correlations of their middles, at once
LEAST = 1e-5  # residual of an exact copy; a lower one is below the precision of float32


@dataclass(frozen=True, eq=False)
class Found:
    """The results of the search for N images."""

    # Float32 [N, scores]: the logarithm of the share of an image that training images do not
    # explain, for each of `SCORES`; for "alone" that of a ratio of two such shares
    residuals: Tensor
    index: Tensor  # the most similar training image by any score, int64 [N]


class Search:
    """Searches images for copies of training images."""

    scores = SCORES

    def __init__(self, training: Tensor, patients: Tensor | None = None) -> None:
        """Prepare the search in images [M, C, H, W] uint8.

        The patients of images are int64 [M]; None = a patient for each image.
        """
        self.patients = torch.arange(len(training)) if patients is None else patients
        self.patients = self.patients.to(training.device)
        rng = torch.Generator().manual_seed(0)
        self.whole, self.small = squares(training, SIDE), squares(training, COARSE)
        learnt = torch.randperm(len(training), generator=rng)[:LEARNT].to(training.device)
        turned = [(z, 0.0) for z in SCALES] + [(1.0, angle) for angle in ANGLES]
        poses = [(dx, dy, log(z), angle) for z, angle in turned for dx in SHIFTS for dy in SHIFTS]
        self.poses = torch.tensor(poses, device=training.device)  # [P, 4]
        some = _frames(self.whole[learnt]).flatten(0, 1)
        drawn = torch.randint(len(self.poses), (len(some),), generator=rng)
        at = self.poses[drawn.to(training.device)]
        self.pixels = 2 * max(1, round(self.whole.shape[-1] * MIDDLE / 2))
        self.middle = self.pixels / self.whole.shape[-1]
        self.sharp = whitening(_vectors(some), SHARP)
        self.plain = whitening(_vectors(some), PLAIN)
        self.rough = whitening(self._windows(some, at, self.pixels), ROUGH)
        small = _frames(self.small[learnt]).flatten(0, 1)
        self.coarse = whitening(self._windows(small, at, WINDOW), ROUGH, WINDOW_FEATURES)
        everywhere = (pose.expand(len(training), 4) for pose in self.poses)
        windows = (self._windows(self.small, pose, WINDOW) for pose in everywhere)
        self.windows = torch.stack([_unit(each @ self.coarse) for each in windows], 1)  # [M, P, F]
        self.soft = blur(self.whole, SOFT)
        self.block = min(max(BLOCK, self.whole.shape[-1] // BLOCKS), self.whole.shape[-1])
        self.fine = torch.eye(self.block**2, device=training.device)
        self.fine = whitening(self._blocks(some, self.block).flatten(0, 1), ROUGH, BLOCK_FEATURES)
        self.placed, self.loose = (
            self._blocks(self.whole, step).movedim(1, 0).contiguous()  # [B, M, F]
            for step in (self.block, (self.block + 1) // 2)
        )
        self.tiny = whitening(_vectors(small), ROUGH, FEATURES // 4)
        hues = (_colours(some)[:, :1] for some in training.split(QUERIES))
        colours = torch.cat([interpolate(hue, self.small.shape[2:], mode="area") for hue in hues])
        self.tiny_known, self.tiny_colours = (
            _unit(_vectors(each) @ self.tiny) for each in (self.small, colours)
        )
        vectors = _vectors(self.whole)
        self.sharp_known = _unit(vectors @ self.sharp)  # [M, F]
        self.plain_known = _unit(vectors @ self.plain)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Found:
        """Search for the training images behind images [N, C, H, W] uint8."""
        found = [self._search_block(some) for some in images.split(QUERIES)]
        return Found(*map(torch.cat, zip(*found, strict=True)))

    @torch.no_grad()
    def align(self, images: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Similarities and indices [N, 2] of the two nearest others, in any orientation."""
        known = _unit(_vectors(squares(others, SIDE)) @ self.plain)  # [M, F]
        best = [
            _correlations(_vectors(_frames(some)) @ self.plain, known).abs().amax(1)
            for some in squares(images, SIDE).split(QUERIES)
        ]
        top = torch.cat(best).topk(min(2, len(others)), dim=1)
        return top.values, top.indices

    def _search_block(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Fields of `Found` for a few images [n, C, H, W]."""
        whole = squares(images, SIDE)
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
            "mixed": explain_mixed(sharp, self.sharp_known),
            "altered": _explain_altered(vectors[rows, orientation], self._family(aligned)),
        }
        index, frame, pose = self._register(framed, *self._coarse(squares(images, COARSE)))
        targets = self._middle_windows(framed)[rows, frame]  # [n, K, G·G]
        where = (pose.flatten(0, 1), self.middle, self.pixels)
        family = [_sample(each, *where) for each in self._family(index)]
        explained["moved"] = self._rough(targets, _vectors(family[0]).view_as(targets)).square()
        explained["moved and altered"] = _explain_altered(targets, family)
        # [n, candidates]
        residuals = {k: (1 - each).clamp(min=LEAST).log() for k, each in explained.items()}
        moved = residuals["moved"]
        residuals["alone"] = moved - moved.median(dim=1, keepdim=True).values
        indices, frames = torch.cat([aligned, index], 1), torch.cat([orientation, frame], 1)
        residuals["bent"], residuals["in parts"] = self._parts(framed, indices, frames)
        parts = [x for axis in (2, 3) for x in whole.chunk(2, axis)]
        parts += [x for half in parts[:2] for x in half.chunk(2, 3)]
        side = whole.shape[-1]
        borders = range(side // 8, min(side // 4, (side - WINDOW) // 2) + 1)
        parts += [whole[:, :, k : side - k, k : side - k] for k in borders]
        residuals["shrunken"] = self._explain_pieces(parts, self.tiny_known)
        planes = _colours(images).movedim(1, 0)
        known = torch.cat([self.tiny_known, self.tiny_colours])
        residuals["in colour"] = self._explain_pieces(list(planes[:, :, None]), known)
        patients = self.patients[index]
        alone = torch.eye(index.shape[1], dtype=torch.bool, device=index.device)
        others = moved[:, None].masked_fill((patients[:, :, None] != patients[:, None]) | alone, 0)
        residuals["of a patient"] = moved + others.amin(dim=2)
        best = torch.cat([residuals["altered"], residuals["moved and altered"]], 1).argmin(dim=1)
        scores = torch.stack([residuals[name].amin(dim=1) for name in SCORES], 1)
        return scores, indices[rows[:, 0], best]

    def _parts(self, framed: Tensor, index: Tensor, frame: Tensor) -> tuple[Tensor, Tensor]:
        """Log shares [n, candidates] of blocks that are not explained, in place and anywhere.

        The candidates are the given ones [n, K], in their orientations, and those found by blocks.
        """
        count, rows = len(framed), torch.arange(len(framed), device=framed.device)[:, None]
        blocks = self._blocks(framed.flatten(0, 1), self.block)  # [8n, B, F]
        by_place = blocks.new_zeros(len(blocks), len(self.whole))
        for own, known in zip(blocks.movedim(1, 0), self.placed, strict=True):
            by_place += _evidence(own @ known.T)
        blocks = blocks.view(count, 8, *blocks.shape[1:])
        anywhere = blocks.new_zeros(count, len(self.whole))
        for own in blocks[:, 0].movedim(1, 0):  # one orientation: only blocks were moved
            best = (own @ self.loose[0].T).abs_()
            for known in self.loose[1:]:
                torch.maximum(best, (own @ known.T).abs_(), out=best)
            anywhere += _evidence(best)
        top, turned = _top(by_place.view(count, 8, -1), PLACES)
        moved = anywhere.topk(min(PLACES, anywhere.shape[1]), dim=1).indices
        index = torch.cat([index, top, moved], 1)
        frame = torch.cat([frame, turned, torch.zeros_like(moved)], 1)
        side = self.whole.shape[-1] - self.block + 1
        at = torch.cartesian_prod(*[torch.arange(side, device=framed.device)] * 2)
        own = torch.cartesian_prod(*[torch.arange(0, side, self.block, device=framed.device)] * 2)
        far = (at[None] - own[:, None]).abs().amax(dim=2) > (self.block + 1) // 2  # [B, places]
        bent: list[Tensor] = []
        parts: list[Tensor] = []
        for i, f in zip(index.T, frame.T, strict=True):
            alike = (blocks[rows[:, 0], f] @ self._blocks(self.whole[i], 1).mT).abs_()
            for found, scores in ((parts, alike), (bent, alike.masked_fill(far, 0))):
                each = _evidence(scores.amax(dim=2))  # [n, B]
                found.append(-each.topk(-(-each.shape[1] // SEEN), dim=1).values.mean(dim=1))
        return torch.stack(bent, 1), torch.stack(parts, 1)

    def _blocks(self, images: Tensor, step: int) -> Tensor:
        """Vectors [n, B, F] of blocks of images [n, 1, R, R]: of length 1, or shorter if faint."""
        blocks = unfold(images, self.block, stride=step).mT
        blocks = blocks - blocks.mean(dim=2, keepdim=True)
        strength = blocks.square().sum(dim=2, keepdim=True)
        return _unit(blocks @ self.fine) * (strength / (strength + FAINT**2))

    def _explain_pieces(self, pieces: list[Tensor], known: Tensor) -> Tensor:
        """Log shares [n, pieces] of pieces [n, 1, *, *] that training images do not explain."""
        side, explained = self.small.shape[-1], []
        for each in pieces:
            framed = _frames(interpolate(each, (side, side), mode="area"))
            alike = _correlations(_vectors(framed) @ self.tiny, known)  # [n, 8, M]
            explained.append(alike.abs().amax(dim=(1, 2)).square())
        return (1 - torch.stack(explained, 1)).clamp(min=LEAST).log()

    def _coarse(self, small: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Candidates [n, L] for images [n, 1, R, R], their orientations, and poses [n, L, 4]."""
        count, framed = len(small), _frames(small).flatten(0, 1)
        zero = self.poses.new_zeros(len(framed), 4)
        middles = _unit(self._windows(framed, zero, WINDOW) @ self.coarse)  # [8n, F]
        # Few images at once: their correlations [m, P, 8n] fit a CPU's cache.
        few = max(1, VALUES // (len(self.poses) * len(framed)))
        best = torch.cat(
            [(known @ middles.T).abs_().amax(dim=1) for known in self.windows.split(few)]
        )
        best = best.view(-1, count, 8).amax(dim=2).T  # [n, M]
        wanted = max(COARSELY[0], round(COARSELY[1] * len(self.whole)))
        index = best.topk(min(wanted, len(self.whole)), dim=1).indices
        which = torch.stack(  # of P poses in 8 orientations each
            [
                (self.windows[i] @ own.T).abs_().flatten(1).argmax(dim=1)
                for i, own in zip(index, middles.view(count, 8, -1), strict=True)
            ]
        )
        return index, which % 8, self.poses[which // 8]

    def _register(
        self, framed: Tensor, index: Tensor, frame: Tensor, pose: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The best of candidates [n, L], registered, with orientations [n, K], poses [n, K, 4].

        Lucas and Kanade's method, inverse compositional (Baker and Matthews 2004), with a gain g.
        The target t and its derivatives J to shift, scale and angle are fitted once to a window
        w = g t + g J δ. The window is moved by -δ.
        """
        rows = torch.arange(len(framed), device=framed.device)[:, None]
        soft = blur(framed.flatten(0, 1), SOFT)
        fit = self._fit(self._middle_windows(soft[:, None])[:, 0].view(len(framed) * 8, -1))
        fit = fit.view(len(framed), 8, 5, -1)
        targets = self._middle_windows(framed)
        for rounds in (FIRST, LAST):
            known, plain = self.soft[index].flatten(0, 1), self.whole[index].flatten(0, 1)
            inverse, wanted = fit[rows, frame].flatten(0, 1), targets[rows, frame]
            stepped = pose.flatten(0, 1)
            for _ in range(rounds):
                windows = self._windows(known, stepped, self.pixels)
                stepped = self._step(stepped, (inverse @ windows[:, :, None])[:, :, 0])
            both = torch.stack([pose, stepped.view_as(pose)])
            drawn = [self._windows(plain, each.flatten(0, 1), self.pixels) for each in both]
            alike = torch.stack([self._rough(wanted, x.view_as(wanted)).abs() for x in drawn])
            pose = both[1].where((alike[1] > alike[0])[:, :, None], both[0])
            top = alike.amax(dim=0).topk(min(MOVED, index.shape[1]), dim=1).indices
            index, frame, pose = index.gather(1, top), frame.gather(1, top), pose[rows, top]
        return index, frame, pose

    def _fit(self, targets: Tensor) -> Tensor:
        """Matrices [n, 5, G·G] from a window to the gain, and to the products gain x steps."""
        square = targets.unflatten(1, (self.pixels, self.pixels))
        down, right = torch.gradient(square, spacing=2 / self.pixels, dim=(1, 2))
        at = (torch.arange(self.pixels, device=targets.device) + 0.5) * 2 / self.pixels - 1
        y, x = at[:, None], at[None, :]
        moved = [right, down, right * x + down * y, down * x - right * y]
        steps = [step * each for step, each in zip(STEPS, moved, strict=True)]
        columns = torch.stack([square, *steps], 1).flatten(2) @ self.rough  # [n, 5, F]
        gram = columns @ columns.mT
        damped = gram.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None] * 1e-3 + 1e-6
        eye = torch.eye(5, device=targets.device)
        fit: Tensor = torch.linalg.solve(gram + damped * eye, columns @ self.rough.T)
        return fit

    def _step(self, poses: Tensor, fitted: Tensor) -> Tensor:
        """Poses [n, 4] after steps back, by the gain and the products gain x steps [n, 5]."""
        gain = fitted[:, :1]
        gain = gain.abs().clamp(min=LEAST_GAIN).copysign(gain)
        steps = (fitted[:, 1:] / gain).clamp(-2, 2) * poses.new_tensor(STEPS)
        x, y, zoom, angle = steps.unbind(1)
        zoom, angle = poses[:, 2] - zoom, poses[:, 3] - angle
        size = self.middle * zoom.exp()
        cos, sin = size * angle.cos(), size * angle.sin()
        shifts = poses[:, 0] - (cos * x - sin * y), poses[:, 1] - (sin * x + cos * y)
        return torch.stack([*shifts, zoom, angle], 1)

    def _rough(self, targets: Tensor, windows: Tensor) -> Tensor:
        """Correlations [n, K] of whitened vectors [n, K, G·G]."""
        return torch.mul(_unit(windows @ self.rough), _unit(targets @ self.rough)).sum(dim=2)

    def _middle_windows(self, framed: Tensor) -> Tensor:
        """Unit vectors [n, 8, G·G] of the middles of images [n, 8, 1, R, R]."""
        zero = self.poses.new_zeros(framed.shape[:2].numel(), 4)
        windows = self._windows(framed.flatten(0, 1), zero, self.pixels)
        return windows.view(*framed.shape[:2], -1)

    def _family(self, index: Tensor) -> list[Tensor]:
        """Training images [n·K, 1, R, R], blurred ones, and their squares."""
        known = self.whole[index].flatten(0, 1)
        return [known, self.soft[index].flatten(0, 1), known.square()]

    def _windows(self, images: Tensor, poses: Tensor, pixels: int) -> Tensor:
        """Unit vectors [n, pixels²] of one window of each image [n, 1, R, R]."""
        return _vectors(_sample(images, poses, self.middle, pixels))


def squares(images: Tensor, side: int) -> Tensor:
    """Grey images float [N, 1, R, R] in [0, 1] of uint8 ones, R = `side` or less."""
    side = min(side, *images.shape[2:])
    # All images as floats would take four times the memory of the images.
    greys = (some.float().mean(dim=1, keepdim=True) / 255 for some in images.split(QUERIES))
    return torch.cat([interpolate(grey, (side, side), mode="area") for grey in greys])


def _colours(images: Tensor) -> Tensor:
    """Grey images float [N, P, H, W] of the hue and of each colour of images [N, C, H, W].

    The hue is the principal component of two differences of red, green and blue.
    """
    if images.shape[1] != 3:
        return images.new_zeros(len(images), 1, *images.shape[2:], dtype=torch.float32)
    own = images.float() / 255
    red, green, blue = own.unbind(1)
    hues = torch.stack([red - green, (red + green) / 2 - blue], 1)
    x, y = (hues - hues.mean(dim=(2, 3), keepdim=True)).unbind(1)
    both, apart = (x * y).sum(dim=(1, 2)), (x.square() - y.square()).sum(dim=(1, 2))
    angle = torch.atan2(2 * both, apart)[:, None, None] / 2
    return torch.cat([(angle.cos() * x + angle.sin() * y)[:, None], own], 1)


def _evidence(alike: Tensor) -> Tensor:
    """The evidence that blocks are the same, from their correlations."""
    return -(1 + EXACT - alike.square()).log()


def blur(images: Tensor, sigma: float) -> Tensor:
    """Images [N, C, H, W] after a Gaussian filter."""
    reach = max(1, round(3 * sigma))
    offsets = torch.arange(-reach, reach + 1, device=images.device)
    kernel = torch.exp(-(offsets**2) / (2 * sigma**2))
    kernel = kernel / kernel.sum()
    padded = pad(images, (reach,) * 4, mode="replicate").flatten(0, 1)[:, None]
    rows = conv2d(padded, kernel.view(1, 1, 1, -1))
    return conv2d(rows, kernel.view(1, 1, -1, 1)).view_as(images)


def orientations(images: Tensor) -> Iterator[Tensor]:
    """Images [N, C, H, W] in all mirrorings and turns that keep their shape."""
    square = images.shape[2] == images.shape[3]
    for turns in range(4) if square else (0, 2):
        turned = images.rot90(turns, (2, 3))
        yield turned
        yield turned.flip(3)


def _frames(images: Tensor) -> Tensor:
    """The 8 orientations [n, 8, 1, R, R] of square images [n, 1, R, R]."""
    return torch.stack([*orientations(images)], 1)


def _sample(images: Tensor, poses: Tensor, middle: float, pixels: int) -> Tensor:
    """Windows [n, 1, pixels, pixels] of images [n, 1, R, R] at poses [n, 4]; edges are extended."""
    dx, dy, zoom, angle = poses[:, :, None, None].unbind(1)  # [n, 1, 1]
    size = middle * zoom.exp()
    cos, sin = size * angle.cos(), size * angle.sin()
    at = (torch.arange(pixels, device=images.device) + 0.5) * 2 / pixels - 1
    x, y = at, at[:, None]
    grid = torch.stack([(cos * x + dx) - sin * y, (sin * x + dy) + cos * y], 3)
    return grid_sample(images, grid, padding_mode="border", align_corners=False)


def _unit(vectors: Tensor, least: float = 1e-6) -> Tensor:
    return torch.div(vectors, vectors.norm(dim=-1, keepdim=True) + least)


def _vectors(images: Tensor) -> Tensor:
    """Unit vectors [..., R·R] of images [..., 1, R, R] without their brightness."""
    flat = images.flatten(-3)
    return _unit(flat - flat.mean(dim=-1, keepdim=True), 1e-3)


def whitening(vectors: Tensor, added: float, most: int = FEATURES) -> Tensor:
    """A matrix [values, F] that makes the second moments of vectors [n, values] nearly equal.

    `added` is added to each eigenvalue, as a share of their mean; more of it whitens less. The
    `most` eigenvectors with the largest eigenvalues are kept.
    """
    values, axes = torch.linalg.eigh((vectors.T @ vectors).double() / len(vectors))
    values, axes = values.clamp(min=0).flip(0), axes.flip(1)
    scale = (values + added * values.mean() + 1e-12).rsqrt()
    return torch.mul(axes, scale)[:, :most].float()


def _correlations(vectors: Tensor, known: Tensor) -> Tensor:
    """Correlations [n, 8, M] of n images in 8 orientations [n, 8, F] with M known images."""
    return _unit(vectors) @ known.T


def _top(correlations: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The most similar of M known images [n, count], and their orientations, from [n, 8, M]."""
    value, frame = correlations.abs().max(dim=1)
    index = value.topk(min(count, value.shape[1]), dim=1).indices
    return index, frame.gather(1, index)


def explain_mixed(correlations: Tensor, known: Tensor) -> Tensor:
    """The share of images that two known images explain, [n, firsts].

    The correlations are [n, orientations, M], the known vectors [M, F].
    """
    rows = torch.arange(len(correlations), device=correlations.device)
    explained = []
    for i, f in zip(*(each.T for each in _top(correlations, SECONDS)), strict=True):
        own = correlations[rows, f]  # [n, M], all in the orientation of the first
        first = own[rows, i]
        shared = known[i] @ known.T
        more = (own - first[:, None] * shared).square() / (1 - shared.square()).clamp(min=0.05)
        more[rows, i] = 0
        explained.append(first.square() + more.amax(dim=1))
    return torch.stack(explained, 1)


def _explain_altered(targets: Tensor, family: Sequence[Tensor]) -> Tensor:
    """The share [n, K] of unit vectors [n, K, values] that images [n·K, 1, ...] explain."""
    basis: list[Tensor] = []
    for vector in map(_vectors, family):
        for other in basis:  # Gram-Schmidt; a vector that adds nothing becomes zero
            vector = vector - (vector * other).sum(dim=1, keepdim=True) * other
        norm = vector.norm(dim=1, keepdim=True)
        basis.append(torch.where(norm > 1e-3, vector / norm.clamp(min=1e-3), 0.0))
    flat = targets.flatten(0, 1)
    explained = torch.stack([(flat * each).sum(dim=1).square() for each in basis]).sum(dim=0)
    return explained.view(targets.shape[:2])
