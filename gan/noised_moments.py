"""From images to a noised statistic: the only part of `dp-mean-embedding` that sees images.

Every image becomes a vector t, in a basis that does not depend on data. The statistic is the mean
embedding of (t, label) under a kernel of degree two: for each class the number of images, the sum
of t and the sum of t tᵀ; and the histogram of all pixels. Gaussian noise is added once (DP-MERF,
Harder et al. 2021, arXiv:2002.11603). gan/moment_generator.py does the rest from the statistic
alone, so all of it is post-processing.

**The contribution of an image has a norm of at most 1.** ‖t‖ ≤ 1, and the parts are scaled by a, b,
c, h with a² + b² + c² + h² ≤ 1 (`SHARES`):

    ‖φ‖² = a² + b² ‖t‖² + c² ‖t tᵀ‖² + h² ‖histogram‖² ≤ 1,

because ‖t tᵀ‖ = ‖t‖² ≤ 1, and shares of pixels, which sum to 1, have a norm of at most 1. So adding
or removing an image with its label moves the statistic by at most 1. This is the neighbourhood of ε
and δ. It also covers the numbers of images, and so the presence of a class. Replacing an image by
another one moves the statistic by at most √2: two such vectors have a scalar product of at least
a² + b² τ + c² τ², τ = t·t', which is at least 0 because a² ≥ b⁴ / (4 c²).

If patients are known, the unit is the patient: each of the k images of a patient counts 1/k,
rounded up or down to steps of 1/256 so that their sum is 1. Of more than 256 images, 256 count.

**Numbers.** All sums are of whole numbers: t is truncated to a grid (towards zero, so no norm
grows), and noise is rounded to the grid of the sums. So no bit of a floating-point sum reveals an
image (Mironov, CCS 2012). The noise is Gaussian to the precision of a double: its tails end at 8.2
standard deviations, and δ does not include its distance from an exact discrete Gaussian (Canonne et
al. 2020). The guarantee does not cover the duration of the computation.

Shapes: `N` images, `C` channels, `H, W` pixels, `K` classes, `F` frequencies, `d = F + 1 + C`.
"""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dctn
from scipy.special import ndtri
from torch import Tensor

VERSION = 1  # of the statistic; a new version is a new release
SHARES = {"count": 0.2, "sum": 0.5, "square": 0.8, "histogram": 0.26}  # a, b, c, h
PATTERN, CONTRAST, BRIGHTNESS = 0.8, 0.1, 0.1  # shares of ‖t‖²
FINEST = 14  # frequencies i, j are kept if i + j is below it; for colours below half of it
SLOPE = 0.6  # of the weights f^SLOPE: images have less of the fine frequencies
BINS = 32  # of the histogram
GRID, WEIGHT = 2**12, 2**8  # steps of t from 0 to 1; steps of an image's weight from 0 to 1
CHUNK, VALUES = 4096, 2**22  # most images, and values of pixels (some 100 MB), at a time

Normal = Callable[[int], NDArray[np.float64]]  # gives this many standard normal numbers


@dataclass(frozen=True, eq=False)
class Moments:
    """A noised statistic: all that later steps know of the images."""

    counts: NDArray[np.float64]  # images (or patients) of each class, [K]
    sums: NDArray[np.float64]  # sums of t, [K, d]
    squares: NDArray[np.float64]  # sums of t tᵀ, [K, d, d], symmetric
    histogram: NDArray[np.float64]  # histogram of pixels by channel, in images, [C, BINS]
    shape: tuple[int, int, int]  # shape of an image: C, H, W
    noise: float  # standard deviation of the noise for a sensitivity of 1

    @classmethod
    def from_arrays(cls, kept: Mapping[str, NDArray[Any]]) -> "Moments":
        """Read a statistic from its fields as arrays."""
        parts = {name: kept[name] for name in ("counts", "sums", "squares", "histogram")}
        channels, height, width = map(int, kept["shape"])
        return cls(**parts, shape=(channels, height, width), noise=float(kept["noise"]))


@dataclass(frozen=True, eq=False)
class Basis:
    """Frequencies of the discrete cosine transform, chosen by the shape of an image alone."""

    shape: tuple[int, int, int]  # C, H, W
    places: NDArray[np.int64]  # the kept coefficients of [C, H, W], int64 [F]
    weights: NDArray[np.float64]  # weights of these coefficients, [F]
    colours: NDArray[np.float64]  # orthogonal [C, C]; its first row is the grey part
    # Upper limit of the norm of the coefficients, without the mean, of images in [0, 1]
    largest: float

    @classmethod
    def choose(cls, shape: tuple[int, int, int]) -> "Basis":
        """The basis of images of a shape (C, H, W)."""
        channels, height, width = shape
        order = np.add.outer(np.arange(height), np.arange(width))
        finest = np.array([FINEST, *[FINEST // 2] * (channels - 1)])
        places = np.flatnonzero((order > 0) & (order < finest[:, None, None]))
        frequency = np.hypot(*np.indices((height, width))) + np.zeros(shape)
        k, i = np.arange(channels)[:, None], np.arange(channels)[None]
        colours = np.cos(math.pi * (i + 0.5) * k / channels) * math.sqrt(2 / channels)
        colours[0] = 1 / math.sqrt(channels)
        weights = frequency.ravel()[places] ** SLOPE
        return cls(shape, places, weights, colours, math.sqrt(channels * height * width) / 2)

    @property
    def size(self) -> int:
        """d: the length of t."""
        return len(self.places) + 1 + self.shape[0]

    def vectors(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """The vectors t [n, d] of images [n, C, H, W], each of a norm of at most 1.

        t has the direction of the weighted coefficients, their norm, and each channel's mean.
        """
        pixels = images / 255.0
        mean = pixels.mean((2, 3))
        mixed = np.einsum("kc,nchw->nkhw", self.colours, pixels)
        found = dctn(mixed, axes=(2, 3), norm="ortho").reshape(len(images), -1)
        # By `[:, places]` the last bits of a norm would depend on the number of images.
        found = found.take(self.places, axis=1)
        pattern = found * self.weights
        norm = np.linalg.norm(pattern, axis=1, keepdims=True)
        pattern = np.divide(pattern, norm, out=np.zeros_like(pattern), where=norm > 0)
        contrast = np.linalg.norm(found, axis=1, keepdims=True) / self.largest
        bright = (2 * mean - 1) / math.sqrt(self.shape[0])
        parts = zip((PATTERN, CONTRAST, BRIGHTNESS), (pattern, contrast, bright), strict=True)
        return np.concatenate([math.sqrt(share) * part for share, part in parts], axis=1)


def secure_normal(count: int) -> NDArray[np.float64]:
    """Standard normal numbers from the operating system's cryptographic generator, [count]."""
    # With 53 bits, the largest number plus a half would be rounded to 1, whose noise is infinite.
    bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(12)
    return np.asarray(ndtri((bits + 0.5) / 2.0**52))


def release(
    images: Tensor,
    labels: Tensor,
    classes: int,
    noise: float,
    normal: Normal,
    patients: NDArray[Any],
) -> Moments:
    """Sum the contributions of images, and add noise: a Gaussian mechanism of sensitivity 1.

    The images are uint8 [N, C, H, W] with labels int64 [N] and `patients` [N], of one image each if
    images are the unit. The number of `classes` K must not depend on the images. `noise` is the
    standard deviation, from which ε follows for a δ.
    """
    basis = Basis.choose((images.shape[1], images.shape[2], images.shape[3]))
    channels, height, width = basis.shape
    weights = weights_of(patients)
    counts = np.zeros(classes)
    sums = np.zeros((classes, basis.size))
    squares = np.zeros((classes, basis.size, basis.size))
    histogram = np.zeros((channels, BINS))
    size = max(1, min(CHUNK, VALUES // math.prod(basis.shape)))
    for start in range(0, len(images), size):
        chosen = slice(start, start + size)
        part, kinds = images[chosen].cpu().numpy(), labels[chosen].cpu().numpy()
        vectors = np.trunc(basis.vectors(part) * (1 - 2**-30) * GRID)  # whole numbers
        weighted = vectors * weights[chosen, None]
        for each in np.unique(kinds):
            mine = kinds == each
            counts[each] += weights[chosen][mine].sum()
            sums[each] += weighted[mine].sum(0)
            squares[each] += weighted[mine].T @ vectors[mine]  # below 2^53: exact
        for channel in range(channels):
            bins = part[:, channel].reshape(len(part), -1) // (256 // BINS)
            spread = np.repeat(weights[chosen], height * width)
            histogram[channel] += np.bincount(bins.ravel(), spread, minlength=BINS)

    upper = np.triu_indices(basis.size, 1)
    diagonal = np.arange(basis.size)
    both = np.zeros_like(squares)
    deviation, unit = noise / SHARES["square"], GRID * GRID * WEIGHT
    both[:, diagonal, diagonal] = add_noise(squares[:, diagonal, diagonal], deviation, unit, normal)
    # An entry that stands twice in a symmetric matrix counts twice in its norm.
    deviation = noise / (SHARES["square"] * math.sqrt(2))
    both[:, upper[0], upper[1]] = add_noise(squares[:, *upper], deviation, unit, normal)
    both[:, upper[1], upper[0]] = both[:, upper[0], upper[1]]
    deviation, unit = noise / (SHARES["histogram"] / math.sqrt(channels)), WEIGHT * height * width
    return Moments(
        counts=add_noise(counts, noise / SHARES["count"], WEIGHT, normal),
        sums=add_noise(sums, noise / SHARES["sum"], GRID * WEIGHT, normal),
        squares=both,
        histogram=add_noise(histogram, deviation, unit, normal),
        shape=basis.shape,
        noise=noise,
    )


def add_noise(
    exact: NDArray[np.float64], deviation: float, unit: int, normal: Normal
) -> NDArray[np.float64]:
    """Sums of whole numbers with noise rounded to whole numbers, in units of 1 / unit."""
    drawn = normal(exact.size).reshape(exact.shape) * (deviation * unit)
    return (exact + np.rint(drawn)) / unit


def weights_of(patients: NDArray[Any]) -> NDArray[np.float64]:
    """The weight of each image [N] in steps of 1 / WEIGHT; 1 in sum for each patient.

    The image i = 0, ..., k - 1 of a patient has the steps from i / k to (i + 1) / k.
    """
    _, places, counts = np.unique(patients, return_inverse=True, return_counts=True)
    firsts, k = np.cumsum(counts) - counts, counts[places]
    i = np.empty_like(places)
    i[np.argsort(places, kind="stable")] = np.arange(len(places)) - np.repeat(firsts, counts)
    return np.asarray((i + 1) * WEIGHT // k - i * WEIGHT // k, dtype=np.float64)


def certain_classes(counts: NDArray[np.float64], fewest: int, noise: float) -> NDArray[np.int64]:
    """The classes that have `fewest` images and two standard deviations of the noise, [.].

    `counts` [K] are noised numbers of images, `noise` is the standard deviation of their noise.
    """
    return np.flatnonzero(counts >= fewest + 2 * noise)
