"""The search for copies among features of a frozen network (`Search` is the one for images).

Features have no orientation, so there are fewer steps. Each vector, less the mean of all training
features, is compared with all training vectors by the absolute correlation of whitened vectors. The
first of two whitenings compares the broad directions, and the second one the fine ones, too.
Orthogonal matching pursuit (Pati et al. 1993) adds a second training vector: that finds mixes.

N vectors, M training vectors, d features, F whitened ones, K candidates.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from audit.search import LEAST, PLAIN, QUERIES, SHARP, Found, explain_mixed, whitening


class FeatureSearch:
    """Searches features for copies of training features [M, d, 1, 1]."""

    scores = ("aligned", "aligned in detail", "mixed")

    def __init__(self, training: Tensor) -> None:
        self.mean = training.flatten(1).mean(dim=0)
        vectors = self._vectors(training)
        self.broad, self.fine = whitening(vectors, PLAIN), whitening(vectors, SHARP)
        self.known = normalize(vectors @ self.broad), normalize(vectors @ self.fine)  # [M, F] each

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Found:
        """Search for the training features behind features [N, d, 1, 1]."""
        found = [self._search_block(some) for some in images.split(QUERIES)]
        return Found(*map(torch.cat, zip(*found, strict=True)))

    @torch.no_grad()
    def align(self, images: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Similarities and indices [N, 2] of the two nearest others."""
        vectors, known = (normalize(self._vectors(each) @ self.broad) for each in (images, others))
        top = (vectors @ known.T).abs().topk(min(2, len(others)), dim=1)
        return top.values, top.indices

    def _search_block(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Fields of `Found` for a few vectors [n, d, 1, 1]."""
        vectors, (broadly, finely) = self._vectors(images), self.known
        broad = normalize(vectors @ self.broad) @ broadly.T  # [n, M]
        fine = normalize(vectors @ self.fine) @ finely.T
        aligned, index = broad.square().max(dim=1)
        mixed = explain_mixed(fine[:, None], finely).amax(dim=1)
        shares = [aligned, fine.square().amax(dim=1), mixed]
        return (1 - torch.stack(shares, 1)).clamp(min=LEAST).log(), index

    def _vectors(self, images: Tensor) -> Tensor:
        """Vectors [N, d] of length 1, less the mean of the training features."""
        return normalize(images.flatten(1) - self.mean)
