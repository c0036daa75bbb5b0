"""Networks into parcels and back.

A network that arrives is checked before a byte of it is used: label and hashes, then names, dtypes,
shapes and finiteness of its arrays. One that is not finite does not leave.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor, nn

from client_app.errors import DivergedError
from client_app.learners.plain import Plain
from client_app.models import Architecture
from strategies.parcel import Manifest, ParcelError, pack

Arrays = dict[str, NDArray[Any]]


def pack_network(
    network: nn.Module, learner: type[Plain], manifest: Manifest
) -> tuple[RecordDict, Arrays]:
    """Make a parcel of what may travel.

    Returns:
        The parcel, and the arrays that stay home with this learner.

    Raises:
        DivergedError: The network is not finite.
    """
    state: dict[str, Tensor] = network.state_dict()
    if infinite := [name for name, tensor in state.items() if not torch.isfinite(tensor).all()]:
        raise DivergedError(
            f"Training diverged: '{infinite[0]}' is not finite. Try a smaller train.learning-rate."
        )
    arrays = {name: tensor.cpu().numpy() for name, tensor in state.items()}
    home = learner.stays_home(network)
    model = ArrayRecord({name: Array(a) for name, a in arrays.items() if name not in home})
    return pack({"model": model}, manifest), {name: arrays[name] for name in home}


def unpack_network(
    parcel: RecordDict, manifest: Manifest, home: Arrays, device: torch.device
) -> nn.Module:
    """The network of a parcel, completed with what stayed home.

    The module that is returned serves again for the next parcel of the same architecture.

    Args:
        parcel: Has passed `check_parcel`, which gave `manifest`.
        manifest: Its label.
        home: Arrays that stayed home at the last visit.
        device: Where the network shall be.

    Raises:
        ParcelError: The arrays are not those of the architecture, or not finite.
        ModelError: The architecture is unknown.
    """
    network = _network(manifest.architecture, device)
    arrays = {name: array.numpy() for name, array in parcel.array_records["model"].items()} | home
    state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    _check_state(state, network.state_dict(), manifest.lineage)
    network.load_state_dict(state)
    return network


@lru_cache(maxsize=2)  # a simulated hospital serves many visits
def _network(architecture: str, device: torch.device) -> nn.Module:
    return Architecture.from_json(architecture).blank().to(device)


def _check_state(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], lineage: str) -> None:
    if differing := sorted(state.keys() ^ expected.keys()):
        verb = "lacks" if differing[0] in expected else "has the unknown array"
        raise ParcelError(f"The model of lineage '{lineage}' {verb} '{differing[0]}'.")
    for name, tensor in state.items():
        wanted = expected[name]
        if (tensor.shape, tensor.dtype) != (wanted.shape, wanted.dtype):
            raise ParcelError(
                f"'{name}' of lineage '{lineage}' is {tensor.dtype} {list(tensor.shape)}; "
                f"this architecture has {wanted.dtype} {list(wanted.shape)}."
            )
        if not torch.isfinite(tensor).all():
            raise ParcelError(f"'{name}' of lineage '{lineage}' is not finite.")
