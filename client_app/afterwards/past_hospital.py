"""A hospital as in a past run: with the same images in the same split."""

from dataclasses import replace
from pathlib import Path

import torch

from client_app.afterwards.home import count_images
from client_app.afterwards.past_run import PastRun
from client_app.authority.identity import secret_of
from client_app.authority.policy import Policy
from client_app.datasets import LocalData, open_data
from client_app.datasets.own import name_images, own_data
from client_app.errors import DataError
from client_app.hospital import Hospital
from client_app.run import run_folder
from client_app.store import Store
from strategies.protocol.settings import Settings, defaults


def reopen_hospital(
    past: PastRun, data_dir: Path, policy: Policy | None, settings: Settings | None = None
) -> Hospital:
    """Open a hospital for work at home, where no policy limits its view of its own data.

    Args:
        past: The run; at least one of its models is at home.
        data_dir: The hospital's images, or its manifest, as in the run.
        policy: Policy of the run, which selects classes; None in a simulation.
        settings: Those of the run at the hospital, where `train.freeze` makes features of the
            images; None = the models' own, which prepare and split images, and defaults.

    Raises:
        DataError: The images cannot be used, or are not those of the run, or arrived in tasks.
        ModelError: The network of `train.freeze` cannot make features of the images.
    """
    own = past.model
    if own.tasks > 1:
        raise DataError(
            "Images of this run arrived in tasks. Its models are not tested again at home; the "
            "figures of the run are in its report."
        )
    settings = replace(
        settings or Settings.parse({**defaults(), **own.settings}),
        dataset=own_data(str(data_dir.absolute())),
        model=own.network.name,
        max_quarantined=0.999,  # the run has checked the share, and the images are the same
    )
    chosen = tuple(policy.images.classes) if policy else None
    secret = secret_of(Store(past.folder)) if policy else b""
    store, classes = past.folder.parent, tuple(own.classes)
    with name_images(settings):
        data = open_data(settings, 0, 1, classes, store, None, chosen, secret)
        _check_same(past, data)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Hospital(
        past.site, settings, data.to(device), device, settings.model, Store(past.folder)
    )


def _check_same(past: PastRun, data: LocalData) -> None:
    """Refuse images other than those of the run: models may have trained on the test images."""
    store = Store(past.folder)
    reported = {name: past.card.get(name) for name in ("train-images", "test-images")}
    if any(reported.values()):
        same = reported == data.hashes(secret_of(store))
    else:  # a simulation, where all numbers are exact
        kept = str(run_folder(store, past.run).load("terms").get("images", ""))
        known = [each.images.get(past.site) for each in past.models.values()]
        same = kept.partition(", part ")[0] == data.fingerprint
        same &= all(counts == count_images(data) for counts in known)
    if not same:
        raise DataError(
            "These are not the hospital's images of the run, or the split is another. Models may "
            "have trained on images that would now be test images: give the images of the run."
        )
