"""From a noised statistic to images: post-processing of gan/noised_moments.py, without any image.

A class is the normal distribution with its moments, which has the greatest entropy of all
distributions with these moments. Values below the noise are not used: covariances are shrunk to the
pooled one, and of both only the part above the noise is kept. Pixels then get the released
histogram, and images are moved, turned and sheared a little.

Deviations: DP-MERF fits a network to random Fourier features by gradient descent. For a kernel of
degree two the fit has a closed form, so nothing is trained.

Shapes: `K` classes, `d` numbers of a vector, `n` images, `C` channels, `H, W` pixels.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.fft import idctn
from torch import Tensor
from torch.nn import functional

from gan.noised_moments import (
    BINS,
    BRIGHTNESS,
    CONTRAST,
    PATTERN,
    SHARES,
    VALUES,
    Basis,
    Moments,
    certain_classes,
)

DEFORMED = 0.07  # standard deviation of the deformation, as a share of an image; half for shifts
POOL = 1024  # images from which the histogram of pixels is computed
POOLED = 2**28  # most values of these images (2 GiB)


class MomentGenerator:
    """Renders images of those `classes` of a statistic, int64 [.], that have enough images.

    These are `fewest` and two standard deviations of the noise. There may be no such class.
    """

    def __init__(self, moments: Moments, fewest: int) -> None:
        self.basis = Basis.choose(moments.shape)
        self.batch = max(1, VALUES // math.prod(moments.shape))  # images at a time
        known = certain_classes(moments.counts, fewest, moments.noise / SHARES["count"])
        self.classes = torch.from_numpy(known)
        self.means: dict[int, NDArray[np.float64]] = {}
        self.factors: dict[int, NDArray[np.float64]] = {}
        self.curves: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
        if not len(known):
            return
        counts = moments.counts[known]
        means = moments.sums[known] / counts[:, None]
        covariances = moments.squares[known] / counts[:, None, None]
        covariances = covariances - means[:, :, None] * means[:, None, :]
        # A symmetric matrix of such noise has no eigenvalue above this (Wigner).
        edge = math.sqrt(2 * self.basis.size) * moments.noise / SHARES["square"]
        pooled = np.einsum("k,kij->ij", counts / counts.sum(), covariances)
        shared = _credible_part(pooled, edge * math.sqrt(len(known)) / counts.sum())
        for each, count, mean, covariance in zip(known, counts, means, covariances, strict=True):
            values, vectors = np.linalg.eigh(covariance - pooled)
            own = (vectors * np.where(np.abs(values) > edge / count, values, 0)) @ vectors.T
            values, vectors = np.linalg.eigh(shared + own)
            self.means[int(each)] = mean
            self.factors[int(each)] = vectors * np.sqrt(values.clip(0))
        self.curves = self._curves(moments)

    def render(self, labels: Tensor, seed: int) -> Tensor:
        """Images uint8 [n, C, H, W] of classes int64 [n], the same ones at every call."""
        rng = np.random.default_rng(seed)
        parts = self._draw(labels.cpu().numpy(), rng)
        moves = torch.from_numpy(DEFORMED * rng.standard_normal((len(labels), 2, 3))).float()
        images = []
        for vectors, some in zip(parts, moves.split(self.batch), strict=True):
            raw = self._raw(vectors)
            for channel, (values, becomes) in enumerate(self.curves):
                raw[:, channel] = np.interp(raw[:, channel], values, becomes)
            deformed = _deform(torch.from_numpy(raw).float(), some)
            images.append((deformed * 255).round().clamp(0, 255).to(torch.uint8))
        return torch.cat(images).to(labels.device)

    def _draw(
        self, labels: NDArray[np.int64], rng: np.random.Generator
    ) -> list[NDArray[np.float64]]:
        """Vectors [n, d] of classes [n], in parts of `batch`."""
        vectors = np.empty((len(labels), self.basis.size))
        drawn = rng.standard_normal(vectors.shape)
        for each in np.unique(labels):
            mine = labels == each
            vectors[mine] = self.means[int(each)] + drawn[mine] @ self.factors[int(each)].T
        return [vectors[i : i + self.batch] for i in range(0, len(vectors), self.batch)]

    def _raw(self, vectors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Images [n, C, H, W] in about [0, 1] of vectors [n, d], before they get the histogram."""
        basis, (channels, height, width) = self.basis, self.basis.shape
        cut = len(basis.places)
        pattern = vectors[:, :cut] / basis.weights / math.sqrt(PATTERN)
        contrast = vectors[:, cut : cut + 1].clip(0, math.sqrt(CONTRAST)) / math.sqrt(CONTRAST)
        norm = np.linalg.norm(pattern, axis=1, keepdims=True).clip(1e-12)
        found = np.zeros((len(vectors), channels * height * width))
        found[:, basis.places] = pattern / norm * contrast * basis.largest
        mixed = idctn(found.reshape(-1, channels, height, width), axes=(2, 3), norm="ortho")
        pixels = np.einsum("kc,nkhw->nchw", basis.colours, mixed)
        bright = vectors[:, cut + 1 :] * math.sqrt(channels / BRIGHTNESS)
        return np.asarray(pixels + ((bright.clip(-1, 1) + 1) / 2)[:, :, None, None])

    def _curves(self, moments: Moments) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """For each channel the old and the new values of pixels, from the darkest on."""
        rng = np.random.default_rng(0)
        chances = moments.counts[self.classes.numpy()]
        pool = min(POOL, POOLED // math.prod(moments.shape))
        labels = rng.choice(self.classes.numpy(), pool, p=chances / chances.sum())
        raw = np.concatenate([self._raw(part) for part in self._draw(labels, rng)])
        steps = np.linspace(0, 1, 257)
        curves = []
        for channel in range(moments.shape[0]):
            shares = moments.histogram[channel].clip(0) + 1e-9
            below = np.concatenate([[0], np.cumsum(shares) / shares.sum()])
            wanted = np.interp(steps, below, np.arange(BINS + 1) / BINS)
            curves.append((np.quantile(raw[:, channel], steps), wanted))
        return curves


def _credible_part(covariance: NDArray[np.float64], edge: float) -> NDArray[np.float64]:
    """A covariance [d, d]; its directions below the noise share the rest of its trace."""
    values, vectors = np.linalg.eigh(covariance)
    clear = values > edge
    left = max(0.0, float(values[~clear].sum())) / max(1, int((~clear).sum()))
    return np.asarray((vectors * np.where(clear, values, left)) @ vectors.T)


def _deform(images: Tensor, moves: Tensor) -> Tensor:
    """Images [n, C, H, W], each moved, turned and sheared a little, by random `moves` [n, 2, 3]."""
    moves = moves * torch.tensor([1.0, 1.0, 0.5]) + torch.eye(2, 3)
    grid = functional.affine_grid(moves, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
