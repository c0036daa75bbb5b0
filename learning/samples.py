"""Labelled images, for training and tests.

Shapes: `n` samples, `C` channels, `H, W` pixels. Embeddings may take the place of images. With a
frozen network (`train.freeze`) its `d` features do: float32 [n, d, 1, 1].
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Samples:
    """Images and their labels."""

    # uint8 [M, C, H, W], these images and perhaps others; perhaps mapped from a file
    pixels: Tensor
    labels: Tensor  # int64 [n], an index into the classes
    # int64 [n], the row of each image in `pixels`; None = one after the other, M = n
    rows: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, chosen: Tensor) -> "Samples":
        """Some of the samples, in memory, by an int64 [m] or a bool [n]."""
        rows = chosen if self.rows is None else self.rows[chosen]
        return Samples(self.pixels[rows], self.labels[chosen])

    @property
    def images(self) -> Tensor:
        """All images, uint8 [n, C, H, W]; a copy in memory if there are `rows`."""
        return self.pixels if self.rows is None else self.pixels[self.rows]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        _, channels, height, width = self.pixels.shape
        return channels, height, width

    def to(self, device: torch.device) -> Self:
        """The samples on another device."""
        if device == self.pixels.device:
            return self
        return replace(
            self, pixels=self.images.to(device), labels=self.labels.to(device), rows=None
        )


def one_of_each(patients: NDArray[np.int64], rng: torch.Generator | None = None) -> Tensor:
    """Rows of one random image of each of p patients, in a random order, int64 [p].

    Images of one patient are alike, so a test that takes images as independent gets one of each.
    `patients` [n] are those of the images. Without `rng` the order is the same each time.
    """
    order = torch.randperm(len(patients), generator=rng or torch.Generator().manual_seed(0))
    firsts = np.unique(patients[order.numpy()], return_index=True)[1]
    return order[torch.from_numpy(np.sort(firsts))]


def round_up(count: int) -> int:
    """A power of two that is at least `count`, for limits on memory.

    A refusal by such a limit reveals the counted number to the server, so it must not be exact.
    """
    return 1 << (count - 1).bit_length()


def concatenate(parts: Iterable[Samples]) -> Samples:
    """Several sets of samples as one, in their order."""
    parts = list(parts)
    images, labels = [part.images for part in parts], [part.labels for part in parts]
    return Samples(torch.cat(images), torch.cat(labels))
