"""The distance of synthetic images from the real ones, and the diversity of images."""

import math
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_fidelity.feature_extractor_inceptionv3 import (
    URL_INCEPTION_V3,
    FeatureExtractorInceptionV3,
)
from torchmetrics.image.fid import FrechetInceptionDistance

from gan.networks import from_bytes
from gan.perceptual import PairwiseLPIPS, reading, weights_file
from gan.presets import StandIn

BATCH = 32  # images that go through a network at once
STEPS = 300  # the classifier's training: a few seconds on one core for small images
LEARNING_RATE = 0.003
WIDTHS = (16, 32, 64)


def convolutions(channels: int) -> nn.Sequential:
    """Three convolutions with BatchNorm and ReLU; each halves the image."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((channels, *WIDTHS)):
        layers += [
            nn.Conv2d(inputs, outputs, kernel_size=3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)


class Classifier(nn.Module):
    """The convolutions, a mean over pixels, and a linear layer `head`.

    As a feature extractor it replaces an Inception network that is not available. It is trained on
    the hospital's own images alone.
    """

    name = "frechet-classifier"
    num_features = WIDTHS[-1]

    def __init__(self, channels: int, classes: int):
        super().__init__()
        pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.body = nn.Sequential(*convolutions(channels), *pool)
        self.head = nn.Linear(WIDTHS[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """The input of the head, float64 [N, D], for images uint8 [N, C, H, W]."""
        features: Tensor = self.body(from_bytes(images)).double()
        return features


class Untrained(nn.Module):
    """Random convolutions, in place of an Inception network that is not available.

    For images unlike ImageNet's, an embedding without classes is the fairer judge (Naeem et al.,
    Reliable Fidelity and Diversity Metrics, ICML 2020). All layers count, so blur is noticed.
    BatchNorm has the statistics of the real images uint8 [N, C, H, W], N > 1.
    """

    name = "frechet-untrained"
    num_features = sum(WIDTHS)

    def __init__(self, real: Tensor, seed: int):
        super().__init__()
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            self.layers = convolutions(real.shape[1]).to(real.device)
        for layer in self.layers.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.momentum = None  # the mean over all batches
        with torch.no_grad():
            # Equal parts: BatchNorm takes no batch of one image.
            for batch in real.tensor_split(math.ceil(len(real) / BATCH)):
                self.layers(from_bytes(batch))
        self.requires_grad_(False).eval()

    def forward(self, images: Tensor) -> Tensor:
        """The means of all layers over pixels, float64 [N, D], for images uint8 [N, C, H, W]."""
        features, maps = [], from_bytes(images)
        for layer in self.layers:
            maps = layer(maps)
            if isinstance(layer, nn.ReLU):
                features.append(maps.mean((2, 3)))
        return torch.cat(features, 1).double()


class Inception(nn.Module):
    """The network of the FID (Heusel et al., 2017), from the file that torch-fidelity publishes.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file does not hold these weights.
    """

    name = "fid"
    num_features = 2048

    def __init__(self, weights: Path):
        super().__init__()
        # torch-fidelity would unpickle anything; `reading` accepts weights alone.
        with reading(weights, f"torch-fidelity's Inception weights, {URL_INCEPTION_V3}"):
            self.network = FeatureExtractorInceptionV3("inception", ["2048"], str(weights))

    def forward(self, images: Tensor) -> Tensor:
        """The features, float64 [N, 2048], of images uint8 [N, C, H, W], C = 1 or 3."""
        features: Tensor = self.network(images.expand(-1, 3, -1, -1))[0].double()
        return features


class Frechet:
    """Fréchet distance of synthetic images from real ones; real statistics are computed once.

    Real images are uint8 [N, C, H, W], N > 1. The extractor is in evaluation mode, and gives the
    distance its `name`.
    """

    def __init__(self, real: Tensor, extractor: Classifier | Untrained | Inception):
        self.name = extractor.name
        # Heusel et al. 2017, Eq. 6.
        self._metric = FrechetInceptionDistance(extractor, reset_real_features=False)
        self._metric.to(real.device)
        self._update(real, real=True)

    def __call__(self, synthetic: Iterable[Tensor]) -> float:
        """The distance of synthetic images, in parts uint8 [n, C, H, W]; more than one image."""
        for part in synthetic:
            self._update(part, real=False)
        distance = self._metric.compute().item()
        self._metric.reset()
        return float(distance)

    @torch.no_grad()
    def _update(self, images: Tensor, real: bool) -> None:
        for batch in images.split(BATCH):
            self._metric.update(batch.to(self._metric.device), real=real)


def inception_file(chosen: str) -> Path | None:
    """The file of the FID's network; if none is chosen, that in torch's cache or a download.

    None if the cache has no such file and the download fails. Then the log has a warning.
    """
    return Path(chosen) if chosen else weights_file(URL_INCEPTION_V3)


def frechet(
    real: Tensor,
    labels: Tensor,
    classes: int,
    *,
    inception: Path | None,
    otherwise: StandIn,
    seed: int,
) -> Frechet:
    """The FID by a file of its network (`inception`); without a file the distance by another one.

    The images are uint8 [N, C, H, W] with labels int64 [N]; the seed is for the other network.

    Raises:
        FileNotFoundError: There is no file `inception`.
        ValueError: The file does not hold the network.
    """
    if inception:
        return Frechet(real, Inception(inception).to(real.device))
    if otherwise == "untrained":
        return Frechet(real, Untrained(real, seed))
    return Frechet(real, train_classifier(real, labels, classes, seed))


def train_classifier(images: Tensor, labels: Tensor, classes: int, seed: int) -> Classifier:
    """Train a small classifier on images uint8 [N, C, H, W], labels int64 [N], in `STEPS` steps.

    The seed decides on the initial weights and the batches.
    """
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        model = Classifier(images.shape[1], classes).to(images.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
        for _ in range(STEPS):
            batch = torch.randint(len(images), (BATCH,)).to(images.device)
            optimizer.zero_grad()
            logits = model.head(model.body(from_bytes(images[batch])))
            cross_entropy(logits, labels[batch]).backward()
            optimizer.step()
    return model.requires_grad_(False).eval()


@torch.no_grad()
def class_diversity(images: Tensor, labels: Tensor, distance: PairwiseLPIPS) -> float:
    """The mean over classes of the mean distance between two images of one class.

    Images are uint8 [N, C, H, W], on the distance's device, with labels [N]. Classes with fewer
    than two images do not count; NaN if no class has two.
    """
    means = []
    for label in labels.unique():
        own = images[labels == label]
        if len(own) < 2:
            continue
        # Σ_{i<j} ‖f_i - f_j‖² = n Σ ‖f_i‖² - ‖Σ f_i‖²: it needs no pairs, and one batch of
        # features at a time. Relative to the first image, and in float64, no digits are lost.
        origin = distance.features(from_bytes(own[:1])).double()
        total, squares = torch.zeros_like(origin), torch.zeros_like(origin)
        for batch in own.split(BATCH):
            features = distance.features(from_bytes(batch)) - origin  # [n, F]
            total += features.sum(dim=0)
            squares += features.square().sum(dim=0)
        pairs = len(own) * (len(own) - 1) / 2
        means.append((len(own) * squares.sum() - total.square().sum()).item() / pairs)
    return sum(means) / len(means) if means else math.nan
