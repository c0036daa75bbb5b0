"""The size and schedule of a hospital's GAN. Without torch: enrolment refuses what cannot work."""

from dataclasses import replace

from gan.presets import PRESETS, Preset
from strategies.protocol.settings import GANSettings, SettingsError, require


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


def _scheduled(settings: GANSettings) -> Preset:
    """The preset with as many iterations as the settings say."""
    require(
        settings.preset in PRESETS, "gan.preset", settings.preset, f"one of {', '.join(PRESETS)}"
    )
    preset, few = PRESETS[settings.preset], settings.iterations
    return replace(preset, iterations=few, privacy_iterations=few) if few else preset
