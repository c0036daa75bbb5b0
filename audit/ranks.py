"""Ranks of images by several residuals, for each class.

N images, S residuals of each. A small residual means that an image is like a training image.
"""

import torch
from torch import Tensor

PRIOR = 10  # weight of all classes' mean and variance in each class, in held-out images
TAIL = 0.1  # share of the held-out images from which the tail of residuals is estimated
FEW = 20  # held-out images; a class with fewer uses the stricter of its own and the common mean


class Ranks:
    """Ranks of images among held-out ones of their class.

    The residuals of a class are scaled to mean 0 and variance 1. The moments of a class are drawn
    towards those of all classes, which count as `PRIOR` images more. A scaled residual becomes the
    share of held-out images that have a smaller one. Below a share of `TAIL` an exponential
    distribution gives that share, because most distributions have such a tail (Pickands, Annals of
    Statistics 3, 1975). An image's smallest share is ranked among the smallest shares of held-out
    images. So of new images of the same distribution a share q has a rank of q or less.
    """

    def __init__(self, residuals: Tensor, labels: Tensor, classes: int) -> None:
        """Learn from the residuals [M, S] of held-out images of classes int64 [M]."""
        residuals = residuals.double()
        mean, variance = residuals.mean(dim=0), residuals.var(dim=0, unbiased=False)
        self.mean, self.scale = mean.repeat(classes, 1), variance.repeat(classes, 1)
        for label, count in enumerate(torch.bincount(labels, minlength=classes).tolist()):
            if count:
                own, share = residuals[labels == label], count / (count + PRIOR)
                self.mean[label] = torch.lerp(mean, own.mean(dim=0), share)
                self.scale[label] = torch.lerp(variance, own.var(dim=0, unbiased=False), share)
            if count < FEW:
                self.mean[label] = self.mean[label].maximum(mean)
        self.scale = self.scale.sqrt().clamp(min=1e-9)
        self.known = self._standard(residuals, labels).sort(dim=0).values  # [M, S]
        lowest = self.known[: max(1, round(TAIL * len(self.known)))]
        self.share, self.end = len(lowest) / len(self.known), lowest[-1]
        self.fall = (self.end - lowest).mean(dim=0).clamp(min=1e-3)
        self.smallest = self._smallest(residuals, labels).sort().values  # [M]

    def __call__(self, residuals: Tensor, labels: Tensor) -> Tensor:
        """Shares [N] of the held-out images that are at least as much like a training image.

        The images have residuals [N, S] and classes int64 [N].
        """
        smallest = self._smallest(residuals.double(), labels)
        return torch.searchsorted(self.smallest, smallest, right=True).double() / len(self.smallest)

    def _smallest(self, residuals: Tensor, labels: Tensor) -> Tensor:
        standard = self._standard(residuals, labels)
        below = torch.searchsorted(self.known.T.contiguous(), standard.T.contiguous(), right=True)
        shares = below.T.double() / len(self.known)
        tail = self.share * ((standard - self.end) / self.fall).clamp(max=0).exp()
        return shares.where(standard >= self.end, tail).amin(dim=1)

    def _standard(self, residuals: Tensor, labels: Tensor) -> Tensor:
        """Scaled residuals; 0 for a score that is the same for all held-out images."""
        known = self.scale[labels] > 1e-6
        return torch.where(known, (residuals - self.mean[labels]) / self.scale[labels], 0.0)
