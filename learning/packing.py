"""Networks, memories and buffers as records, and back.

A network that arrives is checked before it is built: the names, dtypes and shapes of its arrays,
and their numbers (strategies/protocol/soundness.py). So it takes no more memory than the parcel. A
network with absurd numbers does not leave. The images of a buffer travel one below the other in one
PNG picture, which is compressed without loss. Features travel as numbers.
"""

from collections.abc import Container, Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngImageFile
from torch import Tensor, nn

from learning.errors import DivergedError
from learning.models import Architecture, layout
from learning.samples import Samples
from strategies.protocol.archive import values_of
from strategies.protocol.optimizer import flaw_of_state
from strategies.protocol.parcel import Manifest, pack
from strategies.protocol.records import (
    ParcelError,
    UselessError,
    find_record,
    useless_unless_valid,
)
from strategies.protocol.soundness import flaw_of

Arrays = Mapping[str, NDArray[Any]]


def pack_network(
    network: nn.Module,
    manifest: Manifest,
    beside: Mapping[str, ArrayRecord] | None = None,
    withheld: Container[str] = (),
    half: bool = False,
) -> RecordDict:
    """A parcel of a network and of the records beside it, with a label, yet without hashes.

    The state-dict keys `withheld` do not travel. With `half`, floating-point numbers travel in 16
    bits.

    Raises:
        DivergedError: The network is of no use, or is of no use in 16 bits.
    """
    state: dict[str, Tensor] = network.state_dict()
    travelling = {name: tensor for name, tensor in state.items() if name not in withheld}
    if half:
        floats = {name: tensor for name, tensor in travelling.items() if tensor.is_floating_point()}
        travelling |= {name: tensor.half() for name, tensor in floats.items()}
    _check_converged({**state, **travelling})
    return pack({"model": _record(travelling), **(beside or {})}, manifest)


def _check_converged(state: Mapping[str, Tensor]) -> None:
    if flaw := flaw_of(numpy_arrays(state)):
        raise DivergedError(f"Training diverged: {flaw}. Lower train.learning-rate.")


def numpy_arrays(state: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Tensors as NumPy arrays, by name; on a CPU they are not copied."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in state.items()}


def _record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    record = ArrayRecord()  # its constructor would copy each Array
    for name, tensor in tensors.items():
        record[name] = Array(tensor.cpu().numpy())
    return record


def pack_optimizer(state: Mapping[str, Tensor]) -> ArrayRecord:
    """The state of an optimizer, which travels beside the model, as a record.

    Raises:
        DivergedError: The state is of no use.
    """
    if flaw := flaw_of_state(numpy_arrays(state)):
        raise DivergedError(f"Training diverged. {flaw} Lower train.learning-rate.")
    return _record(state)


def pack_memory(memory: Mapping[str, Tensor]) -> ArrayRecord:
    """A method's memory, which travels beside the model, as a record.

    Raises:
        DivergedError: The memory is of no use.
    """
    _check_converged(memory)
    return _record(memory)


def unpack_memory(record: ArrayRecord, lineage: str, device: torch.device) -> dict[str, Tensor]:
    """A method's memory from a record; the learner checks names and shapes.

    Raises:
        UselessError: The memory is of no use.
    """
    memory = unpack_arrays(record, device)
    _check_sound(memory, f"The memory of lineage '{lineage}'")
    return memory


def unpack_arrays(record: ArrayRecord, device: torch.device) -> dict[str, Tensor]:
    """The arrays of a record as tensors of their own."""
    return {name: torch.from_numpy(values_of(each)).to(device) for name, each in record.items()}


def unpack_network(
    parcel: RecordDict, manifest: Manifest, local: Arrays, device: torch.device
) -> nn.Module:
    """The network of a parcel, completed with the arrays that stayed local.

    The next parcel of the same architecture gets the same module with other weights.

    `check_parcel` has accepted the parcel. The local arrays, by state-dict key, replace arriving
    ones.

    Raises:
        UselessError: The arrays do not fit the architecture, or their numbers are of no use.
        ParcelError: The local arrays do not fit.
        ModelError: The architecture is unknown.
    """
    model = find_record(parcel, "model", ArrayRecord) or ArrayRecord()
    arrived = {name: torch.from_numpy(values_of(array)) for name, array in model.items()}
    arrived |= {name: each.float() for name, each in arrived.items() if each.dtype == torch.float16}
    state = arrived | {name: torch.from_numpy(each) for name, each in local.items()}
    what = f"The model of lineage '{manifest.lineage}'"
    architecture = Architecture.from_json(manifest.architecture)
    expected = layout(architecture)
    with useless_unless_valid():
        left_out = local.keys() - arrived.keys()
        came = {name: like for name, like in expected.items() if name not in left_out}
        check_layout(arrived, came, what)
    check_layout(state, expected, what)
    _check_sound(state, what)
    network, weights = _network(architecture, device)
    for name, tensor in weights.items():  # `load_state_dict` would take ten times as long
        tensor.copy_(state[name])
    return network


@lru_cache(maxsize=2)  # a simulated hospital serves many visits
def _network(
    architecture: Architecture, device: torch.device
) -> tuple[nn.Module, dict[str, Tensor]]:
    """A network, and its state dict, which shares the network's memory."""
    network = architecture.blank().to(device)
    return network, network.state_dict()


def check_layout(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str) -> None:
    """Refuse tensors that differ from others in name, dtype or shape.

    Raises:
        ParcelError: They differ; the message names the tensor, and `what` it belongs to.
    """
    if differing := sorted(state.keys() ^ expected.keys()):
        verb = "lacks" if differing[0] in expected else "has the unknown array"
        raise ParcelError(f"{what} {verb} '{differing[0]}'.")
    for name, tensor in state.items():
        wanted = expected[name]
        if (tensor.shape, tensor.dtype) != (wanted.shape, wanted.dtype):
            raise ParcelError(
                f"{what} has '{name}' as {tensor.dtype} {list(tensor.shape)}; "
                f"this architecture has {wanted.dtype} {list(wanted.shape)}."
            )


def part(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries with names that begin with a prefix, without the prefix."""
    return {
        name.removeprefix(prefix): each for name, each in state.items() if name.startswith(prefix)
    }


def _check_sound(state: Mapping[str, Tensor], what: str) -> None:
    if flaw := flaw_of(numpy_arrays(state)):
        raise UselessError(f"{what} is of no use: {flaw}.")


def pack_buffer(samples: Samples, dossier: str) -> ArrayRecord:
    """Write synthetic images as a record, with the SHA-256 of the dossier of their release.

    Features are its array `features`, float32 [n, d], in the place of `images`.
    """
    labels = samples.labels.cpu().numpy()
    hash_ = np.frombuffer(bytes.fromhex(dossier), dtype=np.uint8)
    arrays = {"labels": labels, "dossier": hash_}
    if samples.pixels.is_floating_point():
        arrays["features"] = samples.images.flatten(1).cpu().numpy()
    else:
        channels, _, width = samples.shape
        column = samples.images.permute(0, 2, 3, 1).reshape(-1, width, channels)  # [n·H, W, C]
        file = BytesIO()
        Image.fromarray(column.squeeze(2).cpu().numpy()).save(file, "PNG")  # grey has no C
        arrays["images"] = np.frombuffer(file.getvalue(), dtype=np.uint8)
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def dossier_hash(record: ArrayRecord) -> str:
    """The SHA-256 of the dossier that a buffer names.

    Raises:
        ParcelError: The buffer names none.
    """
    hash_ = record["dossier"].numpy() if "dossier" in record else np.empty(0)
    if hash_.dtype != np.uint8 or hash_.shape != (32,):
        raise ParcelError("A buffer names no dossier by its SHA-256.")
    return str(hash_.tobytes().hex())


def unpack_buffer(record: ArrayRecord, like: Samples, classes: int, size: int) -> Samples:
    """The synthetic images of a record that came from another hospital.

    There must be `size` images, of the shape of the hospital's own images `like`; or features, if
    these are features.

    Raises:
        ParcelError: The record is not such a buffer.
    """
    kind = "features" if like.pixels.is_floating_point() else "images"
    if set(record) != {kind, "labels", "dossier"}:
        raise ParcelError(
            f"A buffer has the arrays {sorted(record)!s:.200}, not {kind}, labels and dossier."
        )
    dossier_hash(record)
    drawn, labels = (torch.from_numpy(values_of(record[name])) for name in (kind, "labels"))
    if (labels.dtype, labels.shape) != (torch.int64, (size,)):
        raise ParcelError(
            f"A buffer has {labels.dtype} {list(labels.shape)} labels; they must be int64 [{size}] "
            "(feder.buffer-size)."
        )
    if size and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ParcelError(f"A buffer has labels outside of 0 to {classes - 1}.")
    images = (_features if kind == "features" else _images)(drawn, like.shape, size)
    return Samples(images, labels)


def _features(drawn: Tensor, shape: tuple[int, int, int], size: int) -> Tensor:
    """The features float32 [n, d, 1, 1] of a buffer, from an array [n, d]."""
    wanted = (size, shape[0])
    if (drawn.dtype, drawn.shape) != (torch.float32, wanted):
        raise ParcelError(
            f"A buffer has {drawn.dtype} {list(drawn.shape)} features; they must be float32 "
            f"{list(wanted)}, as this hospital's."
        )
    if not ((drawn.norm(dim=1) - 1).abs() < 1e-3).all():  # false for NaN
        raise ParcelError("A buffer has features that do not have length 1.")
    return drawn[:, :, None, None]


def _images(drawn: Tensor, shape: tuple[int, int, int], size: int) -> Tensor:
    """The images uint8 [n, C, H, W] of a buffer, from the bytes of a picture."""
    channels, height, width = shape
    if drawn.dtype != torch.uint8:
        raise ParcelError(f"A buffer has {drawn.dtype} images; they must be uint8.")
    try:
        # `Image.open` would refuse a column of hundreds of large images as a decompression bomb.
        with PngImageFile(BytesIO(drawn.numpy().tobytes())) as column:
            # The check comes before the decoding: a large picture could fill the memory.
            found, mode = (column.mode, *column.size), "L" if channels == 1 else "RGB"
            if found != (mode, width, size * height):
                setting = "image-channels" if column.mode != mode else "image-size"
                raise ParcelError(
                    f"A buffer's images are {found}, not {size} of {channels}x{height}x{width}, as "
                    f"this hospital's: set {setting} for the whole run."
                )
            images = torch.from_numpy(np.array(column)).view(size, height, width, channels)
    except ParcelError:
        raise
    except Exception as error:  # Pillow fails in many ways
        raise ParcelError("A buffer's images are not a PNG picture.") from error
    return images.permute(0, 3, 1, 2).contiguous()
