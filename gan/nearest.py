"""For each image of a set, the perceptually nearest image of another set.

Shapes: `N`, `M` images, `C` channels, `H, W` pixels, `F` features.
"""

import torch
from torch import Tensor

from gan.networks import from_bytes
from gan.perceptual import PairwiseLPIPS

# Most features in memory: of `images` (2 GiB), and of `others` (256 MiB). With more of the first,
# fewer features of the others are computed again.
HELD, OTHERS = 2**29, 2**26
BLOCK = 2048  # most others at once


@torch.no_grad()
def nearest(images: Tensor, others: Tensor, distance: PairwiseLPIPS) -> tuple[Tensor, Tensor]:
    """The distance [N] and index of the nearest other [M, C, H, W] of images [N, C, H, W].

    Both are uint8, on the distance's device.
    """
    values = distance.features(from_bytes(images[:1])).numel()
    held, size = max(1, HELD // values), max(1, min(BLOCK, OTHERS // values))
    distances, indices = [], []
    for block in images.split(held):
        x = torch.empty(len(block), values, device=block.device)  # [n, F]
        for rows, part in zip(x.split(size), block.split(size), strict=True):
            rows[:] = distance.features(from_bytes(part))
        least = torch.full((len(x),), torch.inf, device=x.device)
        found = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        for number, part in enumerate(others.split(size)):
            y = distance.features(from_bytes(part))
            # ‖x − y‖² − ‖x‖² has the same minimum over y.
            value, index = (y.square().sum(dim=1) - 2 * (x @ y.T)).min(dim=1)
            nearer = value < least
            least, found = value.where(nearer, least), (number * size + index).where(nearer, found)
        for rows, part in zip(x.split(size), others[found].split(size), strict=True):
            distances.append((rows - distance.features(from_bytes(part))).square().sum(dim=1))
        indices.append(found)
    return torch.cat(distances), torch.cat(indices)
