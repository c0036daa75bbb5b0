"""Labelled images, for training and tests.

Shapes: `n` samples, `C` channels, `H, W` pixels. Embeddings may take the place of images. With a
frozen network (`train.freeze`) its `d` features do: float32 [n, d, 1, 1].
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import torch
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
