"""Ways to cut a pool over hospitals: the setting `partition`.

Every image goes to exactly one hospital, and the cut depends on the seed alone. It may divide the
images of a patient.
"""

import logging
import warnings
from collections.abc import Callable

import numpy as np

from client_app.datasets.pool import Indices, Pool
from client_app.errors import DataError
from strategies.protocol.settings import Settings, rng_for
from strategies.protocol.text import amount


def cut(pool: Pool, settings: Settings, hospitals: int) -> list[Indices]:
    """Return the indices [n] of each hospital's images in the pool, by the setting `partition`.

    Raises:
        DataError: The pool cannot be cut like that.
    """
    if hospitals > len(pool.labels):
        raise DataError(
            f"There are {hospitals} hospitals and {len(pool.labels)} images: use fewer hospitals."
        )
    shares = PARTITIONS[settings.partition](pool, settings, hospitals)
    if pool.groups is not None:
        held = np.concatenate([np.unique(pool.groups[share]) for share in shares])
        if divided := int((np.unique(held, return_counts=True)[1] > 1).sum()):
            logging.getLogger("flwr").warning(
                "Patients (or groups) with images at several hospitals of this cut: %d. If one "
                "hospital trains on a patient and another one tests, its figures are too good.",
                divided,
            )
    return shares


def _iid(pool: Pool, settings: Settings, hospitals: int) -> list[Indices]:
    """Deal all images out at random, in equal shares."""
    order = rng_for(settings.seed, "partition").permutation(len(pool.labels))
    return np.array_split(order, hospitals)


def _dirichlet(pool: Pool, settings: Settings, hospitals: int) -> list[Indices]:
    """Cut every class in shares drawn from a Dirichlet distribution (arXiv:1905.12022)."""
    from datasets import Dataset  # these two imports take seconds
    from flwr_datasets.partitioner import DirichletPartitioner

    rng = rng_for(settings.seed, "partition")
    # The partitioner keeps the order within a class, and a file may be sorted. So shuffle first.
    order = rng.permutation(len(pool.labels))
    partitioner = DirichletPartitioner(
        num_partitions=hospitals,
        partition_by="label",
        alpha=settings.partition_alpha,
        self_balancing=True,
        seed=int(rng.integers(2**32)),
    )
    partitioner.dataset = Dataset.from_dict({"index": order, "label": pool.labels[order]})
    try:
        # The partitioner warns at each of ten attempts, and divides 0 by 0 if alpha is tiny.
        with warnings.catch_warnings(action="ignore"), np.errstate(invalid="raise"):
            shares = [partitioner.load_partition(i)["index"][:] for i in range(hospitals)]
    except (ValueError, FloatingPointError) as error:
        raise DataError(
            f"No Dirichlet cut with partition-alpha {settings.partition_alpha} gives each of "
            f"{hospitals} hospitals 10 of {len(pool.labels)} images: use a larger partition-alpha "
            "or fewer hospitals."
        ) from error
    return [np.array(share) for share in shares]


def _classes(pool: Pool, settings: Settings, hospitals: int) -> list[Indices]:
    """Give hospital i the k classes from i·k on, cyclically; hospitals share a class evenly."""
    k, count = settings.partition_classes, len(pool.classes)
    if k > count:
        raise DataError(f"'partition-classes' is {k}; the data set has {count} classes.")
    rng = rng_for(settings.seed, "partition")
    shares: list[list[Indices]] = [[] for _ in range(hospitals)]
    for label, name in enumerate(pool.classes):
        holders = [share for i, share in enumerate(shares) if (label - i * k) % count < k]
        if not holders:
            raise DataError(
                f"With partition-classes {k} and {amount(hospitals, 'hospital')}, no hospital has "
                f"'{name}', one of {count} classes: use more hospitals or a larger value."
            )
        images = rng.permutation(np.flatnonzero(pool.labels == label))
        for share, part in zip(holders, np.array_split(images, len(holders)), strict=True):
            share.append(part)
    return [np.concatenate(share) for share in shares]


def _site(pool: Pool, settings: Settings, hospitals: int) -> list[Indices]:
    """Give every hospital the images of one site."""
    if pool.sites is None:
        raise DataError(
            f"The data set '{settings.dataset}' does not name the site of each image: set "
            "'partition' to iid, dirichlet or classes."
        )
    sites = np.unique(pool.sites)
    if hospitals != len(sites):
        raise DataError(
            f"There are {hospitals} hospitals and {len(sites)} sites in '{settings.dataset}': "
            "partition 'site' needs a hospital for each site."
        )
    return [np.flatnonzero(pool.sites == site) for site in sites]


PARTITIONS: dict[str, Callable[[Pool, Settings, int], list[Indices]]] = {
    "iid": _iid,
    "dirichlet": _dirichlet,
    "classes": _classes,
    "site": _site,
}
