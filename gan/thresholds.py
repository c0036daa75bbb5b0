"""Thresholds of several residuals for each class, which together refuse a set share of images.

N images, S residuals of each; the smaller a residual, the more an image is like a training image.
"""

import torch
from torch import Tensor

PRIOR = 10  # held-out images that the mean and variance of all classes count for in each
FEW = 20  # of a class with fewer held-out images the stricter of its own and the common mean counts


class Ranks:
    """Ranks of images among held-out ones of their class.

    The residuals of a class are brought to mean 0 and variance 1, its moments drawn towards those
    of all classes as by `PRIOR` images more. An image's rank is the share of held-out images below
    it, in the residual in which that is smallest; images of rank below `limit` are refused. With
    few held-out images the limit is such that only images below all of them in one residual are
    refused: S in M + 1 new images of the same distribution, at the most, for M held-out ones.
    """

    def __init__(self, residuals: Tensor, labels: Tensor, classes: int, quantile: float) -> None:
        """Learn from held-out images.

        Args:
            residuals: [M, S].
            labels: Their classes, int64 [M].
            classes: Number of classes.
            quantile: Share of the held-out images that may be refused.
        """
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
        own = self(residuals, labels).sort().values  # below its own limit are floor(M · quantile)
        self.limit = own[int(len(own) * quantile)].item()

    def __call__(self, residuals: Tensor, labels: Tensor) -> Tensor:
        """Ranks [N] in [0, 1] of images with residuals [N, S] and classes int64 [N]."""
        standard = self._standard(residuals.double(), labels)
        below = torch.searchsorted(self.known.T.contiguous(), standard.T.contiguous(), right=True)
        return below.amin(dim=0) / len(self.known)

    def _standard(self, residuals: Tensor, labels: Tensor) -> Tensor:
        return (residuals - self.mean[labels]) / self.scale[labels]
