"""The whole network behind a head on features: a frozen body, features of length 1, and the head.

A run with `train.freeze = "body"` hands on heads. A hospital keeps, exports and applies the whole
network, which takes bytes like any other.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from learning.errors import ModelError
from learning.models import Architecture
from learning.models.frozen import weights_hash
from learning.models.preprocessing import pixels_of
from learning.models.taps import last_name
from learning.randomness import use_seed
from strategies.protocol.settings import Settings, rng_for


def frozen_network(settings: Settings, shape: Sequence[int]) -> tuple[nn.Module, Architecture]:
    """The network whose body a run freezes, for images of a shape (C, H, W); and its description.

    Its weights are those of `pretrained`, or random ones that the seed decides. It has two classes,
    because the federation's are not known yet, and its last layer is of no use.

    Raises:
        ModelError: The network cannot be built, or the weights are missing or do not fit it.
    """
    channels, height, width = shape
    # Other models ignore these widths, and their features are not computed again for new ones.
    hidden = settings.mlp.widths if settings.model == "mlp" else ()
    pixels = pixels_of(settings, settings.model)
    whole = Architecture(settings.model, channels, height, width, 2, hidden, pixels)
    with use_seed(rng_for(settings.seed, "body")):
        network = whole.build()
    if settings.pretrained:
        from learning.models.pretrained import load_pretrained  # also imports torchvision

        load_pretrained(network, whole, settings.pretrained)
    return network, replace(whole, frozen=weights_hash(network, whole))


def whole_network(head: nn.Module, architecture: Architecture, settings: Settings) -> nn.Module:
    """The network that a head completes: images uint8 [N, C, H, W] -> logits [N, K].

    The head is on any device; a network for images is returned as it is.

    Raises:
        ModelError: The frozen weights are missing here, or are not those of the run.
    """
    if not architecture.whole:
        return head
    whole = Architecture.from_json(architecture.whole)
    frozen, ours = frozen_network(settings, whole.image_shape)
    if ours.frozen != whole.frozen:
        raise ModelError(
            f"The head is for frozen weights with the SHA-256 {whole.frozen}, and those of "
            f"'pretrained' ({settings.pretrained!r}) have {ours.frozen}: name the file of the run."
        )
    network = whole.blank()
    name = last_name(network)
    own = {f"{name}.{each}": head.state_dict()[f"1.{each}"] for each in ("weight", "bias")}
    network.load_state_dict({**frozen.state_dict(), **own})
    return network.eval()
