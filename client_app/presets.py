"""The size and schedule of a hospital's GAN. Without torch: enrolment refuses what cannot work."""

from dataclasses import replace

from gan.presets import PRESETS, Preset
from strategies.protocol.settings import GANSettings, SettingsError


def fitted_preset(settings: GANSettings, shape: tuple[int, int, int]) -> Preset:
    """The preset that the settings name, for images of a shape (C, H, W).

    Raises:
        SettingsError: There is none of that name, or the images are too large for it.
    """
    if settings.preset not in PRESETS:
        raise SettingsError(
            f"The setting 'gan.preset' is '{settings.preset}'; it must be one of "
            f"{', '.join(PRESETS)}."
        )
    preset, size = PRESETS[settings.preset], max(shape[1:])
    if size > 2 * preset.resolution:
        raise SettingsError(
            f"The setting 'gan.preset' is '{settings.preset}', for images of {preset.resolution} "
            f"pixels, and the hospital's have {size}: choose a larger one of "
            f"{', '.join(PRESETS)}, or a smaller image-size."
        )
    preset, few = preset.fitted(size), settings.iterations
    return replace(preset, iterations=few, privacy_iterations=few) if few else preset
