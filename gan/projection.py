"""Projection: the image of a generator that is nearest to a given image.

FedER, arXiv:2206.10048, section IV.D, figures 3 and 4: every training image is projected into the
latent space W of a GAN without and of a GAN with the privacy loss, both from the same w. A large
distance of an image from its projection means that the generator has kept little of it.

The projection is StyleGAN2's, arXiv:1912.04958, section 5.3 and appendix D, written from the paper.
Differences:

1. All images share the initial noise maps and the noise that is added to w at a step. So the
   result of an image does not depend on its batch, and both generators have the same conditions.
2. The image of the last step is rendered once more, without noise added to w.
3. The mean w is taken over classes with their frequencies in the data; the paper's GANs have no
   classes.
4. Images are compared at their own size. The paper shrinks images above 256 x 256.

N images, C channels, R x R pixels; D latents; F features.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import avg_pool2d

from gan.networks import Generator, to_bytes
from gan.perceptual import PairwiseLPIPS
from gan.synthesis import save_grid

NOISE_ADDED = 0.05  # noise that is added to w at the start, as a share of the scale of W
LEARNING_RATE = 0.1  # the highest one, between the ramp up and the ramp down
NOISE_WEIGHT = 1e5  # of the noise regularisation
SHOWN, PIXELS = 8, 96  # images in projections.png, smallest side of them in pixels


@dataclass(frozen=True)
class Start:
    """The start of projections."""

    w: Tensor  # [D], the mean of all w
    scale: float  # root mean square distance of w from the mean


@dataclass(frozen=True)
class Projection:
    """The nearest images of a generator to N images."""

    w: Tensor  # [N, D]
    images: Tensor  # [N, C, R, R] in [-1, 1]
    distances: Tensor  # [N]


@torch.no_grad()
def mean_w(generator: Generator, labels: Tensor, *, seed: int, draws: int = 10_000) -> Start:
    """The centre and scale of W (appendix D), of classes drawn from the labels [N] of the data."""
    rng = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(labels), (draws,), generator=rng)
    z = torch.randn(draws, generator.latent, generator=rng)
    w = generator.map(labels[chosen.to(labels.device)], z.to(labels.device))  # [draws, D]
    mean = w.mean(dim=0)
    return Start(mean, (w - mean).square().sum(dim=1).mean().sqrt().item())


def project(
    generator: Generator,
    images: Tensor,
    start: Start,
    *,
    features: Callable[[Tensor], Tensor],
    seed: int,
    deadline: float,
    steps: int = 1000,
    batch: int = 32,
) -> Projection:
    """Find the w and the noise maps of the most similar image, for each of N images.

    Args:
        generator: On the images' device.
        images: [N, C, R, R] in [-1, 1].
        start: The start of all projections.
        features: Maps images to [N, F]; the distance is the squared norm of the difference.
        seed: Seed of all noise; torch's global generators do not change.
        deadline: Time limit, on the clock of `time.monotonic`.
        steps: Steps of Adam, per batch.
        batch: Images optimised at once; changes the speed and the memory, not the result.

    Raises:
        TimeoutError: The deadline has passed.
    """
    done = []
    for targets in images.split(batch):
        rng = torch.Generator().manual_seed(seed)
        maps = [torch.randn(1, 1, *shape, generator=rng) for shape in generator.noise_shapes]
        noise = [each.to(images.device).repeat(len(targets), 1, 1, 1) for each in maps]
        w = start.w.repeat(len(targets), 1)  # [N, D]
        variables = [each.requires_grad_() for each in (w, *noise)]
        optimizer = torch.optim.Adam(variables, lr=LEARNING_RATE)
        with torch.no_grad():
            wanted = features(targets)  # [N, F]
        for step in range(steps):
            if time.monotonic() > deadline:
                raise TimeoutError("The projection took longer than allowed.")
            at = step / steps
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * ramp(at)
            # Noise on w, 0.05 σ_w t² with t from 1 to 0 over the first three quarters (appendix D).
            t = max(0.0, 1 - at / 0.75)
            added = torch.randn(w.shape[1], generator=rng).to(w) * NOISE_ADDED * start.scale * t**2
            nearest = generator.synthesise(w + added, noise)
            # A sum, not a mean: an image's gradient does not depend on its batch.
            loss = (features(nearest) - wanted).square().sum() + NOISE_WEIGHT * roughness(noise)
            optimizer.zero_grad()
            loss.backward(inputs=variables)
            optimizer.step()
            with torch.no_grad():
                for each in noise:  # back to zero mean and unit variance
                    each -= each.mean(dim=(1, 2, 3), keepdim=True)
                    each *= each.square().mean(dim=(1, 2, 3), keepdim=True).rsqrt()
        with torch.no_grad():
            nearest = generator.synthesise(w, noise)
            distances = (features(nearest) - wanted).square().sum(dim=1)
        done.append((w.detach(), nearest, distances))
    return Projection(*map(torch.cat, zip(*done, strict=True)))


def ramp(at: float) -> float:
    """Factor on the learning rate at a share [0, 1) of the steps: linear rise 5 %, fall 25 %."""
    return min(1.0, at / 0.05) * (0.5 - 0.5 * math.cos(math.pi * min(1.0, (1 - at) / 0.25)))


def roughness(noise: Sequence[Tensor]) -> Tensor:
    """The distance of noise maps [N, 1, h, w] from white noise, so that they hide no image.

    It is the squared correlation of a map with itself moved by a pixel, in x and in y, summed over
    all maps and over their halvings down to 8 x 8 (appendix D, L_ij).
    """
    total = torch.zeros((), device=noise[0].device)
    for each in noise:
        while True:
            for axis in (2, 3):
                total = total + (each * each.roll(1, axis)).mean(dim=(1, 2, 3)).square().sum()
            if min(each.shape[2:]) <= 8:
                break
            each = 2 * avg_pool2d(each, 2)  # the mean of four, brought back to unit variance
    return total


def measure_privacy(
    plain: Generator,
    private: Generator,
    images: Tensor,
    start: Start,
    *,
    metric: PairwiseLPIPS,
    folder: Path,
    seed: int,
    deadline: float,
    steps: int = 1000,
) -> dict[str, float]:
    """Project images with a generator without and with a generator with the privacy loss.

    The function writes `privacy.png` (figure 3), `projections.png` (figure 4; rows: real, plain,
    private) and `projections.json` with the distances. `projections.png` shows real images: it
    stays at the hospital.

    `plain` is the generator after the first phase, and `private` that after the second. Both start
    at `mean_w` of the plain one (IV.D). The real images are [N, C, R, R] in [-1, 1], and the folder
    exists. `metric` is minimised and reported. `seed`, `deadline` and `steps` are as in `project`.

    Returns:
        The mean distances `projection-plain` and `projection-private`.

    Raises:
        TimeoutError: The deadline has passed.
    """
    found = {
        name: project(
            generator,
            images,
            start,
            features=metric.features,
            seed=seed,
            deadline=deadline,
            steps=steps,
        )
        for name, generator in (("plain", plain), ("private", private))
    }
    distances = {name: each.distances.tolist() for name, each in found.items()}
    (folder / "projections.json").write_text(json.dumps({"metric": metric.name, **distances}))
    histogram(metric.name, distances).savefig(folder / "privacy.png", dpi=150)
    sample_rows = torch.linspace(0, len(images) - 1, min(SHOWN, len(images))).long()
    rows = torch.cat([each[sample_rows] for each in (images, *(p.images for p in found.values()))])
    save_grid(folder / "projections.png", to_bytes(rows), len(sample_rows), PIXELS)
    return {f"projection-{name}": each.distances.mean().item() for name, each in found.items()}


def histogram(metric: str, distances: Mapping[str, Sequence[float]]) -> Figure:
    """Two distributions over the same bins, the first one blue and the second one red."""
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.add_subplot()
    bins = torch.linspace(0, max(map(max, distances.values())) or 1.0, 41).tolist()
    for (name, values), colour in zip(distances.items(), ("#2f6690", "#c8553d"), strict=True):
        axes.hist(values, bins=bins, color=colour, alpha=0.6, label=name)
    axes.set_xlabel(f"{metric} to a real image")
    axes.set_ylabel("images")
    axes.legend(frameon=False)
    return figure
