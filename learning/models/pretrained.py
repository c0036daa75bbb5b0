"""Pretrained weights: torchvision's weights for ImageNet, or the weights in a file.

A file is a state dict for one of torchvision's networks, or an exported model of any kind
(learning.export). The ending of its name decides.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
import torchvision
from torch import Tensor, nn

from learning.errors import ModelError
from learning.export import read_state
from learning.models import MODELS, Architecture

IMAGENET = "imagenet"
EXPORTED = ".safetensors"
AUXILIARY = ("AuxLogits.", "aux1.", "aux2.")  # heads in some files that our networks do not have


def load_pretrained(
    network: nn.Module, architecture: Architecture, source: str, classes: Sequence[str] = ()
) -> None:
    """Replace all weights of a new network, except for its head.

    The head is the last layer: its shape depends on the number of classes. It keeps its random
    weights, because a pretrained head is for other classes. Only an exported model names its
    classes; its head is loaded if the classes are the same.

    Args:
        network: As `architecture` has built it.
        architecture: The network's.
        source: "imagenet", for torchvision's weights IMAGENET1K_V1, or its default weights for a
            model without these; they are read from torch's cache, or downloaded into it. Otherwise
            the absolute path of a file: of an exported model if it ends in .safetensors, else with
            the state dict of one of torchvision's networks.
        classes: The names of the network's classes.

    Raises:
        ModelError: The weights are missing, damaged, or of another network; or the network is
            not one of torchvision's, and the source is no exported model.
    """
    name, channels = architecture.name, architecture.channels
    if source.endswith(EXPORTED):
        _load_exported(network, architecture, Path(source), classes)
        return
    if name in MODELS:
        raise ModelError(
            f"The setting 'pretrained' is '{source}', but the model '{name}' is not one "
            "of torchvision's: choose one of those, such as resnet18, give 'pretrained' an "
            f"exported model (*{EXPORTED}), or leave it empty."
        )
    if source == IMAGENET and channels != 3:
        raise ModelError(
            f"The setting 'pretrained' is '{IMAGENET}', whose networks take 3 channels, and the "
            f"hospital's images have {channels}: set 'image-channels' to 3."
        )
    weights = _imagenet(name) if source == IMAGENET else _file(Path(source))
    reason = _misfit(network, weights, _head(network, architecture))
    if reason:
        grey = ". If they are for 3 channels, set 'image-channels' to 3" if channels != 3 else ""
        size = f"{channels}x{architecture.height}x{architecture.width}"
        raise ModelError(
            f"The weights '{source}' of the setting 'pretrained' are not the state dict of "
            f"torchvision's {name} for {size} images: {reason}{grey}."
        )


def _load_exported(
    network: nn.Module, architecture: Architecture, path: Path, classes: Sequence[str]
) -> None:
    try:
        state, manifest = read_state(path)
        theirs = manifest.network
    except ModelError as error:
        raise ModelError(f"The setting 'pretrained' names no exported model. {error}") from error
    # Sizes of images may differ where the shapes of weights do not depend on them.
    differing = [
        f"its {what} is {getattr(theirs, what)!r}, here it is {getattr(architecture, what)!r}"
        for what in ("name", "channels", "pixels")
        if getattr(theirs, what) != getattr(architecture, what)
    ]
    same = list(classes) == manifest.classes
    head = {} if same else _head(network, architecture)
    if reason := "; ".join(differing) or _misfit(network, dict(state), head):
        size = f"{architecture.channels}x{architecture.height}x{architecture.width}"
        raise ModelError(
            f"The exported model of the setting 'pretrained' does not fit the model "
            f"'{architecture.name}' for {size} images: {reason}."
        )


def _head(network: nn.Module, architecture: Architecture) -> dict[str, Tensor]:
    """The entries of a network whose shape depends on the number of classes."""
    other = replace(architecture, classes=architecture.classes + 1).blank().state_dict()
    own = network.state_dict()
    return {entry: own[entry] for entry in own if own[entry].shape != other[entry].shape}


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
    choices = torchvision.models.get_model_weights(name)
    url = choices.__members__.get("IMAGENET1K_V1", choices.DEFAULT).url
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(url).path).name
    try:
        return torch.hub.load_state_dict_from_url(
            url, map_location="cpu", progress=False, check_hash=True, weights_only=True
        )
    except Exception as error:  # network, cache, file: it fails in many ways
        raise ModelError(
            f"The ImageNet weights of {name} can neither be read from '{path}' nor downloaded from "
            f"{url} ({type(error).__name__}): put that file there, in place of a damaged one, or "
            "set 'pretrained' to its absolute path elsewhere."
        ) from error


def weights_in(path: str, setting: str) -> dict[str, Tensor]:
    """The weights in an exported model (*.safetensors), or in the state dict in another file.

    Raises:
        ModelError: The setting's file has no weights.
    """
    weights = read_state(Path(path))[0] if path.endswith(EXPORTED) else _file(Path(path), setting)
    if isinstance(weights, dict) and all(isinstance(each, Tensor) for each in weights.values()):
        return {str(name): each for name, each in weights.items()}
    raise ModelError(f"The file '{path}' of the setting '{setting}' has no state dict.")


def _file(path: Path, setting: str = "pretrained") -> Any:
    """The state dict in a file."""
    if not path.is_file():
        raise ModelError(f"There is no file '{path}'; the setting '{setting}' names it.")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch has no class for errors of files
        raise ModelError(
            f"The file '{path}' of the setting '{setting}' cannot be read "
            f"({type(error).__name__}): write it with torch.save(network.state_dict(), file)."
        ) from error
