"""A frozen network as a map from images to features, and the head that is trained on these.

φ is a network without its last linear layer. The features of an image x are z = φ(x) / ‖φ(x)‖, so
all have length 1. A head is one linear layer on them. As in Fed3R (ICML 2024) and FedCGS
(arXiv:2503.06962), φ never changes.

Shapes: `N` images of `C` channels and `H`×`W` pixels, `d` features, `K` classes.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor, nn
from torch.nn.functional import normalize

from learning.errors import ModelError
from learning.models.taps import last_layer, last_name
from strategies.protocol.parcel import hash_arrays

if TYPE_CHECKING:
    from learning.models import Architecture


def head(architecture: "Architecture") -> nn.Sequential:
    """One linear layer: features [N, d, 1, 1] -> logits [N, K]."""
    return nn.Sequential(nn.Flatten(), nn.Linear(architecture.channels, architecture.classes))


def use_unit_features(network: nn.Module) -> None:
    """Make the last linear layer of a network see features of length 1.

    Raises:
        ModelError: The network ends otherwise.
    """
    last_layer(network).register_forward_pre_hook(lambda layer, inputs: normalize(*inputs))


def head_state(network: nn.Module, architecture: "Architecture") -> dict[str, Tensor]:
    """The entries of a state dict whose shape depends on the number of classes."""
    other = replace(architecture, classes=architecture.classes + 1).blank().state_dict()
    own = network.state_dict()
    return {entry: own[entry] for entry in own if own[entry].shape != other[entry].shape}


def weights_hash(network: nn.Module, architecture: "Architecture") -> str:
    """SHA-256 over all weights of a network except for its head."""
    head = head_state(network, architecture)
    weights = {name: each for name, each in network.state_dict().items() if name not in head}
    return hash_arrays(ArrayRecord({name: Array(each.numpy()) for name, each in weights.items()}))


def feature_width(network: nn.Module) -> int:
    """The number of features d that a network gives its last linear layer.

    Raises:
        ModelError: The network ends otherwise, or its last layer has no bias, as a head has.
    """
    layer = last_layer(network)
    if layer.bias is None:
        raise ModelError(
            "The last layer of the network has no bias: with 'train.freeze' = 'body' choose "
            "another 'model'."
        )
    return layer.in_features


class Body(nn.Module):
    """A network without its last linear layer: images uint8 [N, C, H, W] -> features [N, d].

    The network is changed in place. It may have been made so that it overflows for one image. Then
    a failure would reveal the patient, so no image causes one.

    Attributes:
        width: The number of features, d.

    Raises:
        ModelError: The network ends otherwise, or its last layer has no bias, as a head has.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.width = feature_width(network)
        network.set_submodule(last_name(network), nn.Identity())
        # On a CPU channels at the end take half the time: 39 images of 224 pixels a second, not 20.
        last = torch.channels_last
        self.network = network.eval().requires_grad_(False).to(memory_format=last)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """The features of images, each of length 1; those that are not finite are 0."""
        return normalize(self.network(images).float()).nan_to_num(0.0, 0.0, 0.0)

    @torch.no_grad()
    def check(self, random: Tensor) -> None:
        """Refuse weights of no use, by images of random pixels uint8 [N, C, H, W].

        Raises:
            ModelError: Their features are not finite.
        """
        if not normalize(self.network(random).float()).isfinite().all():
            raise ModelError(
                "The frozen network gives features that are not finite: choose other weights "
                "('pretrained') or another 'model'."
            )
