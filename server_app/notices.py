"""Warnings about settings that can be used, before a run starts."""

from gan.presets import Preset, PresetError, choose_preset
from strategies.engine.strategy import Strategy
from strategies.protocol.data_sets import side_of
from strategies.protocol.settings import GANSettings, Settings, SettingsError, defaults

_NOISE = {"gan.epsilon", "gan.delta"}  # read by dp-mean-embedding, which reads no other setting


def notices(settings: Settings, strategy: Strategy, *, simulated: bool) -> list[str]:
    """Warnings about settings that are not read, about a hand-off in no round, and a slow GAN."""
    gan, usual, chosen = settings.gan, defaults(), settings.run_config
    makes_gan = strategy.buffer_size > 0 and gan.method == "stylegan2-ada"
    changed = {key for key in chosen if key.startswith("gan.") and chosen[key] != usual[key]}
    why = "this run makes no synthetic images"
    if strategy.buffer_size:
        why = f"'gan.method' is '{gan.method}'"
        changed -= {"gan.method", *(_NOISE if gan.method == "dp-mean-embedding" else ())}
    if makes_gan:
        changed &= _NOISE
    sentences = [
        f"The setting '{key}' is {chosen[key]!r}, and is not read: {why}."
        for key in sorted(changed)
    ]
    if strategy.begins_at_home and settings.num_server_rounds == 1:
        sentences.append(
            f"No model is handed on: in round 1 of '{settings.strategy}' each hospital trains its "
            "own model. Set 'num-server-rounds' to 2 or more."
        )
    size = settings.image_size or side_of(settings.dataset)
    if simulated and makes_gan and (hours := gan_preset(gan, size).least_hours):
        sentences.append(
            f"The setting 'gan.preset' is '{gan.preset}', and this machine has no CUDA device: "
            f"on a CPU core each hospital's GAN takes about {hours:,.0f} hours or more. Choose "
            "tiny or small, or fewer 'gan.iterations'."
        )
    return sentences


def gan_preset(gan: GANSettings, size: int) -> Preset:
    """The GAN preset of a run, for images of `size` pixels a side; 0 = unknown.

    Raises:
        SettingsError: There is no such preset, or the images are too large for it.
    """
    try:
        return choose_preset(gan.preset, gan.iterations, size)
    except PresetError as error:
        raise SettingsError(str(error)) from error
