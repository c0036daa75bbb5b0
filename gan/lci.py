"""LCI: codes on the lines between clusters of training images.

"GAN latent space manipulation and aggregation for federated learning in medical imaging" (Pennisi
et al., DeCaF at MICCAI 2022; the thesis, section 3.1.3). The training images of a class are
projected and clustered by the perceptual distances of their projections. The centroids and nine
points on the line between any two of them are the codes: C(m, 2) · 9 + m of m centroids, which is
1,730 of 20 and 415 of 10, as printed. Clusters of one image are dropped. No code was published.

Numbered deviations, where the text is silent:
1. The centroid is the mean of a cluster's codes.
2. The affinity of two images at distance d is exp(-d² / 2s²), s the median distance.
3. A class has at least two images for each cluster, or it has fewer clusters than asked for; if all
   its clusters are of one image, its one centroid is the mean of all of them.

Shapes: `n` images of a class, `D` size of a code, `m` centroids.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import SpectralClustering
from torch import Tensor

from gan.codes import CodeSet, Source, pairwise

INTERIOR = 9  # points between two centroids


class Centroids(CodeSet):
    """The centroids [m, D] of each class.

    Args:
        source: What they are made of.
        clusters: How many clusters a class has; 0 = one for every k images.
        k: See above.
    """

    def __init__(self, source: Source, clusters: int, k: int) -> None:
        super().__init__(source)
        self.clusters, self.k = clusters, k
        self.name = f"lci-{clusters or f'k{k}'}"

    def codes(self, label: int, rows: Tensor) -> Tensor:
        """Those of a class."""
        far = pairwise(self.projection.images[rows], self.source.distance)
        wanted = self.clusters or len(rows) // self.k
        return centroids(self.projection.w[rows], far, wanted, self.source.seed)


class LCI(Centroids):
    """The centroids of each class, and the points between any two of them."""

    def codes(self, label: int, rows: Tensor) -> Tensor:
        """Those of a class."""
        return connect(super().codes(label, rows))


def centroids(w: Tensor, far: Tensor, clusters: int, seed: int) -> Tensor:
    """The means [m, D] of clusters of codes [n, D] whose images have distances [n, n]."""
    clusters = min(clusters, len(w) // 2)
    if clusters < 2:
        return w.mean(dim=0, keepdim=True)
    near = affinity(far.cpu().double().numpy())
    method = SpectralClustering(clusters, affinity="precomputed", random_state=seed)
    cluster = torch.from_numpy(method.fit_predict(near)).to(w.device)
    members = [w[cluster == index] for index in range(clusters)]
    means = [each.mean(dim=0) for each in members if len(each) > 1]
    return torch.stack(means) if means else w.mean(dim=0, keepdim=True)


def affinity(far: NDArray[np.float64]) -> NDArray[np.float64]:
    """How alike images are, [n, n] in (0, 1], by their distances [n, n]."""
    median = np.median(far[np.triu_indices(len(far), 1)])
    scale = median if median > 0 else 1.0
    alike: NDArray[np.float64] = np.exp(-(far**2) / (2 * scale**2))
    return alike


def connect(centres: Tensor) -> Tensor:
    """The centroids [m, D], and after them the points between any two: [m + C(m, 2) · 9, D]."""
    first, second = torch.combinations(torch.arange(len(centres)), 2).unbind(1)
    share = torch.arange(1, INTERIOR + 1, device=centres.device) / (INTERIOR + 1)
    lines = torch.lerp(centres[first, None], centres[second, None], share[:, None])
    return torch.cat([centres, lines.flatten(0, 1)])
