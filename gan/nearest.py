"""For each image of a set, the perceptually nearest image of another set.

Shapes: `N`, `M` images, `C` channels, `H, W` pixels, `F` features.
"""

import torch
from torch import Tensor

from gan.perceptual import PairwiseLPIPS
from gan.pixel_range import from_bytes

BLOCK, VALUES = 2048, 2**28  # most images, and features (1 GiB), in a block


@torch.no_grad()
def nearest(images: Tensor, others: Tensor, distance: PairwiseLPIPS) -> tuple[Tensor, Tensor]:
    """The distance [N] and index of the nearest other [M, C, H, W] of images [N, C, H, W].

    Both are uint8, on the distance's device. Each block of images looks at all others once.
    """
    per_image = distance.features(from_bytes(images[:1])).numel()
    size = max(1, min(BLOCK, VALUES // per_image))
    distances, indices = [], []
    for block in images.split(size):
        x = distance.features(from_bytes(block))  # [n, F]
        best = torch.full((len(x),), torch.inf, device=x.device)
        found = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        for number, part in enumerate(others.split(size)):
            y = distance.features(from_bytes(part))
            # ‖x − y‖² − ‖x‖² has the same minimum over y; the nearest one's distance is then exact.
            index = (y.square().sum(dim=1) - 2 * x @ y.T).argmin(dim=1)
            exact = (x - y[index]).square().sum(dim=1)
            better = exact < best
            best, found = exact.where(better, best), (number * size + index).where(better, found)
        distances.append(best)
        indices.append(found)
    return torch.cat(distances), torch.cat(indices)
