"""From the bytes of images to the numbers that a network computes with: the setting `pixels`.

Every network takes bytes and begins with this, so that nobody else can use another scale. Shapes:
`N` images, `C` channels, `H, W` pixels; bytes are uint8, results float32.
"""

from collections.abc import Callable

from torch import Tensor, nn


def unit(images: Tensor) -> Tensor:
    """[0, 255] -> [0, 1]."""
    return images / 255


def symmetric(images: Tensor) -> Tensor:
    """[0, 255] -> [-1, 1]."""
    return images / 127.5 - 1


def per_image(images: Tensor) -> Tensor:
    """The darkest value of each image -> 0, its brightest -> 1; an image of one value -> 0.

    FedER's code does it to real and synthetic images alike: devices differ in their range.
    """
    lowest, highest = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    return (images - lowest) / (highest - lowest).clamp(min=1)


SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "unit": unit,
    "symmetric": symmetric,
    "per-image": per_image,
}


def scale_input(network: nn.Module, pixels: str) -> None:
    """Have a network scale what it is given, by one of `SCALES`; its state dict stays as it is."""
    scale = SCALES[pixels]
    network.register_forward_pre_hook(lambda network, inputs: scale(*inputs))
