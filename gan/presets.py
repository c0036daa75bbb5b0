"""Sizes and schedules of the generative model, one row per kind of images. Without torch.

Papers: StyleGAN2 (Karras et al. 2020, arXiv:1912.04958), StyleGAN2-ADA (Karras et al. 2020,
arXiv:2006.06676), FedER (Pennisi et al. 2023, arXiv:2206.10048, sections III.B and IV.B).
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

StandIn = Literal["classifier", "untrained"]  # for the FID's network (gan/quality.py)
# Products of a layer's pixels and squared channels that a CPU core trains in a second: xray-256
# took 10 s for an image. Small presets are slower than that, because they have other costs.
VALUES_PER_SECOND = 1.2e8


class PresetError(ValueError):
    """There is no such preset, or the images are too large for it."""


@dataclass(frozen=True)
class Preset:
    """The settings of a training, except the images, the privacy term and the seed.

    Each phase counts its iterations from 1.
    """

    channels: tuple[int, ...]  # feature maps at 4, 8, 16, ... pixels, up to `resolution`
    latent: int  # size of z and of w
    mapping_layers: int  # layers from z to w; with more layers w is less like a Gaussian
    batch_size: int  # real images of a step; it has as many synthetic ones
    learning_rate: float  # of both networks; equalised weights keep them in balance
    r1_gamma: float  # weight of the gradient penalty; larger is steadier and blurrier
    r1_every: int  # iterations between gradient penalties, which need a double backward pass
    path_weight: float  # weight of path length regularisation, for smooth latents; 0 = none
    path_every: int  # iterations between path length regularisations; 0 = never
    style_mixing: float  # share of batches from two latents; it makes layers independent
    ema_images: int  # half-life of the averaged generator, in images
    ada_target: float  # the discriminator overfits if its mean sign on real images is above it
    ada_images: int  # images in which the probability of augmentation can rise from 0 to 1
    mirror: bool  # whether mirrored images are plausible; mirrored digits are not
    iterations: int  # most iterations of phase 1
    patience: int  # iterations without a better Fréchet distance that end phase 1
    privacy_iterations: int  # most iterations of phase 2
    privacy_scale: float  # factor on α: untrained distances are some tens of times below LPIPS
    check_every: int  # iterations between checks and checkpoints; a fifth of that in phase 2
    fid_images: int  # synthetic images for a Fréchet distance
    pretrained: bool  # whether LPIPS and FID use downloaded weights, which suit large images
    otherwise: StandIn  # network of the Fréchet distance if not
    perceptual_net: Literal["squeeze", "vgg"]  # network of LPIPS: squeeze is cheap, vgg the paper's

    @property
    def resolution(self) -> int:
        """Height and width of the images."""
        return int(4 << (len(self.channels) - 1))

    def fit(self, size: int) -> "Preset":
        """The preset for images of `size` pixels, at the lowest resolution that holds them."""
        levels = max(2, math.ceil(math.log2(size / 4)) + 1)
        return replace(self, channels=self.channels[:levels])

    @property
    def most_iterations(self) -> int:
        """The most iterations of both phases together."""
        return self.iterations + self.privacy_iterations

    @property
    def least_hours(self) -> float:
        """The fewest hours that a training takes on a core of this machine; 0 = below one.

        With CUDA it is 0, too.
        """
        values = sum((4 << level) ** 2 * width**2 for level, width in enumerate(self.channels))
        images = min(self.iterations, self.patience) * self.batch_size
        hours = images * values / VALUES_PER_SECOND / 3600
        if hours < 1:
            return 0.0
        from torch.cuda import is_available  # takes seconds

        return 0.0 if is_available() else hours


# StyleGAN2-ADA's "auto" configuration for 256 x 256 pixels, with FedER's batch and learning rate.
_XRAY = Preset(
    channels=(512, 512, 512, 512, 256, 128, 64),
    latent=512,
    mapping_layers=2,  # as "auto"; 8 in StyleGAN2 and in ADA's other configurations
    batch_size=32,
    learning_rate=0.0025,
    r1_gamma=0.0002 * 256**2 / 32,  # the "auto" rule: 0.0002 · pixels / batch
    r1_every=16,
    path_weight=2.0,
    path_every=4,
    style_mixing=0.9,
    ema_images=10_000,
    ada_target=0.6,
    ada_images=500_000,
    mirror=True,
    iterations=780_000,  # 25 million images, the most of StyleGAN2
    patience=10_000,
    privacy_iterations=780_000,
    privacy_scale=1.0,
    check_every=1_000,
    fid_images=50_000,  # as published FIDs, which are larger with fewer images
    pretrained=True,
    otherwise="untrained",
    perceptual_net="vgg",
)

PRESETS: dict[str, Preset] = {
    # 16 x 16 or less: digits in half a minute on one CPU core, at a high learning rate. A small
    # latent makes digits of a class differ: so short a training gives no meaning to each of 64
    # numbers. For such small images an untrained network judges early noise as good as digits.
    "tiny": replace(
        _XRAY,
        channels=(48, 32, 16),
        latent=12,
        learning_rate=0.008,
        r1_gamma=0.3,
        r1_every=8,
        path_weight=0.0,
        path_every=0,
        style_mixing=0.5,
        ema_images=2_000,
        ada_images=50_000,
        mirror=False,
        iterations=800,
        patience=400,
        privacy_iterations=100,
        privacy_scale=10.0,
        check_every=50,
        fid_images=512,
        pretrained=False,
        otherwise="classifier",
        perceptual_net="squeeze",
    ),
    # 64 x 64: photographs of skin in some minutes on one CPU core. Large layers take most of the
    # time, so they have few channels. The latent is small, as for `tiny`.
    "small": replace(
        _XRAY,
        channels=(64, 64, 32, 16, 8),
        latent=16,
        batch_size=16,
        learning_rate=0.004,
        r1_gamma=0.1,
        path_weight=0.0,
        path_every=0,
        style_mixing=0.5,
        ema_images=3_000,
        ada_images=50_000,
        iterations=2_000,
        patience=2_000,
        privacy_iterations=100,
        privacy_scale=3.0,
        check_every=100,
        fid_images=512,
        pretrained=False,
        perceptual_net="squeeze",
    ),
    "xray-256": _XRAY,
    "skin-256": _XRAY,
}


def choose_preset(name: str, iterations: int = 0, size: int = 0) -> Preset:
    """The preset of a run, with most iterations of a phase, for images of `size` pixels a side.

    0 = those of the preset.

    Raises:
        PresetError: No preset has the name, or the images are too large for it.
    """
    if name not in PRESETS:
        raise PresetError(
            f"The setting 'gan.preset' is {name!r}; it must be one of {', '.join(PRESETS)}."
        )
    preset = PRESETS[name]
    if size > 2 * preset.resolution:
        raise PresetError(
            f"The setting 'gan.preset' is '{name}', for images of {preset.resolution} pixels, and "
            f"the hospital's images have {size}: choose a larger one of {', '.join(PRESETS)}, or a "
            "smaller image-size."
        )
    if iterations:
        preset = replace(preset, iterations=iterations, privacy_iterations=iterations)
    return preset.fit(size) if size else preset
