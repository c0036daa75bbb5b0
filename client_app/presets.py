"""The size and schedule of a hospital's GAN. Without torch: enrolment refuses what cannot work."""

from dataclasses import replace

from gan.presets import PRESETS, Preset
from strategies.protocol.settings import GANSettings, SettingsError, require

# Products of a layer's pixels and squared channels that a CPU core trains in a second: xray-256
# took 10 s for an image. Small presets take longer than that, since other things count there.
VALUES_PER_SECOND = 1.2e8


def fitted_preset(settings: GANSettings, shape: tuple[int, int, int]) -> Preset:
    """The preset that the settings name, for images of a shape (C, H, W).

    Raises:
        SettingsError: There is none of that name, or the images are too large for it.
    """
    preset, size = _scheduled(settings), max(shape[1:])
    if size > 2 * preset.resolution:
        raise SettingsError(
            f"The setting 'gan.preset' is '{settings.preset}', for images of {preset.resolution} "
            f"pixels, and the hospital's have {size}: choose a larger one of "
            f"{', '.join(PRESETS)}, or a smaller image-size."
        )
    return preset.fitted(size)


def most_iterations(settings: GANSettings) -> int:
    """How many iterations the GAN's two phases may have together.

    Raises:
        SettingsError: There is no such preset.
    """
    preset = _scheduled(settings)
    return preset.iterations + preset.privacy_iterations


def least_hours(settings: GANSettings, size: int) -> float:
    """The fewest hours that a GAN takes on a core of this machine; below 1, or with CUDA, 0.

    Args:
        settings: The run's.
        size: Pixels a side of the images; 0 = not known, and as many as the preset is for.

    Raises:
        SettingsError: There is no such preset, or the images are too large for it.
    """
    preset = fitted_preset(settings, (1, size, size)) if size else _scheduled(settings)
    values = sum((4 << level) ** 2 * width**2 for level, width in enumerate(preset.channels))
    images = min(preset.iterations, preset.patience) * preset.batch_size
    hours = images * values / VALUES_PER_SECOND / 3600
    if hours < 1:
        return 0.0
    from torch.cuda import is_available  # takes seconds

    return 0.0 if is_available() else hours


def _scheduled(settings: GANSettings) -> Preset:
    """The preset with as many iterations as the settings say."""
    require(
        settings.preset in PRESETS, "gan.preset", settings.preset, f"one of {', '.join(PRESETS)}"
    )
    preset, few = PRESETS[settings.preset], settings.iterations
    return replace(preset, iterations=few, privacy_iterations=few) if few else preset
