"""A model as a file: weights in the safetensors format, with a manifest in its header.

The header's entry `fedhandoff` is the manifest as JSON, so a model keeps its description. An ONNX
file has the same text in its metadata.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from learning.errors import ModelError
from learning.models import Architecture, layout
from learning.packing import check_layout
from strategies.protocol.archive import MOST
from strategies.protocol.code import code_hash
from strategies.protocol.extras import install_command
from strategies.protocol.files import open_checked, replacing
from strategies.protocol.parcel import Manifest
from strategies.protocol.settings import Settings
from strategies.protocol.shapes import SHAPE, ShapeError, from_json

ENTRY = "fedhandoff"
FORMAT = 1
ONNX = ".onnx"  # the end of the name of such a file
# How images get their size. Other methods change answers: for 64 and 28 pixels, bicubic
# interpolation changes 0.7 to 5 % of them, and the nearest pixel 4 to 7.5 %.
RESIZED = (
    "bilinear, antialiased (torch interpolate, or Pillow's BILINEAR), for a JPEG after Pillow's "
    "draft to twice the size"
)
FORM = ("image-size", "image-fit", "image-channels")  # how images are prepared
# The settings that choose a hospital's test images.
SPLIT = (
    "seed",
    "test-fraction",
    "test-balanced",
    "test-per-class",
    "validation-fraction",
    "num-folds",
    "fold",
)


@dataclass(frozen=True)
class ModelManifest:
    """The description and the origin of an exported model."""

    lineage: str  # identity during the run, named after the model's first hospital
    architecture: str  # the network as JSON (learning.models.Architecture)
    classes: list[str]  # names of the classes, in the order of the network's outputs
    # The strategy, and the run's settings for the preparation of images and for the choice of test
    # images
    settings: dict[str, Any] = field(metadata={SHAPE: dict[str, bool | int | float | str]})
    run: str  # name of the run
    round: int  # round of its last visit, from 1; 0 before the first
    hop: int  # hop of that visit
    epochs: int  # passes over the images at that visit
    visited: list[str]  # hospitals that trained it, in order; empty if a server averaged it
    parcel: str  # SHA-256 of the model in its parcel
    # Known numbers of images, by hospital: for `train` and `test`, of each class (`train/<class>`),
    # and of groups, such as patients (`train-groups`)
    images: dict[str, dict[str, float]] = field(default_factory=dict)
    # Figures on a hospital's own test images, by hospital, with the names in
    # `strategies.protocol.may_leave.METRICS`
    tested: dict[str, dict[str, float]] = field(default_factory=dict)
    date: str = ""  # time of writing, UTC
    code: str = ""  # `code_hash` of the code that wrote it
    format: int = FORMAT  # version of this format
    # Sources of the synthetic images in its training, as "<place in visited>=<hospital>"
    replayed: list[str] = field(default_factory=list)
    # Visits with other images than the hospital's own, as "<place in visited>=<`everyone`, `public`
    # or `none`>"
    not_own: list[str] = field(default_factory=list)
    resized: str = RESIZED  # interpolation of the images
    tasks: int = 1  # number of tasks in which the run's images arrived

    @classmethod
    def from_label(
        cls,
        label: Manifest,
        settings: Settings,
        run: str,
        images: dict[str, dict[str, float]] | None = None,
        tested: dict[str, dict[str, float]] | None = None,
    ) -> "ModelManifest":
        """The manifest of a model, from its parcel's label and its run, dated now."""
        config = settings.run_config
        # A head on features is exported with its frozen body.
        architecture = Architecture.from_json(label.architecture).whole or label.architecture
        same = ("lineage", "classes", "round", "hop", "epochs", "visited", "replayed", "not_own")
        return cls(
            **{name: getattr(label, name) for name in same},
            architecture=architecture,
            settings={key: config[key] for key in ("strategy", *FORM, *SPLIT)},
            run=run,
            parcel=label.hash_of["model"],
            images=images or {},
            tested=tested or {},
            date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            code=code_hash(),
            tasks=settings.tasks,
        )

    @property
    def network(self) -> Architecture:
        """The description of the network.

        Raises:
            ModelError: It is unknown, or does not fit the manifest's classes or image-size.
        """
        architecture = Architecture.from_json(self.architecture)
        if architecture.classes != len(self.classes):
            raise ModelError(
                f"The model has {architecture.classes} outputs and {len(self.classes)} classes."
            )
        size, sides = self.settings["image-size"], {architecture.height, architecture.width}
        if size and sides != {size}:
            raise ModelError(
                f"The model is for images of {architecture.height}x{architecture.width} pixels, "
                f"and 'image-size' is {size!r}."
            )
        return architecture

    @property
    def age(self) -> tuple[int, int, int]:
        """Round, hop and epochs: greater for a later model of the same lineage."""
        return self.round, self.hop, self.epochs

    def to_json(self) -> str:
        """The manifest as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ModelManifest":
        """Read a manifest from JSON.

        Raises:
            ModelError: The text is no manifest, or has another format.
        """
        try:
            found = from_json(text, cls)
            if found.format != FORMAT or found.settings.keys() != {"strategy", *FORM, *SPLIT}:
                raise ShapeError(f"it is of format {found.format}")
        except ShapeError as error:
            raise ModelError(
                f"The manifest of the model is not one of format {FORMAT} ({error}): was the file "
                "written by another version of fedhandoff?"
            ) from error
        return found


def save_model(path: Path, network: nn.Module, manifest: ModelManifest) -> None:
    """Write a model to a file that only its owner can read.

    Raises:
        OSError: It cannot be written.
    """
    state = {name: tensor.cpu().contiguous() for name, tensor in network.state_dict().items()}
    with replacing(path) as draft:
        try:
            save_file(state, draft, {ENTRY: manifest.to_json(), "format": "pt"})
        except SafetensorError as error:
            raise OSError(str(error)) from error
        draft.chmod(0o600)


def read_manifest(path: Path) -> ModelManifest:
    """The manifest of a file that `save_model` wrote, without its weights.

    Raises:
        ModelError: The file is no such model.
    """
    with _open(path) as (_, manifest):
        return manifest


def read_state(path: Path) -> tuple[dict[str, Tensor], ModelManifest]:
    """The weights and the manifest of a file that `save_model` wrote, without a check of either.

    Raises:
        ModelError: The file is no such model.
    """
    with _open(path) as (file, manifest):
        return {name: file.get_tensor(name) for name in file.keys()}, manifest  # noqa: SIM118


def load_model(path: Path) -> tuple[nn.Module, ModelManifest]:
    """The network and the manifest of a file that `save_model` wrote.

    Raises:
        ModelError: The file is no such model, its architecture is unknown, or a weight is not
            finite.
        ParcelError: The weights do not fit the architecture.
    """
    state, manifest = read_state(path)
    # Before the network is built: a file may describe a huge one.
    check_layout(state, layout(manifest.network), f"The model of lineage '{manifest.lineage}'")
    if not all(weights.isfinite().all() for weights in state.values()):
        raise ModelError(
            f"The model of lineage '{manifest.lineage}' has weights that are not finite numbers."
        )
    network = manifest.network.blank()
    network.load_state_dict(state)
    return network.eval(), manifest


@contextmanager
def _open(path: Path) -> Iterator[tuple[Any, ModelManifest]]:
    try:
        with open_checked(path, MOST), safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(ENTRY)
            if text is None:
                raise ModelError(
                    "The safetensors file has no manifest: it must be one that fedhandoff wrote."
                )
            yield file, ModelManifest.from_json(text)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ModelError(f"The model cannot be read as a safetensors file ({reason}).") from error


def save_onnx(path: Path, network: nn.Module, manifest: ModelManifest) -> None:
    """Write a model as ONNX: `images` uint8 [n, C, H, W] -> `probabilities` float32 [n, K].

    The caller prepares the images as in the manifest; the model scales their bytes.

    Raises:
        ModelError: The extra `onnx` is not installed.
        OSError: It cannot be written.
    """
    if find_spec("onnxscript") is None:
        raise ModelError(f"To write ONNX, install the extra: {install_command('onnx')}.")
    shape = manifest.network
    images = torch.zeros(2, *shape.image_shape, dtype=torch.uint8)
    program = torch.onnx.export(
        nn.Sequential(network, nn.Softmax(dim=1)).eval(),
        (images,),
        input_names=["images"],
        output_names=["probabilities"],
        dynamic_shapes=({0: torch.export.Dim("n")},),
        verbose=False,
    )
    assert program is not None  # it is None with dynamo=False
    program.model.metadata_props[ENTRY] = manifest.to_json()
    with replacing(path) as draft:
        program.save(draft)
        draft.chmod(0o600)
