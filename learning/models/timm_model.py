"""Every network of the library timm, as the model `timm:NAME`; needs the extra `timm`.

The import takes seconds, so it waits until such a model is used. Nothing is downloaded here.
"""

import difflib
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torch import nn

from learning.errors import ModelError
from strategies.protocol.extras import install_command

if TYPE_CHECKING:
    from learning.models import Architecture

TIMM = "timm:"  # the start of a model's name


@lru_cache(maxsize=64)
def timm_config(name: str) -> Any:
    """Timm's `PretrainedCfg` of a model, such as "timm:resnet18": its weights and their images.

    Raises:
        ModelError: The extra `timm` is not installed, or there is no such model.
    """
    if find_spec("timm") is None:
        raise ModelError(
            f"The model {name!r} is one of the library timm: install the extra "
            f"({install_command('timm')})."
        )
    import timm

    wanted = name.removeprefix(TIMM)
    try:
        return timm.get_pretrained_cfg(wanted, allow_unregistered=False)
    except RuntimeError as error:
        near = difflib.get_close_matches(wanted, timm.list_models()) or ["resnet18"]
        raise ModelError(
            f"timm has no model {wanted!r}; choose one of its models, such as "
            f"{' or '.join(TIMM + each for each in near)}."
        ) from error


def timm_model(architecture: "Architecture") -> nn.Module:
    """The model of timm, untrained, for the architecture's channels and classes.

    Raises:
        ModelError: See `timm_config`.
    """
    fixed = timm_config(architecture.name).fixed_input_size
    sides: Any = {"img_size": (architecture.height, architecture.width)} if fixed else {}
    import timm

    network: Any = timm.create_model(
        architecture.name.removeprefix(TIMM),
        pretrained=False,
        num_classes=architecture.classes,
        in_chans=architecture.channels,
        **sides,
    )
    # timm draws the head of an EfficientNet as for 1000 classes: with 7, logits would be above 5,
    # and fine-tuning would first have to undo this.
    if isinstance(head := network.get_classifier(), nn.Linear):
        head.reset_parameters()
    assert isinstance(network, nn.Module)
    return network
