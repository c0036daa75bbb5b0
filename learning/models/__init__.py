"""The networks that hospitals hand on, and the description that each is built from.

To add one, write a file with a function from `Architecture` to network and name it in `MODELS`.
Torchvision and timm are imported only for their own networks, because that takes seconds.
Notation of shapes: `N` images of `C` channels and `H`×`W` pixels, `K` classes.
"""

import difflib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, lru_cache, partial

import torch
from torch import nn

from learning.errors import ModelError
from learning.models.embedding import EmbeddingNetwork
from learning.models.frozen import head, use_unit_features
from learning.models.pixels import SCALES, put_channels_last, scale_input
from learning.models.rotation import rotation_network, rotation_resnet18
from learning.models.saliency import SER_NETWORKS
from learning.models.small import cnn, mlp, resnet18_32
from learning.models.timm_model import TIMM, timm_config, timm_model
from learning.randomness import NoMemory, ZeroDraws
from strategies.protocol.settings import MAX_SIDE
from strategies.protocol.shapes import ShapeError, from_json

MAX_SIZE = 2**20  # of a layer, and of a number of classes
MAX_LAYERS = 100  # hidden layers of an mlp
HEAD = "head"  # the one network for features
_OPTIONAL = ("frozen", "whole", "unit_features")
# Libraries of networks raise these for sizes that they do not support.
_FAILURES = (ArithmeticError, AssertionError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class Architecture:
    """The description of a network; it travels with the weights.

    A head on features (`train.freeze`) also has the description of the whole network: a frozen
    body, features of length 1, and the head.

    Raises:
        ModelError: No model has this name, or a size is out of range.
    """

    name: str  # a key of MODELS, HEAD, one of torchvision's, or TIMM and one of timm's
    channels: int
    height: int  # pixels
    width: int  # pixels
    classes: int
    hidden: tuple[int, ...] = ()  # widths of the mlp's hidden layers; other models ignore it
    pixels: str = "unit"  # a key of SCALES: how bytes become numbers
    frozen: str = ""  # SHA-256 of all weights but the last layer's, if these are frozen
    whole: str = ""  # of a head: the description, as JSON, of the network that it completes
    unit_features: bool = False  # of a network that trains: see `has_unit_features`

    def __post_init__(self) -> None:
        sides, sizes = self.image_shape, (self.classes, *self.hidden)
        fits = min(*sides, *sizes) > 0 and max(sides) <= MAX_SIDE and max(sizes) <= MAX_SIZE
        if not fits or len(self.hidden) > MAX_LAYERS:
            raise ModelError(
                f"A network has at most {MAX_LAYERS} hidden layers, sizes from 1 to {MAX_SIZE}, "
                f"images of 1 to {MAX_SIDE} channels and pixels a side, or as many features."
            )
        if self.pixels not in SCALES:
            known = ", ".join(SCALES)
            raise ModelError(f"There is no scale of pixels {self.pixels!r}; choose one of {known}.")
        if (self.name == HEAD) != (self.pixels == "features"):
            raise ModelError(f"The network '{HEAD}' is for features, and the others for images.")
        if self.pixels == "imagenet" and self.channels != 3:
            raise ModelError(
                f"The scale of pixels 'imagenet' is for 3 channels, and the images have "
                f"{self.channels}: set 'image-channels' to 3."
            )
        if self.name.startswith(TIMM):
            timm_config(self.name)
        elif self.name not in (HEAD, *MODELS) and self.name not in torchvision_names():
            near = difflib.get_close_matches(self.name, torchvision_names()) or ["resnet18"]
            ours = ", ".join(name for name in MODELS if name.count("-") < 2)  # without schemes
            raise ModelError(
                f"There is no model {self.name!r}; choose {ours} or a torchvision "
                f"classification model, such as {' or '.join(near)}."
            )

    def build(self) -> nn.Module:
        """A new network, images uint8 [N, C, H, W] -> logits [N, K].

        Its weights are drawn from torch's global generator: build it inside `use_seed`.

        Raises:
            ModelError: There is no such network for such images; the message gives the reason.
        """
        network: nn.Module
        try:
            if self.name == HEAD:
                network = head(self)
            elif self.name in MODELS:
                network = MODELS[self.name](self)
            elif self.name.startswith(TIMM):
                network = timm_model(self)
            else:
                from learning.models.torchvision_model import torchvision_model

                network = torchvision_model(self)
        except _FAILURES as error:
            raise self._refuse(error) from error
        scale_input(network, self.pixels)
        if self.name not in (HEAD, *MODELS):
            put_channels_last(network)
        if self.has_unit_features:
            use_unit_features(network)
        return network

    def blank(self) -> nn.Module:
        """The network with zeros as weights: faster to build, and enough to load weights into."""
        with ZeroDraws():  # type: ignore[no-untyped-call]
            return self.build()

    def skeleton(self) -> nn.Module:
        """The network on the device `meta`: shapes and types, and no memory."""
        with NoMemory():
            return self.build()

    def _refuse(self, error: Exception) -> ModelError:
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".!")
        return ModelError(
            f"The model {self.name!r} cannot take {self.channels}x{self.height}x{self.width} "
            f"images: {reason}. Choose another model or image-size."
        )

    @property
    def has_unit_features(self) -> bool:
        """Whether the last layer sees features of length 1: the body is frozen, or was before."""
        return self.unit_features or bool(self.frozen)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.channels, self.height, self.width

    def head(self, features: int) -> "Architecture":
        """The description of this network's head, which takes features of its frozen body."""
        whole = self.to_json()
        return Architecture(HEAD, features, 1, 1, self.classes, pixels="features", whole=whole)

    def to_json(self) -> str:
        """The description as JSON; without the facts of frozen networks if there are none."""
        facts = asdict(self)
        return json.dumps({key: facts[key] for key in facts if key not in _OPTIONAL or facts[key]})

    @classmethod
    @lru_cache(maxsize=8)  # every arriving model has a description
    def from_json(cls, text: str) -> "Architecture":
        """Read a description from JSON, perhaps of another version.

        Raises:
            ModelError: A key is missing, unknown or of another type, or no model has the name.
        """
        try:
            return from_json(text, cls)
        except ShapeError as error:
            raise ModelError(
                f"The architecture {text!r:.200} cannot be used: {error}. Do all hospitals run the "
                "same version of this app?"
            ) from error


@lru_cache(maxsize=8)
def layout(architecture: Architecture) -> dict[str, torch.Tensor]:
    """The state dict of a network, without memory for it.

    Raises:
        ModelError: There is no such network.
    """
    return architecture.skeleton().state_dict()


@lru_cache(maxsize=8)
def activations(architecture: Architecture) -> tuple[int, int]:
    """Bytes that training keeps for an image until the backward pass: all, and the largest.

    They are counted on the device `meta`: a pass there computes shapes and takes no memory.

    Raises:
        ModelError: The model cannot train on such images; the message gives torch's reason.
    """
    images = torch.empty((2, *architecture.image_shape), dtype=torch.uint8, device="meta")
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    network = architecture.skeleton().to("meta")
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            network(images)
    except _FAILURES as error:
        raise architecture._refuse(error) from error
    weights = {each.untyped_storage()._cdata for each in network.state_dict().values()}
    storages = {each.untyped_storage()._cdata: each.untyped_storage() for each in kept}
    sizes = [each.nbytes() // 2 for key, each in storages.items() if key not in weights]
    return sum(sizes), max(sizes, default=0)


MODELS: dict[str, Callable[[Architecture], nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet18-32": resnet18_32,
    "ebr": partial(EmbeddingNetwork, parts=1),  # f(x)
    "vee": partial(EmbeddingNetwork, parts=2),  # µ and log σ
    "rotation-mlp": partial(rotation_network, backbone=mlp),
    "rotation-cnn": partial(rotation_network, backbone=cnn),
    "rotation-resnet18": rotation_resnet18,
    **SER_NETWORKS,
}


@cache
def torchvision_names() -> list[str]:
    """The classification models of torchvision."""
    from torchvision import models

    return list(models.list_models(models))
