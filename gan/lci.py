"""LCI: codes on the lines between clusters of training images.

"GAN latent space manipulation and aggregation for federated learning in medical imaging" (Pennisi
et al., DeCaF at MICCAI 2022; the thesis, section 3.1.3). The training images of a class are
projected and clustered by the perceptual distances of their projections. The codes are the
centroids and nine points on the line between any two of them. These are C(m, 2) · 9 + m codes for m
centroids: 1,730 for 20 and 415 for 10, as printed. Clusters of one image are dropped. The authors
published no code.

Numbered deviations, where the text gives no rule:
1. The centroid is the mean of a cluster's codes.
2. The affinity of two images at distance d is exp(-d² / 2s²), s the median distance.
3. A class with fewer than two images for each cluster has fewer clusters. If all its clusters have
   one image, its only centroid is the mean of all codes.

Shapes: `n` images of a class, `D` size of a code, `m` centroids.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import SpectralClustering
from torch import Tensor

from gan.codes import Codes, Source, pairwise

INTERIOR = 9  # points between two centroids


def class_centroids(source: Source) -> Codes:
    """The centroids [m, D] of each class."""
    found, codes = source.projection(), {}
    for label, rows in source.rows.items():
        far = pairwise(found.images[rows], source.distance)
        clusters = source.clusters or len(rows) // source.k
        codes[label] = centroids(found.w[rows], far, clusters, source.seed)
    return codes


def lci(source: Source) -> Codes:
    """The centroids of each class, and the points between any two of them."""
    return {label: connect(own) for label, own in class_centroids(source).items()}


def centroids(w: Tensor, far: Tensor, clusters: int, seed: int) -> Tensor:
    """The means [m, D] of clusters of codes [n, D]; their images have distances [n, n]."""
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
    """The affinities [n, n] of images, in (0, 1], by their distances [n, n]."""
    scale = np.median(far[np.triu_indices(len(far), 1)]) or 1.0
    alike: NDArray[np.float64] = np.exp(-(far**2) / (2 * scale**2))
    return alike


def connect(centres: Tensor) -> Tensor:
    """The centroids [m, D], then the points between any two: [m + C(m, 2) · 9, D]."""
    first, second = torch.combinations(torch.arange(len(centres)), 2).unbind(1)
    share = torch.arange(1, INTERIOR + 1, device=centres.device) / (INTERIOR + 1)
    lines = torch.lerp(centres[first, None], centres[second, None], share[:, None])
    return torch.cat([centres, lines.flatten(0, 1)])
