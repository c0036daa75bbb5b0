"""The images that published weights were trained on: their scale and their size.

The libraries of networks state both beside the weights. Other scales cost accuracy in silence.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from safetensors import SafetensorError, safe_open

from learning.errors import ModelError
from learning.export import ENTRY, read_manifest
from learning.models import Architecture
from learning.models.timm_model import TIMM, timm_config
from strategies.protocol.settings import Settings

IMAGENET, EXPORTED = "imagenet", ".safetensors"
LITE0, LITE0_MODEL = "package:efficientnet-lite0", "timm:tf_efficientnet_lite0"
# Mean and deviation of images in [0, 1] -> key of learning.models.pixels.SCALES.
_SCALES = {
    ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)): "imagenet",
    ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)): "symmetric",
    ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)): "unit",
}


@dataclass(frozen=True)
class Preprocessing:
    """The scale (a key of SCALES) and the height in pixels of the images of some weights."""

    pixels: str
    size: int


def pixels_of(settings: Settings, model: str) -> str:
    """The scale of a hospital's first network: the setting `pixels`, or that of its weights.

    Raises:
        ModelError: See `preprocessing`.
    """
    if settings.pixels:
        return settings.pixels
    found = preprocessing(model, settings.pretrained)
    return found.pixels if found else "unit"


def preprocessing(model: str, source: str) -> Preprocessing | None:
    """The images that the weights of a setting `pretrained` (`source`) were trained on.

    They are unknown (None) for random weights, and for networks without published weights. The
    state dict in a file is taken for the published weights of its network.

    Raises:
        ModelError: The network's library has no such network, or weights of another scale; or an
            exported model cannot be read.
    """
    if not source:
        return None
    if source == LITE0:
        return Preprocessing("lite", 224)
    if is_exported(source):
        network = _exported_network(source)
        return Preprocessing(network.pixels, network.height)
    return _published_preprocessing(model)


def have_unit_features(source: str) -> bool:
    """Whether the weights of a setting `pretrained` are for unit features (`Architecture`).

    Raises:
        ModelError: An exported model cannot be read.
    """
    return is_exported(source) and _exported_network(source).has_unit_features


def _exported_network(source: str) -> Architecture:
    try:
        return read_manifest(Path(source)).network
    except ModelError as error:
        raise ModelError(f"The setting 'pretrained' names no exported model. {error}") from error


def is_exported(source: str) -> bool:
    """Whether the name of a file is that of an exported model; timm's files have no manifest."""
    if not source.endswith(EXPORTED):
        return False
    try:
        with safe_open(source, framework="pt") as file:
            return ENTRY in (file.metadata() or {})
    except (OSError, SafetensorError):
        return True  # the reader of exported models says what is wrong


@lru_cache(maxsize=64)
def _published_preprocessing(model: str) -> Preprocessing | None:
    """The preprocessing of the weights that a library publishes for a network."""
    if model.startswith(TIMM):
        config = timm_config(model)
        mean, deviation, size = config.mean, config.std, config.input_size[-1]
    else:
        from learning.models.torchvision_model import published_weights

        weights = published_weights(model)
        if weights is None:
            return None
        transforms = weights.transforms()
        mean, deviation, size = transforms.mean, transforms.std, transforms.crop_size[0]
    scale = _SCALES.get((tuple(mean), tuple(deviation)))
    if model in ("googlenet", "inception_v3"):
        scale = "symmetric"  # torchvision's networks scale once more where they have these weights
    if scale is None:
        raise ModelError(
            f"The weights of '{model}' were trained on images with the mean {tuple(mean)} and the "
            f"deviation {tuple(deviation)}. There is no such scale here: choose another 'model'."
        )
    return Preprocessing(scale, size)
