"""What may leave: a buffer that has passed its audit, and what was measured of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from learning.samples import Samples


@dataclass(frozen=True, eq=False)
class Release:
    """Synthetic images, and the figures of the sampler and the audit, all of them declared."""

    samples: Samples
    figures: dict[str, float]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The same for the hospital's store."""
        return {
            "images": self.samples.images.cpu().numpy(),
            "labels": self.samples.labels.cpu().numpy(),
            "names": np.array(list(self.figures)),
            "values": np.array(list(self.figures.values()), dtype=float),
        }

    @classmethod
    def from_arrays(cls, kept: Mapping[str, NDArray[Any]], device: torch.device) -> "Release":
        """Read what `arrays` gave."""
        samples = Samples(torch.from_numpy(kept["images"]), torch.from_numpy(kept["labels"]))
        figures = zip(kept["names"].tolist(), kept["values"].tolist(), strict=True)
        return cls(samples.to(device), dict(figures))
