"""The models that a hospital has at home, in its store, each with its manifest.

    models/<run>/<lineage>.safetensors             after the last round
    models/<run>/own/<site>.safetensors            the hospital's own, before the first hand-off
    models/<run>/alone/<site>.safetensors          trained alone as long (command `alone`)
    models/<run>/ensemble.json                     what they were worth together
    models/<run>/mixture.json                      how much to make of each of them at home
    models/<run>/visits/<lineage>-<round>-<hop>.safetensors    after a visit of its own

The node-config `keep` says which: `final`, `visits` (both), or `none`. A run is never disturbed: a
model that cannot be written is missing here, and the hospital's log says why.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from client_app.authority.limits import check_disk
from client_app.authority.policy import PolicyError
from client_app.datasets import LocalData
from client_app.datasets.pool import Indices, large_class_rows
from client_app.hospital import Hospital
from client_app.release.disclosure import Disclosure
from client_app.request import Inquiry
from client_app.store import own_folder
from learning.errors import ModelError
from learning.export import ModelManifest, load_model, read_manifest, save_model
from learning.mixture import mixture_weights
from strategies.protocol.files import FileError, read_json, replacing
from strategies.protocol.parcel import Manifest
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import SettingsError

SUFFIX, MIXTURE = ".safetensors", "mixture.json"
SIMULATED = (
    "A simulation leaves its models and figures in its result folder alone, and report.html says "
    "there what they are worth. `uv run python -m server_app export RESULT --model NAME --to "
    "model.safetensors` writes one as a file, which `predict --model model.safetensors` takes."
)
LEAST = 0.01  # models of a smaller weight in a mixture are not asked


def keep_tested(
    disclosure: Disclosure, network: nn.Module, label: Manifest, told: Mapping[str, float]
) -> None:
    """Keep a model that has been tested for the last time, unless a later one is here already.

    Args:
        disclosure: Of the order to test it.
        network: The model.
        label: Of its parcel.
        told: The figures that leave the hospital.
    """
    request = disclosure.request
    if _keeps_final(request):
        with _undisturbed(request):
            path = _folder(request) / file_name(label.lineage)
            manifest = _manifest(disclosure, label, told)
            if age_of(path) <= manifest.age:
                _save(request.hospital, path, network, manifest)


def keep_visit(
    disclosure: Disclosure, network: nn.Module, label: Manifest, told: Mapping[str, float]
) -> None:
    """Keep a model as a visit of the hospital leaves it; another's model is not its own to keep."""
    request, name = disclosure.request, "accuracy-after-visit"
    figures = {"accuracy": told[name]} if name in told else {}
    if request.hospital.keep == "visits" and not request.is_rewind:
        with _undisturbed(request):
            file = file_name(label.lineage, f"-{label.round}-{label.hop}")
            path = _folder(request, "visits") / file
            _save(request.hospital, path, network, _manifest(disclosure, label, figures))


def keep_own(disclosure: Disclosure, network: nn.Module, label: Manifest) -> None:
    """Keep the hospital's own model, before the first hand-off."""
    request = disclosure.request
    if request.hospital.keep != "none":
        with _undisturbed(request):
            path = _folder(request, "own") / file_name(request.hospital.name)
            _save(request.hospital, path, network, _manifest(disclosure, label, {}))


def keep_mixture(request: Inquiry, scores: Mapping[str, Tensor], own: Tensor | None) -> None:
    """Note how much to make of each model at home, by what they say of the test images.

    It is not noted if not all that are kept are known, as where models are too large to be tested
    in one message.

    Args:
        request: Tests models for the last time.
        scores: Probabilities [N, K] of the hospital's test images by each model, by lineage.
        own: The same by its own model, before the first hand-off; None if that is not known.
    """
    if not _keeps_final(request):
        return
    with _undisturbed(request):
        folder = _folder(request)
        place = Path("own", request.hospital.name)
        if own is not None and (folder / place).with_name(file_name(place.name)).exists():
            scores = {**scores, str(place): own}
        kept = {path.stem for path in folder.glob(f"*{SUFFIX}")}
        if kept and kept <= scores.keys():
            write_mixture(folder, scores, request.hospital.data.test.labels)


def write_mixture(folder: Path, scores: Mapping[str, Tensor], labels: Tensor) -> dict[str, float]:
    """Fit how much to make of each model to the hospital's test images, and note it.

    Args:
        folder: Of the run, below `models`.
        scores: Probabilities [N, K] of the images by each model, by its place in the folder.
        labels: What they show, int64 [N].

    Returns:
        The weights, which sum to 1, by place.

    Raises:
        OSError: The note cannot be written.
    """
    said = torch.stack([each.cpu() for each in scores.values()])
    weights = dict(zip(scores, mixture_weights(said, labels.cpu()).tolist(), strict=True))
    with replacing(folder / MIXTURE) as draft:
        draft.touch(mode=0o600)
        draft.write_text(json.dumps(weights))
    return weights


def keep_ensemble(request: Inquiry, told: Mapping[str, float]) -> None:
    """Note what the models that are kept were worth together."""
    if _keeps_final(request):
        with _undisturbed(request), replacing(_folder(request) / "ensemble.json") as draft:
            draft.touch(mode=0o600)
            draft.write_text(json.dumps({request.hospital.name: told}), encoding="utf-8")


def _keeps_final(request: Inquiry) -> bool:
    return request.order.final and request.hospital.keep != "none"


def _folder(request: Inquiry, *below: str) -> Path:
    return own_folder(
        request.hospital.store.folder.joinpath("models", request.run.folder.name, *below)
    )


def age_of(path: Path) -> tuple[int, ...]:
    """That of the model in a file; () if there is none, or a damaged one."""
    with suppress(ModelError):
        return read_manifest(path).age
    return ()


def file_name(lineage: str, ending: str = "") -> str:
    """The name of a model's file; that of a lineage in a checked label leads nowhere else."""
    return f"{lineage}{ending}{SUFFIX}"


def find_model(store: Path, name: str) -> Path:
    """A model's file by its path, or by its place at home.

    Args:
        store: The hospital's own folder.
        name: A file *.safetensors; or a lineage of the newest run that has it; or its place there
            without the ending, such as "<run>/<lineage>".

    Raises:
        SettingsError: There is none; it lists those that are at home.
    """
    if name.endswith(SUFFIX):
        return Path(name).expanduser()
    home = store / "models"
    found = [
        path
        for path in home.rglob(f"*{SUFFIX}")
        if str(path.relative_to(home)) == name + SUFFIX
        or (path.parent.parent == home and path.stem == name)
    ]
    if not found:
        there = sorted(
            str(path.relative_to(home).with_suffix("")) for path in home.rglob(f"*{SUFFIX}")
        )
        hint = "" if there else f" {SIMULATED}"
        raise SettingsError(
            f"There is no model '{name}' in {home}: name a file that ends in {SUFFIX}, or one of "
            f"those that are there ({', '.join(there) or 'none'}).{hint}"
        )
    return max(found, key=lambda path: path.stat().st_mtime)


def read_mixture(folder: Path) -> dict[Path, float]:
    """How much to make of each model of a run at home: weights of at least `LEAST`, by file.

    Args:
        folder: Of the run, below `models`.

    Raises:
        SettingsError: There is no such note, or a damaged one.
    """
    path = folder / MIXTURE
    try:
        weights = read_json(path, dict[str, float])
    except FileNotFoundError as error:
        raise SettingsError(
            f"There is no mixture of models in {folder}, which a hospital makes when it tests all "
            "models of a run for the last time: name models with --model."
        ) from error
    except FileError as error:
        raise SettingsError(f"{error} Move it away.") from error
    return {folder / (name + SUFFIX): each for name, each in weights.items() if each >= LEAST}


def newest_run(store: Path) -> Path:
    """The folder of the newest run whose models are at home.

    Args:
        store: The hospital's own folder.

    Raises:
        SettingsError: There is none.
    """
    runs = [path for path in (store / "models").glob("*") if any(path.glob(f"*{SUFFIX}"))]
    if not runs:
        raise SettingsError(
            f"There is no model in {store / 'models'}: name a file with --model. {SIMULATED}"
        )
    return max(runs, key=lambda path: path.stat().st_mtime)


def load_file(file: Path) -> tuple[nn.Module, ModelManifest]:
    """The network and the manifest in a model's file.

    Raises:
        ModelError: It cannot be loaded. The text names the file, for the hospital's own eyes.
    """
    try:
        return load_model(file)
    except (ModelError, ParcelError) as error:
        raise ModelError(f"{file}: {error}") from error


def counted(
    data: LocalData, smallest: int = 1, number: Callable[[Indices], float] = len
) -> dict[str, float]:
    """How many images and groups a hospital has, as `ModelManifest.images` has it.

    Args:
        data: The images.
        smallest: Classes that fewer patients have are left out, as they are of all figures.
        number: How many images there are of some strata (`LocalData.test_strata`), [n].
    """
    counts: dict[str, float] = {}
    for part, samples, strata, groups, patients in (
        ("train", data.train, data.train_strata, data.train_groups, data.train_patients),
        ("test", data.test, data.test_strata, data.test_groups, data.test_patients),
    ):
        shown = large_class_rows(patients, strata, smallest)
        if not len(shown):
            continue
        counts[part] = float(len(shown))
        labels = samples.labels.cpu().numpy()[shown]
        for k, name in enumerate(data.classes):
            of_class = strata[shown][labels == k]
            if len(of_class) or smallest == 1:
                counts[f"{part}/{name}"] = float(number(of_class))
        if groups is not None:
            counts[f"{part}-groups"] = float(len(np.unique(groups[shown])))
    return counts


def _manifest(
    disclosure: Disclosure, label: Manifest, figures: Mapping[str, float]
) -> ModelManifest:
    hospital = disclosure.request.hospital
    return ModelManifest.of(
        label,
        hospital.settings,
        disclosure.request.run.folder.name,
        {hospital.name: counted(hospital.data, disclosure.smallest)},
        {hospital.name: dict(figures)} if figures else {},
    )


def _save(hospital: Hospital, path: Path, network: nn.Module, manifest: ModelManifest) -> None:
    """Write a model if the policy's `machine.max-disk-gb` leaves room for it."""
    size = sum(tensor.nbytes for tensor in network.state_dict().values())
    machine = hospital.policy.machine if hospital.policy else None
    check_disk(machine, hospital.store.folder.parent, size)
    save_model(path, network, manifest)


@contextmanager
def _undisturbed(request: Inquiry) -> Iterator[None]:
    """The time that it takes is measured, and a failure is logged and goes no further."""
    try:
        with request.clock.measure("serialise"):
            yield
    except (OSError, PolicyError) as error:
        logging.getLogger("flwr").warning(
            "A model is not kept (%s). Remove what is no longer needed from the store's 'models', "
            "or open the server's parcels later (python -m client_app open).",
            error.explain() if isinstance(error, PolicyError) else error,
        )
