"""Every classification model of torchvision, for any number of channels; nothing is downloaded."""

from typing import TYPE_CHECKING, Any

import torch
import torchvision
from torch import nn

if TYPE_CHECKING:
    from learning.models import Architecture


def torchvision_model(architecture: "Architecture") -> nn.Module:
    """The torchvision model of this name, untrained, with a stem for the channels."""
    network: nn.Module = torchvision.models.get_model(
        architecture.name, weights=None, num_classes=architecture.classes, **_options(architecture)
    )
    if architecture.channels != 3:
        stem = next(m for m in network.modules() if isinstance(m, nn.Conv2d))
        stem.in_channels = architecture.channels
        shape = (stem.out_channels, stem.in_channels, *stem.kernel_size)
        stem.weight = nn.Parameter(torch.empty(shape))
        stem.reset_parameters()
    return network


def published_weights(name: str) -> Any:
    """The weights IMAGENET1K_V1 of a network, or its default weights; None if it has none."""
    if name not in torchvision.models.list_models(torchvision.models):
        return None
    choices = torchvision.models.get_model_weights(name)
    return choices.__members__.get("IMAGENET1K_V1", choices.DEFAULT)


def _options(architecture: "Architecture") -> dict[str, Any]:
    """Further options that a few models need."""
    if architecture.name.startswith("vit_"):
        return {"image_size": architecture.height}
    if architecture.name == "maxvit_t":
        return {"input_size": (architecture.height, architecture.width)}
    if architecture.name in ("googlenet", "inception_v3"):
        # With auxiliary heads the output is a tuple in training; init_weights is slow and warns.
        return {"aux_logits": False, "init_weights": False}
    return {}
