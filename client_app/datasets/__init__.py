"""A hospital's data: the only package of the app that opens a data file.

A data set is one file with a loader, and one line in `DATASETS`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.datasets.digits import load_digits
from client_app.datasets.hub import load_hub
from client_app.datasets.manifest import load_manifests
from client_app.datasets.npz import load_npz
from client_app.datasets.partition import Shares, cut
from client_app.datasets.pool import LocalData, Pool, Samples, joined
from client_app.datasets.resize import Form, formed
from client_app.datasets.split import choose_test
from client_app.errors import DataError
from strategies.settings import Settings, rng_for

__all__ = ["DATASETS", "LocalData", "Pool", "Samples", "joined", "open_data"]

# The setting `dataset` up to its ':' -> what loads the text after it, in the form that the
# settings ask for. A name that ends in ':' needs such a text, another takes none. The form matters
# only to loaders of images that may differ in size.
DATASETS: dict[str, Callable[[str, Form], Pool]] = {
    "digits": lambda _, form: load_digits(),
    "mnist": lambda _, form: load_hub("ylecun/mnist", form),
    "npz:": lambda file, form: load_npz(file),
    "hf:": load_hub,
    "manifest:": load_manifests,
}


def open_data(
    settings: Settings, hospital_index: int, hospitals: int, classes: tuple[str, ...] = ()
) -> LocalData:
    """Return what the hospital of this index, from 0, holds of a data set cut over `hospitals`.

    With a `validation-fraction` its test images are left out, and it tests on that share of the
    others.

    Args:
        settings: What data set, and how it is cut.
        hospital_index: Whose share.
        hospitals: Over how many it is cut.
        classes: Those of the federation; images of others are quarantined. Empty = the data set's.

    Raises:
        DataError: The data set cannot be loaded or cut, has no test images of its own though
            `test-fraction` is 0, leaves this hospital too few images, or more than a share of
            `max-quarantined` is quarantined.
    """
    form = Form(settings.image_size, settings.image_fit, settings.image_channels)
    pool, shares = _pool_and_shares(settings, form, hospitals)
    own = shares[hospital_index]
    labels = _labels(pool, classes or pool.classes)
    strange = int((labels[own] < 0).sum())
    if strange > settings.max_quarantined * len(own):
        raise DataError(
            f"{strange} of {len(own)} images show none of the federation's classes "
            f"({', '.join(classes)}): give them one of these labels, or leave them out."
        )
    own = own[labels[own] >= 0]

    def chosen(images: NDArray[np.int64], fraction: float, purpose: str) -> NDArray[np.bool_]:
        rng = rng_for(settings.seed, purpose, hospital=str(hospital_index))
        groups = None if pool.groups is None else pool.groups[images]
        return choose_test(labels[images], fraction, rng, groups)

    if settings.test_fraction > 0 and not pool.always_held_out:
        held_out = chosen(own, settings.test_fraction, "split")
    elif pool.held_out is not None:
        held_out = pool.held_out[own]
    else:
        raise DataError(
            f"The setting 'test-fraction' is 0, but the data set '{settings.dataset}' has no test "
            "images of its own: set it above 0, such as to 0.2."
        )
    kind = "test"
    if settings.validation_fraction > 0:
        kind, own = "validation", own[~held_out]
        held_out = chosen(own, settings.validation_fraction, "validation")
    train, test = own[~held_out], own[held_out]
    if len(train) < 2 or len(test) < 1:
        raise DataError(
            f"Hospital {hospital_index} of {hospitals} has {len(train)} training and {len(test)} "
            f"{kind} images; it needs 2 and 1. Use fewer hospitals, a larger partition-alpha or "
            f"{kind}-fraction, or another partition."
        )

    def part(indices: NDArray[np.int64]) -> Samples:
        rows = torch.from_numpy(indices)
        return Samples(torch.from_numpy(pool.images), torch.from_numpy(labels)[rows], rows)

    quarantined = pool.quarantined + strange
    return LocalData(part(train), part(test), classes or pool.classes, quarantined)


def _labels(pool: Pool, classes: tuple[str, ...]) -> NDArray[np.int64]:
    """The labels [N] as indices into `classes`; -1 for what is none of them."""
    index = {name: number for number, name in enumerate(classes)}
    return np.array([index.get(name, -1) for name in pool.classes], dtype=np.int64)[pool.labels]


@lru_cache(maxsize=1)  # in a simulation one process serves many hospitals
def _pool_and_shares(settings: Settings, form: Form, hospitals: int) -> tuple[Pool, Shares]:
    name, colon, rest = settings.dataset.partition(":")
    if name + colon not in DATASETS:
        raise DataError(
            f"Unknown data set '{settings.dataset}'. Choose one of: {', '.join(DATASETS)} (after a "
            "':' comes an absolute path or, for hf:, a name on the Hugging Face hub)."
        )
    pool = DATASETS[name + colon](rest, form)
    pool = replace(pool, images=formed(torch.from_numpy(pool.images), form).numpy())
    return pool, cut(pool, settings, hospitals)
