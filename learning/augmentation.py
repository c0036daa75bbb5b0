"""Random changes of training images, on whole batches: the setting `train.augment`.

Each function takes images [N, C, H, W] of any dtype on any device, and returns images of the same
shape. Its generator is on the CPU, so a seed gives the same changes on every device. A new
augmentation needs a function here, a line in `AUGMENTATIONS` and its name in
`TrainSettings.augment`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, interpolate, pad

from learning.samples import Samples
from strategies.protocol.settings import SettingsError

Augment = Callable[[Tensor, torch.Generator], Tensor]

PADDING, HOLE = 4, 16  # pixels, as published for CIFAR
# Of affine-colour, chosen on validation images of one centre (benchmarks/results/skin-recipe.md).
SCALE, SHIFT = 1.25, 0.05  # largest factor of the size; largest shift, as a share of a side
BRIGHTNESS, CONTRAST, TINT = 0.2, 0.2, 0.1  # largest distance of a factor from 1; tint: by channel


def _flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror left and right, each image with probability 0.5."""
    flipped = torch.rand(len(images), generator=generator) < 0.5  # [N]
    result = images.clone()
    result[flipped] = images[flipped].flip(-1)
    return result


def _flip_rotate(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror as `_flip`, and turn by 90, 180 or 270 degrees, each square image with p = 0.5."""
    result = _flip(images, generator)
    # As in MONAI's RandRotate90, which FedER's code uses: half of the images are not turned.
    turns = torch.randint(6, (len(images),), generator=generator)  # [N]
    for turn in (1, 2, 3):
        result[turns == turn] = result[turns == turn].rot90(turn, (-2, -1))
    return result


def _crop_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror as `_flip`, and shift by up to 4 pixels; pixels from outside are black.

    This is a random crop after 4 pixels of padding, as published for CIFAR.
    """
    flat = _flip(images, generator)
    flat = flat.flatten(1, -3) if flat.ndim > 3 else flat[:, None]
    count, _, height, width = flat.shape
    padded = pad(flat, [PADDING] * 4)
    top, left = torch.randint(2 * PADDING + 1, (2, count, 1), generator=generator)  # [N, 1]
    rows, columns = top + torch.arange(height), left + torch.arange(width)  # [N, H], [N, W]
    which = torch.arange(count)[:, None, None]
    moved = padded[which, :, rows[:, :, None], columns[:, None]]  # [N, H, W, C]
    return moved.permute(0, 3, 1, 2).reshape(images.shape)


def _crop_flip_cutout(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift and mirror as `_crop_flip`, and paint a black square at a random place.

    The square has 16 x 16 pixels (DeVries and Taylor, arXiv:1708.04552).
    """
    moved = _crop_flip(images, generator)
    count, height, width = len(images), *images.shape[-2:]
    y = torch.randint(height, (count, 1), generator=generator)
    x = torch.randint(width, (count, 1), generator=generator)
    half = HOLE // 2
    down, across = torch.arange(height) - y, torch.arange(width) - x  # [N, H], [N, W]
    rows, columns = ((-half <= away) & (away < half) for away in (down, across))
    inside = rows[:, :, None] & columns[:, None]  # [N, H, W]
    inside = inside.view(count, *[1] * (images.ndim - 3), height, width)
    return moved.masked_fill(inside.to(images.device), 0)


def _affine_colour(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror, turn by any angle, scale and shift images; change the colours of bytes.

    Maps of images [N, ..., H, W] have another dtype and keep their values.
    """
    moved = _affine(images.flatten(1, -3) if images.ndim > 3 else images[:, None], generator)
    if images.dtype == torch.uint8:
        moved = _recolour(moved, generator).clamp(0, 255)
    if not images.is_floating_point():
        moved = moved.round()
    return moved.to(images.dtype).reshape(images.shape)


def _affine(images: Tensor, generator: torch.Generator) -> Tensor:
    """Transform each image of float [N, C, H, W] by itself; pixels from outside are reflected."""
    count, _, height, width = images.shape
    angle, scale, right, down = torch.rand(4, count, generator=generator) * 2 - 1  # [N] each
    flip = torch.where(torch.rand(count, generator=generator) < 0.5, -1.0, 1.0)
    zoom = SCALE**scale
    cos, sin = (angle * math.pi).cos() / zoom, (angle * math.pi).sin() / zoom
    # Coordinates go from -1 to 1 along each side, so a turn depends on the ratio of the sides.
    across = torch.stack([flip * cos, -sin * height / width, 2 * SHIFT * right], 1)
    along = torch.stack([flip * sin * width / height, cos, 2 * SHIFT * down], 1)
    matrices = torch.stack([across, along], 1).to(images.device)  # [N, 2, 3]
    grid = affine_grid(matrices, list(images.shape), align_corners=False)
    return grid_sample(images.float(), grid, padding_mode="reflection", align_corners=False)


def _recolour(images: Tensor, generator: torch.Generator) -> Tensor:
    """Change brightness, contrast and tint of each image of float [N, C, H, W]."""
    shape = (len(images), images.shape[1] + 2, 1, 1)
    factors = (torch.rand(shape, generator=generator) * 2 - 1).to(images.device)
    brightness, contrast = 1 + BRIGHTNESS * factors[:, :1], 1 + CONTRAST * factors[:, 1:2]
    mean = images.mean((1, 2, 3), keepdim=True)
    return ((images - mean) * contrast + mean * brightness) * (1 + TINT * factors[:, 2:])


SHIFTING = (_crop_flip, _crop_flip_cutout)  # by a number of pixels


@dataclass(frozen=True)
class Draws:
    """The random draws of a visit: changes of images, and replayed samples."""

    # A generator on the CPU, so a seed gives the same draws on every device
    generator: torch.Generator
    augment: Augment  # a function of `AUGMENTATIONS`

    def view(self, images: Tensor) -> Tensor:
        """Images [N, C, H, W], changed at random for the network."""
        return self.augment(images, self.generator)

    def view_alike(self, *parts: Tensor) -> list[Tensor]:
        """Images, and maps of the same images [N, ..., H', W'], all changed in the same way.

        A shift is in pixels of the images, so maps of another size are shifted at that size.
        """
        state, views = self.generator.get_state(), []
        for part in reversed(parts):  # images last: colours need more numbers, none is used again
            self.generator.set_state(state)
            size, own = parts[0].shape[-2:], part.shape[-2:]
            if self.augment in SHIFTING and own != size:
                whole = self.view(interpolate(part.float(), size))
                views.append(interpolate(whole, own).to(part.dtype))
            else:
                views.append(self.view(part))
        return views[::-1]

    def draw(self, samples: Samples, count: int) -> Samples:
        """`count` random samples; none is repeated before all were drawn once."""
        times = -(-count // len(samples))
        orders = [torch.randperm(len(samples), generator=self.generator) for _ in range(times)]
        return samples[torch.cat(orders)[:count].to(samples.labels.device)]


AUGMENTATIONS: dict[str, Augment] = {
    "none": lambda images, generator: images,
    "flip": _flip,
    "flip-rotate": _flip_rotate,
    "crop-flip": _crop_flip,
    "crop-flip-cutout": _crop_flip_cutout,
    "affine-colour": _affine_colour,
}


def check_augmentation(augment: str, shape: tuple[int, int, int]) -> None:
    """Refuse an augmentation that does not suit images of a shape (C, H, W).

    Raises:
        SettingsError: The images are not square.
    """
    channels, height, width = shape
    if augment == "flip-rotate" and height != width:
        raise SettingsError(
            "The setting 'train.augment' is 'flip-rotate', which needs square images, and the "
            f"hospital's images are {channels}x{height}x{width}: set image-size, which makes them "
            "square, or set train.augment to none or flip."
        )
