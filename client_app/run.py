"""What a hospital remembers of one run, in a folder of its store: `runs/<identity of the run>`."""

import hashlib
import re

import numpy as np
from numpy.typing import NDArray

from client_app.errors import DataError
from client_app.store import Store
from strategies.protocol.parcel import Manifest
from strategies.protocol.records import ParcelError

Place = tuple[int, ...]  # round and hop of a visit


def run_folder(store: Store, run: str) -> Store:
    """The run's part of a hospital's store.

    Raises:
        ParcelError: The identity of the run cannot name a folder.
    """
    if not re.fullmatch(r"[0-9a-zA-Z_-]{1,64}", run):
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


class Kept:
    """Named arrays that stay between visits, as each of the last two visits left them.

    A visit whose answer was lost with the server is ordered again when the run is resumed. It then
    starts from what the visit before it left, as it did the first time.

    Args:
        run: The run's folder.
        kind: "local": the state-dict keys that stay local (`Learner.local`); or "rehearsal": what
            a learner keeps for the hospital's stream (`Learner.rehearsal`).
    """

    def __init__(self, run: Store, kind: str) -> None:
        self.run = run
        self.kind = kind

    def before(self, visit: Place) -> dict[str, NDArray[np.generic]]:
        """What the last visit before this one left; nothing before the first."""
        return self._newest([each for each in self._visits() if each < visit])

    def after(self, visit: Place) -> dict[str, NDArray[np.generic]]:
        """What this visit left, or else the last one before it; nothing before the first."""
        return self._newest([each for each in self._visits() if each <= visit])

    def save(self, visit: Place, arrays: dict[str, NDArray[np.generic]]) -> None:
        """Keep what this visit leaves, and what the visit before it left; forget older ones.

        Later ones stay: after a resume a hospital prepares again, before the visits it has made.
        """
        self.run.save(self._name(visit), arrays)
        for older in [each for each in self._visits() if each < visit][:-1]:
            self.run.discard(self._name(older))

    def _newest(self, visits: list[Place]) -> dict[str, NDArray[np.generic]]:
        return self.run.load(self._name(visits[-1])) if visits else {}

    def _visits(self) -> list[Place]:
        """The visits that left something, in order."""
        return sorted(tuple(map(int, name.split("-"))) for name in self.run.names(self.kind))

    def _name(self, visit: Place) -> str:
        return f"{self.kind}/{'-'.join(map(str, visit))}"
