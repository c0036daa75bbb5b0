"""What a hospital remembers of one run, in a folder of its store: `runs/<identity of the run>`."""

import hashlib
import re

import numpy as np

from client_app.errors import DataError
from client_app.store import Store
from strategies.protocol.parcel import Manifest
from strategies.protocol.records import ParcelError


def run_folder(store: Store, run: str) -> Store:
    """The run's part of a hospital's store.

    Raises:
        ParcelError: The identity of the run cannot name a folder.
    """
    if not re.fullmatch(r"[0-9a-zA-Z_-]+", run):
        raise ParcelError(f"'{run:.80}' is not the identity of a run.")
    return Store(store.folder / "runs" / run)


def check_same_images(run: Store, fingerprint: str, *, joining: bool) -> None:
    """Refuse to go on with other images than those that the hospital joined the run with.

    Otherwise images that were tested on could now be trained on.

    Args:
        run: The run's folder.
        fingerprint: Of the hospital's images and their split.
        joining: Whether the fingerprint is remembered if there is none yet.

    Raises:
        DataError: The images have changed.
    """
    kept = run.load("data").get("fingerprint")
    if kept is None and joining:
        run.save("data", {"fingerprint": np.array(fingerprint)})
    elif kept is not None and fingerprint != str(kept):
        raise DataError(
            "The hospital's images have changed since it joined the run: it takes part in the "
            "next one again."
        )


def check_newest(run: Store, label: Manifest) -> None:
    """Refuse a model to train that is older than one of its lineage that was trained here.

    Only sealed parcels can be told apart in this way: the server can write any label on others.

    Raises:
        ParcelError: The model is older.
    """
    name = f"seen/{hashlib.sha256(label.lineage.encode()).hexdigest()[:16]}"
    now = (label.round, label.hop)
    newest = tuple(run.load(name).get("visit", now))
    if now < newest:
        raise ParcelError(
            f"Lineage '{label.lineage}' comes as it was after round {now[0]}, hop {now[1]}, "
            f"and was here already as it was after round {newest[0]}, hop {newest[1]}."
        )
    run.save(name, {"visit": np.array(now)})
