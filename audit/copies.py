"""The release check: each buffer of synthetic images must pass it before it leaves a hospital.

The check has two parts: a search for training images behind each synthetic image, also changed ones
(audit/search.py); and whether the buffer as a whole is nearer to the training images than to
held-out ones. Held-out images, which the generator has not seen, set the scale: they are searched
for in the same way, unchanged and changed (audit/dresses.py). docs/privacy/buffers.md says what a
pass proves.

N images, C channels, H x W pixels.
"""

from hashlib import sha256
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from audit.dresses import dress
from audit.feature_search import FeatureSearch
from audit.ranks import Ranks
from audit.report import Report
from audit.search import LEAST, Search
from learning.samples import one_of_each

HELD_OUT = 300  # held-out images that are enough to set the scale
MOST = 2.0  # weight of a copy in the test of a whole buffer
LEVEL = 0.001  # share of honest buffers that the test of nearness refuses
NAMED = 10  # refused images that a reason names


class Auditor:
    """Checks buffers against a hospital's images; the work for these images is done once."""

    def __init__(
        self,
        training: Tensor,
        held_out: Tensor,
        held_out_labels: Tensor,
        *,
        classes: int,
        quantile: float,
        patients: tuple[NDArray[np.int64], NDArray[np.int64]],
    ) -> None:
        """Set the thresholds, by the likeness of held-out images to training images.

        Held-out images that are copies of a training image are left out: they would pull the
        thresholds to zero.

        Args:
            training: All training images [., C, H, W] uint8, also those that the generator did not
                learn from.
            held_out: Other images [M, C, H, W] uint8 of the hospital.
            held_out_labels: Their classes, int64 [M].
            classes: Number of classes.
            quantile: Share of the held-out images that may be refused, in [0, 1).
            patients: The patient of each training image [.], and of each held-out image [M].

        Raises:
            ValueError: Fewer than two different held-out images are left.
        """
        self.quantile = quantile
        self.hashes = set(map(_hash, training))
        kept = ~self._exact_copies(held_out)
        every, labels = held_out[kept], held_out_labels[kept]
        rng = torch.Generator().manual_seed(0)
        chosen = torch.randperm(len(every), generator=rng)[:HELD_OUT].to(every.device)
        unseen, labels = every[chosen], labels[chosen]
        if len(set(map(_hash, unseen))) < 2:
            raise ValueError(
                "To compare with, at least two different test images are needed that are not among "
                "the training images. Add test images."
            )
        features = training.is_floating_point()
        owners = torch.from_numpy(np.unique(patients[0], return_inverse=True)[1])
        self.search = FeatureSearch(training) if features else Search(training, owners)
        self.searched: dict[bytes, Tensor] = {}  # residuals of an image, by its hash
        dressed = unseen if features else torch.cat([unseen, dress(unseen)])
        residuals = self.search(dressed).residuals
        self.ranks = Ranks(residuals, labels.repeat(len(dressed) // len(unseen)), classes)
        ranks = self.ranks(residuals[: len(unseen)], labels)
        self.unseen_refused = (ranks <= quantile).double().mean().item()
        rows = [one_of_each(each, rng) for each in (patients[0], patients[1][kept.cpu().numpy()])]
        size = min(map(len, rows))
        self.equal = [
            each[chosen[:size].to(each.device)]
            for each, chosen in zip((training, every), rows, strict=True)
        ]
        # Other features are alike if only the mean of training features is taken off.
        self.aligned = FeatureSearch(torch.cat(self.equal)) if features else self.search

    def refuses(self, images: Tensor, labels: Tensor) -> Tensor:
        """Which of images [N, C, H, W] uint8, labels [N] int64, may not be in a buffer: [N]."""
        ranks = self.ranks(self._search_once(images), labels)
        return self._exact_copies(images) | (ranks <= self.quantile)

    def check(self, images: Tensor, labels: Tensor) -> Report:
        """Whether images [N, C, H, W] uint8 with labels [N] int64 may leave the hospital.

        docs/privacy/buffers.md has the meaning of the figures.
        """
        ranks = self.ranks(self._search_once(images), labels)
        refused = self.refuses(images, labels).nonzero().flatten().tolist()
        near, far = (self.aligned.align(images, each) for each in self.equal)
        share, p = nearness_test(near, far, len(self.equal[0]))
        reasons: dict[str, str] = {}  # for the server, and for the hospital's own log
        if refused:
            # The distance of an image is a fact about the patient with the nearest image.
            named = "; ".join(self._describe(i, images) for i in refused[:NAMED])
            more = ", ..." if len(refused) > NAMED else "."
            reasons["Too many of them are too near to a training image (release.quantile)."] = (
                f"{len(refused)} of {len(images)} images are too near to a training image "
                f"(quantile {self.quantile:g} of held-out images): {named}{more}"
            )
        if p < LEVEL:
            reasons["As a whole they are nearer to its training images than to others."] = (
                f"{share:.0%} of the images are nearer to a training image than to a held-out one. "
                f"A share of {p:.2g} of generators that have memorised nothing comes as near; the "
                f"limit is {LEVEL:g}."
            )
        figures = {
            "release-refused": len(refused) / len(images),
            "release-median-rank": ranks.quantile(0.5).item(),
            "held-out-refused": self.unseen_refused,
            "release-nearer-to-training": share,
            "release-nearer-p": p,
        }
        return Report(figures, next(iter(reasons), ""), tuple(reasons.values()))

    def _search_once(self, images: Tensor) -> Tensor:
        """The residuals of the search, [N, scores]; each image is searched for once."""
        keys = list(map(_hash, images))
        new = [i for i, key in enumerate(keys) if key not in self.searched]
        if new:
            found = self.search(images[new]).residuals
            self.searched |= dict(zip((keys[i] for i in new), found, strict=True))
        return torch.stack([self.searched[key] for key in keys])

    def _exact_copies(self, images: Tensor) -> Tensor:
        copies = [_hash(each) in self.hashes for each in images]
        return torch.tensor(copies, dtype=torch.bool, device=images.device)

    def _describe(self, index: int, images: Tensor) -> str:
        image = images[index : index + 1]
        if self._exact_copies(image):
            return f"{index} (a copy)"
        shares = self._search_once(image)[0].exp().tolist()
        parts = map("{} {:.3f}".format, self.search.scores, shares)
        return f"{index} (unexplained {', '.join(parts)})"


def nearness_test(
    training: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor], size: int
) -> tuple[float, float]:
    """Test whether images are nearer to training images than to equally many others.

    Each real image is of another patient. A permutation test: if nothing was memorised, training
    and other images can be exchanged, and a real image keeps the synthetic images that are nearest
    to it. Each synthetic image has a weight: the logarithm of the ratio of the distances to its
    second nearest and its nearest real image, at most `MOST`. So a few copies show among many
    images that are near to none. The test statistic is the sum of weights of the synthetic images
    that are nearest to a training image. Without memorising it is the sum over a random half of all
    real images; its distribution is approximated by the normal one with the same mean and variance.

    Args:
        training: Similarities and indices [N, 2] of the two training images nearest to each image.
        others: The same for the other images.
        size: Number m of training images, and of others.

    Returns:
        The share of images that are nearer to a training image, and the probability of a sum that
        is at least as large.
    """
    (near, index), (far, other) = training, others
    wins = near[:, 0] > far[:, 0]
    first, second = torch.cat([near, far], 1).double().topk(2, dim=1).values.T
    # ‖x − y‖² = 2 − 2xy
    weights = ((1 - second + LEAST) / (1 - first + LEAST)).log().div(2).clamp(max=MOST)
    sums = [
        torch.bincount(winner[rows, 0], weights[rows], minlength=size)
        for winner, rows in ((index, wins), (other, ~wins))
    ]
    # Of m of 2m real images with sums s, drawn without repetition: the sum has the mean Σs / 2,
    # and the variance (Σs² - (Σs)² / 2m) / 4 · 2m / (2m - 1).
    total = weights.sum().item()
    squares = torch.cat(sums).square().sum().item() - total**2 / (2 * size)
    deviation = max(squares / 4 * 2 * size / max(2 * size - 1, 1), LEAST) ** 0.5
    p = NormalDist().cdf((total / 2 - sums[0].sum().item()) / deviation)
    return wins.double().mean().item(), p


def _hash(image: Tensor) -> bytes:
    return sha256(image.cpu().contiguous().numpy().tobytes()).digest()
