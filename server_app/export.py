"""Exports a model of an open run as a file of its own, with its card.

No run needs this file. It is the only one here that computes with models; its imports take seconds.
"""

from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import quote

from strategies.engine.events import LOG, UNDO, read_events
from strategies.protocol.archive import ArchiveError
from strategies.protocol.parcel import Manifest, check_parcel, is_sealed, load
from strategies.protocol.records import ParcelError
from strategies.protocol.run_config import read_config
from strategies.protocol.settings import Settings, SettingsError
from strategies.registry import strategy_of

LONGEST = 300  # letters of a reason: settings of another version may lack a hundred keys
COUNTS = {
    "num-train": "train",
    "num-test": "test",
    "num-train-patients": "train-groups",
    "num-test-patients": "test-groups",
}


def export(result: Path, lineage: str, to: Path) -> Path:
    """Write a model of a run as safetensors or ONNX, and its card beside it; returns the card.

    Raises:
        SettingsError: The run or the model does not exist, or another version wrote the settings.
        ArchiveError, ParcelError, ModelError: The parcel is damaged, sealed or incomplete; or the
            extra for ONNX is missing.
        OSError: A file cannot be read or written.
    """
    import torch

    from learning.export import ONNX, ModelManifest, save_model, save_onnx
    from learning.model_card import write_card
    from learning.models import Architecture
    from learning.models.whole import whole_network
    from learning.packing import unpack_network

    path = result / "parcels" / f"{quote(lineage, safe=' ')}.npz"
    if not path.is_file():
        there = sorted(each.stem for each in path.parent.glob("*.npz"))
        if not there:
            raise SettingsError(f"{result} is not the result directory of a run with models.")
        raise SettingsError(
            f"The run has no model '{lineage}' in {path.parent}; choose one of {', '.join(there)}."
        )
    try:
        parcel = load(path)
        label = check_parcel(parcel)
    except (ArchiveError, ParcelError) as error:
        raise ParcelError(f"{path} is damaged: {error}") from error
    if is_sealed(parcel.array_records["model"]):
        raise ParcelError(
            "The models of this run are sealed: only its hospitals can open them, with "
            "`fedhandoff open`."
        )
    config = result / "config.toml"
    try:
        settings = Settings.parse(read_config(config))
    except SettingsError as error:
        text = f"{config} is damaged, or of another version ({error!s:.{LONGEST}})."
        raise SettingsError(text) from error
    if settings.strategy == "fedbn":
        raise ParcelError(
            "The models of fedbn are not complete here: BatchNorm layers stay at the hospitals. "
            "Export the model that a hospital keeps, with --hospital. A simulation keeps none."
        )
    images, tested = _counts_and_figures(result / LOG, label)
    if strategy_of(settings).keeps_layers:
        tested = {}  # each hospital tested its own classifier for home
    manifest = ModelManifest.from_label(label, settings, result.resolve().name, images, tested)
    network = unpack_network(parcel, label, {}, torch.device("cpu"))
    network = whole_network(network, Architecture.from_json(label.architecture), settings)
    (save_onnx if to.suffix == ONNX else save_model)(to, network, manifest)
    return write_card(to, manifest)


def _counts_and_figures(metrics: Path, label: Manifest) -> tuple[dict[str, Any], dict[str, Any]]:
    """The image counts of each hospital, and its figures of the model since its last visit."""
    images: dict[str, Any] = {}
    tested: dict[str, Any] = {}
    trained: set[str] = set()
    for event in read_events(metrics):
        if event.verb == UNDO and event.lineage == label.lineage:
            tested = {}  # the copy before may have the same hop
        if event.outcome != "ok":
            continue
        figures = {key: value for key, value in event.metrics.items() if isfinite(value)}
        if event.verb == "query.prepare":
            names = COUNTS | {
                f"{part}-images-of-class-{k}": f"{part}/{name}"
                for part in ("train", "test")
                for k, name in enumerate(label.classes)
            }
            counts = {name: figures[key] for key, name in names.items() if key in figures}
            images[event.hospital] = counts
        if event.verb.startswith("train"):
            trained.add(event.hospital)
            if event.lineage == label.lineage:  # hospitals have tested an older model
                tested = {}
        version = (event.lineage, event.hop, event.epochs)
        # A log that was cut has tests of an older copy, which may have the same hop.
        newest = version == (label.lineage, label.hop, label.epochs) and event.round >= label.round
        if event.verb == "evaluate" and newest:
            tested[event.hospital] = {
                key: value for key, value in figures.items() if not key.startswith("seconds-")
            }
    # The label of a mean does not name the hospitals that trained its models.
    took_part = {*label.visited, *tested} if label.visited else trained
    if any(each.endswith("=everyone") for each in label.not_own):
        took_part = {*images}
    return {name: counts for name, counts in images.items() if name in took_part}, tested
