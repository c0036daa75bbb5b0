"""The first steps of a network: the scale of an image's bytes, and their order in memory.

The setting `pixels` names the scale. Every network takes bytes and begins with this scaling, so
nobody can use another scale. A head takes features instead, which are not scaled. Shapes: `N`
images, `C` channels, `H, W` pixels; bytes are uint8, results float32.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean, deviation; as torchvision's


def unit(images: Tensor) -> Tensor:
    """[0, 255] -> [0, 1]."""
    return images / 255


def symmetric(images: Tensor) -> Tensor:
    """[0, 255] -> [-1, 1]."""
    return images / 127.5 - 1


def per_image(images: Tensor) -> Tensor:
    """Scale each image from 0 (its darkest value) to 1 (its brightest); a constant image is 0.

    FedER's code does this to real and synthetic images alike, because devices differ in range.
    """
    lowest, highest = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    return (images - lowest) / (highest - lowest).clamp(min=1)


def imagenet(images: Tensor) -> Tensor:
    """[0, 255] -> mean 0 and deviation 1 over ImageNet, by channel (red, green, blue)."""
    scales = torch.tensor(_IMAGENET, device=images.device)[:, :, None, None]  # [2, 3, 1, 1]
    return (images / 255 - scales[0]) / scales[1]


def lite(images: Tensor) -> Tensor:
    """[0, 255] -> [-0.992, 1], as EfficientNet-Lite was trained."""
    return (images - 127.0) / 128


def features(values: Tensor) -> Tensor:
    """Features of a frozen network, which stay as they are."""
    return values.float()


SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "unit": unit,
    "symmetric": symmetric,
    "per-image": per_image,
    "imagenet": imagenet,
    "lite": lite,
    "features": features,
}


def scale_input(network: nn.Module, pixels: str) -> None:
    """Make a network scale its input by one of `SCALES`; its state dict does not change."""
    scale = SCALES[pixels]
    network.register_forward_pre_hook(lambda network, inputs: scale(*inputs))


def put_channels_last(network: nn.Module) -> None:
    """Make a network compute with channels at the end of memory, if it is on a CPU.

    Fine-tuning then takes down to six tenths of the time (benchmarks/results/batch-memory.md).
    """
    last = torch.channels_last
    network.register_forward_pre_hook(
        lambda network, inputs: tuple(
            each.to(memory_format=last) if each.device.type == "cpu" else each for each in inputs
        )
    )
