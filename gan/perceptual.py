"""LPIPS of all pairs of two sets of images, from one pass over each image.

Zhang et al., "The Unreasonable Effectiveness of Deep Features as a Perceptual Metric", CVPR 2018.
Shapes: `N`, `M` images, `C` channels, `H, W` pixels, `F` features of an image.
"""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlparse
from urllib.request import Request, urlopen

import torch
import torchvision
from torch import Tensor, nn
from torch.nn.functional import interpolate

Net = Literal["squeeze", "vgg"]


class Backbone(NamedTuple):
    """The places in a network of torchvision where LPIPS reads activations."""

    model: str  # its name in torchvision
    cuts: tuple[int, ...]  # a tap lies before each of these modules of `features`
    smallest: int  # pixels a side of the smallest image that the network takes


BACKBONES: dict[Net, Backbone] = {
    "squeeze": Backbone("squeezenet1_1", (2, 5, 8, 10, 11, 12, 13), smallest=17),
    "vgg": Backbone("vgg16", (4, 9, 16, 23, 30), smallest=16),
}
# ImageNet's mean and standard deviation per channel, for images in [-1, 1].
MEAN, STD = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
EPSILON = 1e-10  # keeps the direction of a zero vector finite; from the lpips package
NETWORK_TIMEOUT = 5.0  # seconds to wait for a server before a start without its weights


class PairwiseLPIPS(nn.Module):
    """LPIPS between every image of one batch and every image of another batch.

    Equals `lpips.LPIPS(net=net)` for each pair. The lpips package fails for images that are too
    small for the network; here they are enlarged bilinearly by the smallest sufficient factor.

    Args:
        weights: A file with the state dict of torchvision's network; "untrained" for random
            weights; None for torchvision's ImageNet weights, from torch's cache or its server. If
            neither has them the network is untrained, with a warning.

    Raises:
        FileNotFoundError: There is no file `weights`.
        ValueError: The file does not hold these weights.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, net: Net, weights: Path | str | None = None):
        super().__init__()
        self.backbone = BACKBONES[net]
        if weights is None:
            url = torchvision.models.get_model_weights(self.backbone.model).DEFAULT.url
            weights = weights_file(url) or "untrained"
        self.name = f"untrained-{net}" if weights == "untrained" else f"lpips-{net}"
        with torch.device("meta"):  # no memory and no random numbers: weights are overwritten
            model = torchvision.models.get_model(self.backbone.model, weights=None)
        self.layers = model.features[: self.backbone.cuts[-1]].to_empty(device="cpu")
        if weights == "untrained":
            _initialise(self.layers)
        else:
            expected = f"the state dict of torchvision's {self.backbone.model}"
            with reading(Path(weights), expected) as state:
                wanted = {name: state[f"features.{name}"] for name in self.layers.state_dict()}
                self.layers.load_state_dict(wanted)
        self.requires_grad_(False)
        self.eval()
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(STD).view(1, 3, 1, 1))
        for index, weight in enumerate(_channel_weights(net)):
            self.register_buffer(f"scale{index}", weight.sqrt())  # [channels]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances [N, M] of images [N, C, H, W] and [M, C, H, W] in [-1, 1], C = 1 or 3."""
        return distances(self.features(x), self.features(y))

    def features(self, images: Tensor) -> Tensor:
        """Features [N, F] of images [N, C, H, W] in [-1, 1], for `distances`."""
        enlarge = math.ceil(self.backbone.smallest / min(images.shape[-2:]))
        if enlarge > 1:
            images = interpolate(images, scale_factor=enlarge, mode="bilinear")
        images = (images - self.mean) / self.std
        images = images.contiguous(memory_format=torch.channels_last)  # up to twice as fast on CPUs
        taps = []
        for index, tap in enumerate(self._taps(images)):
            tap = tap.permute(0, 2, 3, 1)  # [N, height, width, channels]
            # Unit length over the channels. The weights of Zhang et al. 2018, Eq. 1, and the mean
            # over the pixels are inside the square.
            length = torch.linalg.vector_norm(tap, dim=3, keepdim=True)  # gradient 0 at 0
            scale = self.get_buffer(f"scale{index}") / math.sqrt(tap.shape[1] * tap.shape[2])
            taps.append((tap / (length + EPSILON) * scale).flatten(1))
        return torch.cat(taps, dim=1)  # [N, F]

    def _taps(self, images: Tensor) -> Iterator[Tensor]:
        """The network's activations [N, channels, height, width] at the taps."""
        for index, layer in enumerate(self.layers, start=1):
            images = layer(images)
            if index in self.backbone.cuts:
                yield images


def distances(x: Tensor, y: Tensor) -> Tensor:
    """LPIPS [N, M] of images with `PairwiseLPIPS.features` [N, F] and [M, F]."""
    # Zhang et al. 2018, Eq. 1, with ‖a - b‖² = ‖a‖² + ‖b‖² - 2ab, summed over the layers. Relative
    # to the centre vectors are short, and lose fewer digits to cancellation.
    centre = y.detach().mean(dim=0)
    x, y = x - centre, y - centre
    lengths = x.square().sum(dim=1)[:, None] + y.square().sum(dim=1)
    return (lengths - 2 * x @ y.T).clamp(min=0)


def weights_file(url: str) -> Path | None:
    """The file of an address: in torch's cache, or downloaded into it; None if both fail."""
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(url).path).name
    if not path.exists():
        try:
            urlopen(Request(url, method="HEAD"), timeout=NETWORK_TIMEOUT).close()
            path.parent.mkdir(parents=True, exist_ok=True)
            digest = path.stem.rpartition("-")[2]
            torch.hub.download_url_to_file(url, str(path), digest, progress=False)
        except (OSError, RuntimeError) as error:
            logging.getLogger(__name__).warning(
                f"There is no {path} in torch's cache, and {url} cannot be fetched ({error}). "
                "Another network is used instead, and the distance has another name. For the right "
                "one, put that file there before the run."
            )
            return None
    return path


def _initialise(layers: nn.Module) -> None:
    """Draw weights that keep the activations' scale from layer to layer (He et al., 2015)."""
    generator = torch.Generator().manual_seed(0)
    for layer in layers.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


@contextmanager
def reading(path: Path, expected: str) -> Iterator[Any]:
    """Load weights for the block that uses them.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It does not hold weights, or the block needs others.
    """
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}. Expected: {expected}.")
    try:
        yield torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch has no class for errors of files
        raise ValueError(f"{path} does not hold {expected}.") from error


def _channel_weights(net: Net) -> Iterator[Tensor]:
    """The weights [channels] of LPIPS for each tap, from the lpips package."""
    package = find_spec("lpips")  # importing it would take seconds
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / "weights" / "v0.1" / f"{net}.pth"
    state = torch.load(path, map_location="cpu", weights_only=True)
    for index in range(len(BACKBONES[net].cuts)):
        yield state[f"lin{index}.model.1.weight"].flatten()
