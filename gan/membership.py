"""Attacks that tell, from synthetic images, which real images a generator has learnt from.

The attacker has the synthetic images, images of the same kind that nothing was learnt from (the
references), and an image in question. Its score is the higher, the likelier this is a member:

- by the nearest neighbour (Hilprecht et al., PETS 2019; Chen et al., "GAN-Leaks", CCS 2020,
  arXiv:1909.03935, Eq. 10, with references in place of their reference model): the log of how far
  the nearest reference is, less the log of how far the nearest synthetic image is;
- by the density (van Breugel et al., "Membership inference attacks against synthetic data through
  overfitting detection", DOMIAS, AISTATS 2023, arXiv:2302.12580, Eq. 2): the log of the density of
  synthetic images there, less that of references;
- by shadows (Carlini et al., "Membership inference attacks from first principles", LiRA,
  arXiv:2112.03570, Eq. 4): the attacker trains generators of its own, half of them with the image,
  and compares how near the nearest synthetic image is. It knows all other images.

Images are compared as small ones of mean 0 and length 1, up to their sign, so that brightness,
contrast and inversion do not matter; for the nearest neighbour in all mirrorings and turns by 90
degrees, too. Densities are kernel estimates in the space of the first principal components.

Nothing here depends on which images are members, but for what the scores say of them.

Shapes: `N` images, `S` synthetic ones, `R` references, `C` channels, `H, W` pixels, `D` numbers of
a small image.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.neighbors import KernelDensity
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, normalize

SIDE = 16  # most pixels of a small image, each way
COMPONENTS = 8  # most principal components: more make a kernel estimate of few images flat
COPY_NOISE = 20.0  # standard deviation of a near-copy's noise, in grey levels
NEAREST = 1e-6  # the least distance: what is nearer is a copy
BLOCK = 4096  # images that are compared at once
LEAST = 4  # references and synthetic images that an attack needs

Scores = NDArray[np.float64]


class Attacker:
    """What an attacker knows: synthetic images and references."""

    def __init__(self, synthetic: Tensor, references: Tensor) -> None:
        """Prepare both attacks.

        Args:
            synthetic: uint8 [S, C, H, W].
            references: uint8 [R, C, H, W], none of which was learnt from.

        Raises:
            ValueError: There are fewer than four of either.
        """
        if min(len(synthetic), len(references)) < LEAST:
            raise ValueError(f"An attack needs {LEAST} synthetic images and {LEAST} references.")
        self.synthetic, self.references = synthetic, references
        known = torch.cat((small(synthetic), small(references))).cpu().numpy()
        few = min(COMPONENTS, len(synthetic) - 1, len(references) - 1, known.shape[1])
        self.space = PCA(few, whiten=True, random_state=0).fit(known)

    def by_neighbour(self, images: Tensor) -> Scores:
        """Scores [N] of images uint8 [N, C, H, W] by the nearest neighbour."""
        return nearness(images, self.synthetic) - nearness(images, self.references)

    def by_density(self, images: Tensor) -> Scores:
        """Scores [N] of images uint8 [N, C, H, W] by the ratio of densities."""
        places = self._places(small(images))
        of_synthetic, of_references = (
            # Scott's rule: a bandwidth for as many images in as many dimensions.
            KernelDensity(bandwidth="scott").fit(self._places(small(known))).score_samples(places)
            for known in (self.synthetic, self.references)
        )
        return np.asarray(of_synthetic - of_references)

    def _places(self, vectors: Tensor) -> NDArray[np.float64]:
        return np.asarray(self.space.transform(vectors.cpu().numpy()), dtype=float)


ATTACKS = {"nearest neighbour": Attacker.by_neighbour, "density": Attacker.by_density}


SHADOWS = "shadow generators"


def nearness(images: Tensor, synthetic: Tensor) -> Scores:
    """How near the nearest of the synthetic images is, in the attacks' own measure [N].

    Args:
        images: uint8 [N, C, H, W].
        synthetic: uint8 [S, C, H, W].
    """
    known = small(synthetic)
    distances = torch.stack([_nearest(small(each), known) for each in dressed(images)]).amin(0)
    return np.asarray(-distances.log().cpu().numpy(), dtype=float)


def by_shadows(target: Scores, shadows: Scores, learnt: NDArray[np.bool_]) -> Scores:
    """Scores [N]: the log of the likelihood ratio of two normal distributions.

    As shadows are few, all images have one variance (section VI.C of the paper).

    Args:
        target: `nearness` [N] of the synthetic images in question.
        shadows: Of those of each shadow [K, N].
        learnt: Whether the shadow has learnt from the image [K, N]; of each image some have.
    """
    within = np.average(shadows, axis=0, weights=learnt)
    without = np.average(shadows, axis=0, weights=~learnt)
    spread = float((shadows - np.where(learnt, within, without)).var()) or 1.0
    return np.asarray(((target - without) ** 2 - (target - within) ** 2) / (2 * spread))


def small(images: Tensor) -> Tensor:
    """Vectors [N, D] of length 1 and mean 0 of images uint8 [N, C, H, W]; float32."""
    sides = (min(SIDE, images.shape[2]), min(SIDE, images.shape[3]))
    vectors = torch.cat(
        [adaptive_avg_pool2d(each.float(), sides).flatten(1) for each in images.split(BLOCK)]
    )
    return normalize(vectors - vectors.mean(dim=1, keepdim=True))


def dressed(images: Tensor) -> Iterator[Tensor]:
    """Images [N, C, H, W] in all mirrorings and turns that keep their shape."""
    square = images.shape[2] == images.shape[3]
    for turns in range(4) if square else (0, 2):
        turned = images.rot90(turns, (2, 3))
        yield turned
        yield turned.flip(3)


def near_copies(images: Tensor, seed: int) -> Tensor:
    """What a generator that leaks would render: images uint8 [N, C, H, W], mirrored, with noise."""
    rng = torch.Generator().manual_seed(seed)
    noise = COPY_NOISE * torch.randn(images.shape, generator=rng)
    mirrored = images.flip(3).float() + noise.to(images.device)
    return mirrored.round().clamp(0, 255).to(torch.uint8)


def _nearest(vectors: Tensor, known: Tensor) -> Tensor:
    """The distance [N] of each vector of length 1 to the nearest known one, up to the sign."""
    alike = torch.cat([(each @ known.T).abs().amax(1) for each in vectors.split(BLOCK)])
    return (2 - 2 * alike).clamp(min=NEAREST**2).sqrt()  # ‖x − y‖² = 2 − 2xy
