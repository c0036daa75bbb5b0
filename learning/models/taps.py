"""The points of a network just before a non-linearity, to read or to replace; and its last layer.

At a point, features are a map for each channel. `cnn` has a point before every ReLU. A ResNet has
one before the ReLU of its stem, and one before the last ReLU of each of its four stages. Shapes:
`N` images, `K` classes; at point l there are `C_l` channels of `H_l`×`W_l`.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from learning.errors import ModelError
from learning.models.rotation import RotationNetwork

Replace = Callable[[int, Tensor], Tensor]  # the number of a point and the features there


def points(network: nn.Module) -> list[tuple[nn.Module, int]]:
    """Each point: the ReLU after it, and the number of that ReLU's call in a pass, from 1.

    The ReLUs of the network no longer work in place, because that would change the features.

    Raises:
        ModelError: The network has no such points.
    """
    relus = [module for module in network.modules() if isinstance(module, nn.ReLU)]
    for relu in relus:
        relu.inplace = False
    stages = [getattr(network, f"layer{stage}", None) for stage in (1, 2, 3, 4)]
    # One of torchvision's ResNets; in timm's, the ReLUs have other names.
    if hasattr(network, "relu") and all(isinstance(stage, nn.Sequential) for stage in stages):
        # A block has one ReLU, which it calls behind each of its two or three convolutions.
        last = [stage[-1] for stage in stages if stage]
        calls = [3 if hasattr(block, "conv3") else 2 for block in last]
        blocks = [block.relu for block in last]
        return [(network.relu, 1), *zip(blocks, calls, strict=True)]
    if isinstance(network, nn.Sequential) and isinstance(network[0], nn.Conv2d) and relus:
        return [(relu, 1) for relu in relus]
    raise ModelError(
        f"The network {type(network).__name__} has no known points before its non-linearities: "
        "set 'model' to cnn, or to a ResNet of torchvision, such as resnet18."
    )


def tap(
    network: nn.Module, images: Tensor, replace: Replace = lambda point, found: found
) -> tuple[Tensor, list[Tensor]]:
    """Run a network once on images [N, C, H, W], and read the features at its points.

    The results are the logits [N, K], and the old features at each point, [N, C_l, H_l, W_l].
    `replace` gives the new features at a point, from its number (from 0) and the old ones.

    Raises:
        ModelError: The network has no such points.
    """
    taken = points(network)
    found: list[Tensor] = []
    calls = [0] * len(taken)

    def read(point: int, relu: nn.Module, inputs: tuple[Tensor]) -> Tensor | None:
        calls[point] += 1
        if calls[point] != taken[point][1]:
            return None
        found.append(inputs[0])
        return replace(point, inputs[0])

    hooks = [
        relu.register_forward_pre_hook(partial(read, point))
        for point, (relu, _) in enumerate(taken)
    ]
    try:
        logits = network(images)
    finally:
        for hook in hooks:
            hook.remove()
    return logits, found


def last_name(network: nn.Module) -> str:
    """The name of the last layer (`last_layer`) among the modules of a network."""
    names: dict[nn.Module, str] = {module: name for name, module in network.named_modules()}
    return names[last_layer(network)]


def last_layer(network: nn.Module) -> nn.Linear:
    """The linear layer whose outputs are the logits: row c of its weight is for class c.

    Raises:
        ModelError: The network ends otherwise.
    """
    if classifier := getattr(network, "get_classifier", None):  # one of timm
        last = classifier()  # a tuple or a list, if the logits are a mean of several layers
    else:
        *_, last = (module for module in network.modules() if not list(module.children()))
    turned = isinstance(network, RotationNetwork)  # its rows are for classes and turns
    if isinstance(last, nn.Linear) and not turned:
        return last
    raise ModelError(
        f"The network {type(network).__name__} does not end in a linear layer with an output for "
        "each class: set 'model' to cnn, mlp, or a ResNet of torchvision, such as resnet18."
    )
