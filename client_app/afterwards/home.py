"""The models that a hospital has at home, in its store, each with its manifest.

    models/<run>/<lineage>.safetensors             models after the last round
    models/<run>/own/<site>.safetensors            the hospital's model before the first hand-off
    models/<run>/alone/<site>.safetensors          its model after equal training alone (`alone`)
    models/<run>/ensemble.json                     test figures of the models' mean
    models/<run>/mixture.json                      weight of each model in the mixture for home
    models/<run>/visits/<lineage>-<round>-<hop>.safetensors    models after a visit here

The node-config `keep` chooses: `final`, `visits` (also after visits), or `none`. A failure to write
a model never stops a run: the model is missing here, and the hospital's log gives the reason.
"""

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import isclose
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from client_app.authority.limits import check_disk
from client_app.authority.policy import PolicyError
from client_app.datasets import LocalData
from client_app.datasets.pool import Indices, large_class_rows
from client_app.errors import line_of
from client_app.hospital import Hospital
from client_app.release.disclosure import Disclosure, Noised
from client_app.request import Inquiry
from client_app.store import own_folder
from learning.errors import ModelError
from learning.export import ONNX, ModelManifest, load_model, read_manifest, save_model, save_onnx
from learning.mixture import mixture_weights
from learning.model_card import write_card
from learning.models.whole import whole_network
from strategies.protocol.files import FileError, expand, read_bytes, read_json, write_whole
from strategies.protocol.parcel import Manifest
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import SettingsError

SUFFIX, MIXTURE = ".safetensors", "mixture.json"
SIMULATED = (
    "A simulation keeps models and figures in its result folder only; see report.html there. To "
    "use a model, write it to a file: `uv run fedhandoff export NAME --result RESULT --to "
    "model.safetensors`. Then run `predict --model model.safetensors`."
)
LEAST = 0.01  # a mixture leaves out models of a smaller weight


def keep_tested(
    disclosure: Disclosure, network: nn.Module, label: Manifest, figures: Mapping[str, float]
) -> None:
    """Keep a model and its released figures after its last test.

    If the final models are tested again, an older copy may have replaced a model that is at home.
    """
    request = disclosure.request
    if _keeps_final(request):
        with _suppress_failure(request):
            path = _folder(request) / file_name(label.lineage)
            keep_model(request.hospital, path, network, _manifest(disclosure, label, figures))


def keep_visit(
    disclosure: Disclosure, network: nn.Module, label: Manifest, metrics: Mapping[str, float]
) -> None:
    """Keep a model after a visit to the hospital; after a rewind visit it is not kept."""
    request, name = disclosure.request, "accuracy-after-visit"
    figures = {"accuracy": metrics[name]} if name in metrics else {}
    if figures and isinstance(disclosure, Noised):
        figures["accuracy-noise"] = disclosure.deviations(["accuracy"])["accuracy"]
    if request.hospital.keep == "visits" and not request.is_rewind:
        with _suppress_failure(request):
            file = file_name(label.lineage, f"-{label.round}-{label.hop}")
            path = _folder(request, "visits") / file
            keep_model(request.hospital, path, network, _manifest(disclosure, label, figures))


def keep_own(disclosure: Disclosure, network: nn.Module, label: Manifest) -> None:
    """Keep the hospital's own model, before the first hand-off."""
    request = disclosure.request
    if request.hospital.keep != "none":
        with _suppress_failure(request):
            path = _folder(request, "own") / file_name(request.hospital.name)
            keep_model(request.hospital, path, network, _manifest(disclosure, label, {}))


def keep_mixture(request: Inquiry, scores: Mapping[str, Tensor], own: Tensor | None) -> None:
    """Write the weight of each model in the mixture for home, fitted to the test images.

    `scores` has the probabilities [N, K] of each lineage for these images; `own` those of the
    hospital's model before the first hand-off, None if unknown. There is no mixture if `scores`
    lacks a kept model, as when models are too large to be tested in one message.
    """
    if not _keeps_final(request):
        return
    with _suppress_failure(request):
        folder, site = _folder(request), request.hospital.name
        kept = {path.stem for path in folder.glob(f"*{SUFFIX}")}
        mixed = {name: each for name, each in scores.items() if name in kept}
        if own is not None and (folder / "own" / file_name(site)).exists():
            mixed[f"own/{site}"] = own
        if kept and kept <= mixed.keys():
            write_mixture(folder, mixed, request.hospital.data.test.labels)
        else:
            (folder / MIXTURE).unlink(missing_ok=True)


def write_mixture(folder: Path, scores: Mapping[str, Tensor], labels: Tensor) -> None:
    """Fit the weights of the mixture to the hospital's test images, and write them.

    `scores` has the probabilities [N, K] of each model, by its place in the run's folder; the
    images' labels are int64 [N].

    Raises:
        OSError: The file cannot be written.
    """
    stacked = torch.stack([each.cpu() for each in scores.values()])  # [M, N, K] of M models
    weights = dict(zip(scores, mixture_weights(stacked, labels.cpu()).tolist(), strict=True))
    write_whole(folder / MIXTURE, json.dumps(weights), private=True)


def keep_ensemble(request: Inquiry, figures: Mapping[str, float]) -> None:
    """Write the test figures of the models' mean."""
    if _keeps_final(request):
        content = json.dumps({request.hospital.name: figures})
        with _suppress_failure(request):
            write_whole(_folder(request) / "ensemble.json", content, private=True)


def _keeps_final(request: Inquiry) -> bool:
    return request.order.final and request.hospital.keep != "none"


def _folder(request: Inquiry, *below: str) -> Path:
    return own_folder(
        request.hospital.store.folder.joinpath("models", request.run.folder.name, *below)
    )


def age_of(path: Path) -> tuple[int, ...]:
    """The age of the model in a file; () if there is no file, or a damaged one."""
    with suppress(ModelError):
        return read_manifest(path).age
    return ()


def file_name(lineage: str, ending: str = "") -> str:
    """The name of a model's file; a lineage from a checked label cannot lead out of the folder."""
    return f"{lineage}{ending}{SUFFIX}"


def place_of(file: Path, folder: Path) -> str:
    """The place of a model's file in a folder, without the suffix."""
    return str(file.relative_to(folder).with_suffix(""))


def find_model(store: Path, name: str) -> Path:
    """Find a model's file in the hospital's own folder.

    `name` is a path that ends in .safetensors; or a lineage, for the newest run with it; or a place
    below `models` without the suffix, such as "<run>/<lineage>".

    Raises:
        SettingsError: There is no such model. The message lists the models at home.
    """
    if name.endswith(SUFFIX):
        return expand(name)
    home = store / "models"
    there = {path: place_of(path, home) for path in home.rglob(f"*{SUFFIX}")}
    found = [
        path
        for path, place in there.items()
        if place == name or (path.parent.parent == home and path.stem == name)
    ]
    if not found:
        hint = "" if there else f" {SIMULATED}"
        raise SettingsError(
            f"There is no model '{name}' in {home}: name a file that ends in {SUFFIX}, or one of "
            f"the models there ({', '.join(sorted(there.values())) or 'none'}).{hint}"
        )
    return max(found, key=lambda path: started(store, path.relative_to(home).parts[0]))


def read_mixture(folder: Path) -> dict[Path, float]:
    """Read the mixture in a run's folder: file -> weight, without weights below `LEAST`.

    Raises:
        SettingsError: There is no mixture, or its file is damaged.
    """
    path = folder / MIXTURE
    try:
        weights = read_json(path, dict[str, float])
        if not isclose(sum(weights.values()), 1):
            raise FileError(f"{path} is damaged: its weights do not sum to 1.")
    except FileNotFoundError as error:
        raise SettingsError(
            f"There is no mixture of models in {folder}: name models with --model. A hospital fits "
            "one at the last test of a run without tasks."
        ) from error
    except FileError as error:
        raise SettingsError(f"{error} Move it away.") from error
    least = min(LEAST, 0.5 / len(weights))  # of 100 models or more, all may weigh less than LEAST
    return {folder / (name + SUFFIX): each for name, each in weights.items() if each >= least}


def newest_run(store: Path) -> Path:
    """The folder of the newest run with models at home, in the hospital's own folder.

    Raises:
        SettingsError: No run has models at home.
    """
    runs = [path for path in (store / "models").glob("*") if any(path.glob(f"*{SUFFIX}"))]
    if not runs:
        raise SettingsError(
            f"There is no model in {store / 'models'}: name a file with --model. {SIMULATED}"
        )
    return max(runs, key=lambda path: started(store, path.name))


def started(store: Path, run: str) -> float:
    """The time of a run; `alone` and `open` change its folder of models later."""
    places = (store / "runs" / run / "terms.npz", store / "models" / run, store / "runs" / run)
    return next(place.stat().st_mtime for place in places if place.exists())


def export_model(store: Path, name: str, to: Path) -> Path:
    """Write a model of `find_model` as safetensors or ONNX, and its card beside it.

    Returns the card.

    Raises:
        ModelError, OSError, SettingsError: The model or the file to write cannot be used.
    """
    file = find_model(store, name)
    network, manifest = load_file(file)
    if to.suffix == ONNX:
        save_onnx(to, network, manifest)
    else:
        write_whole(to, read_bytes(file, sys.maxsize))
    return write_card(to, manifest)


def load_file(file: Path) -> tuple[nn.Module, ModelManifest]:
    """The network and the manifest in a model's file.

    Raises:
        ModelError: The model cannot be loaded; the text, for the hospital alone, names the file.
    """
    try:
        return load_model(file)
    except (ModelError, ParcelError) as error:
        raise ModelError(f"{file}: {error}") from error


def count_images(
    data: LocalData, smallest: int = 1, number: Callable[[Indices], float] = len
) -> dict[str, float]:
    """The numbers of a hospital's images and groups, for `ModelManifest.images`.

    Classes of fewer than `smallest` patients are not counted, as in all figures. `number` turns the
    strata of images [n] (`LocalSamples.strata`) into their number.
    """
    counts: dict[str, float] = {}
    for part, samples in (("train", data.train), ("test", data.test)):
        rows = large_class_rows(samples.patients, samples.strata, smallest)
        if not len(rows):
            continue
        counts[part] = float(len(rows))
        labels, strata = samples.labels.cpu().numpy()[rows], samples.strata[rows]
        for k, name in enumerate(data.classes):
            of_class = strata[labels == k]
            if len(of_class) or smallest == 1:
                counts[f"{part}/{name}"] = float(number(of_class))
        if samples.groups is not None:
            counts[f"{part}-groups"] = float(len(np.unique(samples.groups[rows])))
    return counts


def _manifest(
    disclosure: Disclosure, label: Manifest, figures: Mapping[str, float]
) -> ModelManifest:
    hospital = disclosure.request.hospital
    return ModelManifest.from_label(
        label,
        hospital.settings,
        disclosure.request.run.folder.name,
        {hospital.name: count_images(hospital.select_task(0).data, disclosure.smallest)},
        {hospital.name: dict(figures)} if figures else {},
    )


def keep_model(hospital: Hospital, path: Path, network: nn.Module, manifest: ModelManifest) -> None:
    """Write a model, whole, if the policy's `machine.max-disk-gb` leaves room for it.

    Raises:
        ModelError, OSError, PolicyError: The model is not written.
    """
    network = whole_network(network, hospital.architecture, hospital.settings)
    size = sum(tensor.nbytes for tensor in network.state_dict().values())
    check_disk(hospital.machine, hospital.store.folder.parent, size)
    save_model(path, network, manifest)


@contextmanager
def _suppress_failure(request: Inquiry) -> Iterator[None]:
    """Measure the time of the block; log its failure and suppress it."""
    try:
        with request.clock.measure("serialise"):
            yield
    except (OSError, ModelError, PolicyError) as error:
        logging.getLogger("flwr").warning(
            "A model is not kept (%s). Remove models that are no longer needed from the store's "
            "'models', or open the server's parcels later (fedhandoff open).",
            line_of(error),
        )
