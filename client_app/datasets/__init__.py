"""A hospital's data: the only package of the app that opens a data file.

Each data set has a loader in a file of this folder, one line in `DATASETS`, and one in `KINDS` of
strategies/protocol/data_sets.py, because a server imports no code of a hospital.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from client_app.authority.limits import check_images
from client_app.authority.policy import MachineRules, Ruling, uphold
from client_app.datasets.digits import load_digits
from client_app.datasets.features import add_features
from client_app.datasets.hub import load_hub
from client_app.datasets.local import LocalData
from client_app.datasets.npz import load_npz
from client_app.datasets.own import LISTINGS, load_own
from client_app.datasets.partition import cut
from client_app.datasets.pool import Indices, LocalSamples, Pool, are_too_few, are_too_many
from client_app.datasets.resize import Form
from client_app.datasets.split import split
from client_app.datasets.tasks import Tasks
from client_app.errors import DataError
from client_app.store import DEFAULT
from learning.samples import Samples
from strategies.protocol.classes import group_spellings, quote
from strategies.protocol.settings import Settings, turn_value

__all__ = ["DATASETS", "LocalData", "Pool", "open_data", "open_public"]

# Start of the setting `dataset` -> its loader. The loader gets the rest of the setting, all
# settings, the folder for decoded images, and the limits of the machine. A name that ends in ':'
# needs a rest; the others take none.
DATASETS: dict[str, Callable[[str, Settings, Path, MachineRules | None], Pool]] = {
    "digits": lambda _, *rest: _formed(load_digits(), *rest),
    "mnist": lambda _, *rest: _hub("ylecun/mnist", *rest),
    "npz:": lambda file, *rest: _formed(load_npz(file), *rest),
    "hf:": lambda source, *rest: _hub(source, *rest),
    "folder:": load_own,
    "manifest:": load_own,
}


def open_data(
    settings: Settings,
    hospital_index: int,
    hospitals: int,
    classes: tuple[str, ...] = (),
    store: Path = DEFAULT,
    machine: MachineRules | None = None,
    taking_part: tuple[str, ...] | None = None,
    secret: bytes = b"",
) -> LocalData:
    """Return the images of one hospital when the data set is cut over `hospitals`.

    Args:
        settings: The data set, the cut and the split.
        hospital_index: Index of the hospital, from 0.
        hospitals: Number of hospitals.
        classes: Classes of the federation. Images of other classes are quarantined. Empty = the
            classes of the data set.
        store: Folder for decoded images.
        machine: Limits on memory and disk for these images; None = no limit.
        taking_part: Classes that take part, by the hospital's policy; () = all; None = the
            federation decides, for example in a simulation.
        secret: Secret of a real hospital, which determines its split; empty in a simulation.

    Raises:
        ModelError: The network of `train.freeze` cannot make features of the images.
        DataError: The data set cannot be loaded or cut. Or `test-fraction` is 0 and the data set
            has no test images of its own. Or this hospital has too few images, or too many
            unusable ones (`max-quarantined`).
        PolicyError: The images would need more memory or disk than `machine` allows, or the
            federation leaves out a class that takes part.
    """
    pool, own, hospital = _share(settings, hospital_index, hospitals, store, machine, secret)
    if taking_part is not None:
        names = tuple(name for name in pool.classes if not taking_part or name in taking_part)
        _check_spelling(pool, taking_part, "the policy's images.classes")
        classes = classes or names
        check_all_named(names, classes)
    _check_spelling(pool, classes, "the federation")
    labels, known = known_images(pool, own, classes, taking_part or ())
    # Under a policy all classes that take part are the federation's; others are left out silently.
    strange = len(own) - len(known) if taking_part is None else 0
    if are_too_many(strange, len(own), settings.max_quarantined):
        raise DataError(
            f"{strange} of {len(own)} images show none of the federation's classes "
            f"({', '.join(classes)}): give them one of these labels, or leave them out."
        )
    per_class = turn_value(settings.test_per_class, hospital_index)
    own_settings = replace(settings, test_per_class=per_class)
    train, test = split(pool, labels, known, own_settings, hospital, secret)
    if are_too_few(train, test):
        raise DataError(
            "There are too few images or patients: 2 images must be left to train on, and 1 of "
            "another patient to test on. Add some."
            if hospitals == 1
            else f"Hospital {hospital_index + 1} of {hospitals} has too few images: the split must "
            "leave 2 to train on and 1 to test on. Use fewer hospitals, a larger partition-alpha, "
            "test-fraction or validation-fraction, another partition, or test-balanced = false."
        )

    whole = LocalSamples(
        torch.from_numpy(pool.images),
        torch.from_numpy(labels),
        None if pool.rows is None else torch.from_numpy(pool.rows),
        groups=pool.groups,
        contents=pool.contents or pool.pixel_hashes,
        manifest_tasks=pool.tasks,
    )

    def part(chosen: Indices) -> LocalSamples:
        rows = chosen if pool.rows is None else pool.rows[chosen]
        facts = [pool.fingerprint, Form.from_settings(settings)]
        facts += [rows.tolist(), labels[chosen].tolist()]
        fingerprint = hashlib.sha256(repr(facts).encode()).hexdigest()
        return replace(whole.select(chosen), fingerprint=fingerprint)

    classes = classes or pool.classes
    return LocalData(
        part(train),
        part(test),
        classes,
        quarantined=pool.quarantined + strange,
        fingerprint=pool.fingerprint,
        tasks=Tasks(settings, classes) if settings.tasks > 1 else None,
        kind=pool.kind,
        whole=pool.whole,
    )


def known_images(
    pool: Pool, own: Indices, classes: Sequence[str], taking_part: Sequence[str]
) -> tuple[Indices, Indices]:
    """What a hospital splits; arguments as for `open_data`, `own` as for `split`.

    These are the labels [N] as indices into `classes`, -1 for other classes; and the images among
    `own` that take part.
    """
    taking = _labels(pool, taking_part or pool.classes) >= 0
    labels = _labels(pool, classes or pool.classes)
    return labels, own[taking[own] & (labels[own] >= 0)]


def open_public(
    file: str,
    settings: Settings,
    like: LocalData,
    store: Path = DEFAULT,
    machine: MachineRules | None = None,
) -> Samples:
    """Return all images of a public archive, in the form of the run.

    Raises:
        DataError: The archive cannot be read, or its images differ in shape from the hospital's
            (`like`).
        PolicyError: See `open_data`.
    """
    pool = _load(replace(settings, dataset=f"npz:{file}"), store, machine)
    samples = Samples(torch.from_numpy(pool.images), torch.from_numpy(pool.labels))
    theirs, ours = pool.whole.image_shape if pool.whole else samples.shape, like.image_shape
    if theirs != ours:
        raise DataError(
            f"The public images are {theirs} (channels, height, width), the hospital's are "
            f"{ours}: set image-size."
        )
    return samples


def _formed(pool: Pool, settings: Settings, _: Path, machine: MachineRules | None) -> Pool:
    """Bring images in memory to the form of the run; other loaders do it file by file."""
    form, images = Form.from_settings(settings), torch.from_numpy(pool.images)
    channels, *sides = images.shape[1:]
    shape = (max(channels, form.channels), *([form.size] * 2 if form.size else sides))
    if shape != images.shape[1:]:
        check_images(machine, len(images), shape)
    return replace(pool, images=form.apply(images).numpy())


def _hub(source: str, settings: Settings, store: Path, machine: MachineRules | None) -> Pool:
    return load_hub(source, Form.from_settings(settings), machine)


def _check_spelling(pool: Pool, names: Sequence[str], who: str) -> None:
    """Refuse classes that others spell differently: their images would be left out silently."""
    if groups := group_spellings([*pool.classes, *names], apart=[names, pool.classes]):
        theirs = ", ".join(quote(name) for group in groups for name in group if name in names)
        raise DataError(
            f"Images show classes that {who} may spell otherwise, as {theirs}: give them these "
            "names, or such as are not alike."
        )


def check_all_named(chosen: Sequence[str], classes: Sequence[str]) -> None:
    """Refuse a federation, or tasks, without one of the hospital's classes.

    Otherwise a server could choose the classes that take part. From two choices it could learn the
    number of images of a class.
    """
    holds = set(chosen).issubset(classes)
    uphold(Ruling("images.classes", f"runs with {', '.join(chosen)}", ", ".join(classes), holds))


def _labels(pool: Pool, classes: Sequence[str]) -> Indices:
    """The labels [N] as indices into `classes`; -1 for other classes."""
    index = {name: number for number, name in enumerate(classes)}
    return np.array([index.get(name, -1) for name in pool.classes], dtype=np.int64)[pool.labels]


def _share(
    settings: Settings,
    index: int,
    hospitals: int,
    store: Path,
    machine: MachineRules | None,
    secret: bytes,
) -> tuple[Pool, Indices, int]:
    """The pool, the indices of the hospital's images in the pool, and its index for the split.

    A real hospital has a whole pool. A hospital with its own folder splits as index 0. The split is
    then the same in a simulation and on the hospital's own machine, where the hospital has no
    index.
    """
    if secret:  # read anew for each run: the images may have changed since the last one
        pool = _load(settings, store, machine)
        if not pool.fingerprint:  # other pixels need other noise (client_app.release.disclosure)
            pool = replace(pool, fingerprint=hashlib.sha256(pool.images.ravel().data).hexdigest())
        return pool, np.arange(len(pool.labels)), 0
    kind, _, source = settings.dataset.partition(":")
    sources = source.split(",") if hospitals > 1 else [source]  # the path may have a comma
    if kind not in LISTINGS or (len(sources) == 1 < hospitals):
        pool, shares = _pool_and_shares(settings, hospitals, store, machine)
        return pool, shares[index], index
    # Each hospital opens its own folder and no other.
    if len(sources) != hospitals or (hospitals > 1 and settings.partition != "site"):
        raise DataError(
            f"The setting 'dataset' names {len(sources)} folders or manifests, and there are "
            f"{hospitals} hospitals: name one for each and set 'partition' to site, or one for all."
        )
    pool = _load(replace(settings, dataset=f"{kind}:{sources[index].strip()}"), store, machine)
    return pool, np.arange(len(pool.labels)), 0


@lru_cache(maxsize=1)  # in a simulation one process serves many hospitals
def _pool_and_shares(
    settings: Settings, hospitals: int, store: Path, machine: MachineRules | None
) -> tuple[Pool, list[Indices]]:
    pool = _load(settings, store, machine)
    return pool, cut(pool, settings, hospitals)


def _load(settings: Settings, store: Path, machine: MachineRules | None) -> Pool:
    name, colon, rest = settings.dataset.partition(":")
    if name + colon not in DATASETS:
        raise DataError(
            f"Unknown data set '{settings.dataset}'. Choose one of: {', '.join(DATASETS)} (after a "
            "':' comes an absolute path or, for hf:, a name on the Hugging Face hub)."
        )
    pool = DATASETS[name + colon](rest, settings, store, machine)
    pool = replace(pool, kind=pool.kind or name)
    frozen = settings.train.freeze == "body"
    return add_features(pool, settings, store, machine) if frozen else pool
