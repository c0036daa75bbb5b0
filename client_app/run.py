"""What a hospital remembers of one run, in a folder of its store: `runs/<identity of the run>`."""

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from client_app.authority.policy import PolicyError
from client_app.errors import DataError
from client_app.store import Store, own_folder
from strategies.protocol.parcel import Manifest
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import MAY_CHANGE, require

Place = tuple[int, ...]  # round and hop of a visit
DAY = 24 * 3600.0  # seconds
NAME = re.compile(r"[0-9a-zA-Z_-]{1,64}")  # the identity of a run, which names a folder
# What counts here; it only grows.
REMEMBERED = ("terms.npz", "tested", "detailed", "buffers", "visits")


def run_folder(store: Store, run: str) -> Store:
    """The run's part of a hospital's store.

    Raises:
        ParcelError: The identity of the run cannot name a folder.
    """
    if not NAME.fullmatch(run):
        raise ParcelError(f"'{run:.80}' is not the identity of a run.")
    return Store(store.folder / "runs" / run)


def check_same(
    run: Store, fingerprint: str, settings: Mapping[str, object], classes: Sequence[str]
) -> None:
    """Refuse to go on with other images, settings or classes than the run began with here.

    Otherwise images that were tested on could now be trained on, and what was trained with noise
    could be trained on without.

    Args:
        run: The run's folder, which keeps what the first message came with.
        fingerprint: Of the hospital's images and their split.
        settings: Those of the run; some may change when it is resumed.
        classes: The names of the federation's; empty if they are not settled yet.

    Raises:
        DataError: The images have changed.
        SettingsError: A setting has changed.
        ParcelError: The classes, or their order, have changed.
    """
    terms = {key: value for key, value in settings.items() if key not in MAY_CHANGE}
    kept = _terms(run)
    if not kept or (classes and "classes" not in kept):
        own_folder(run.folder)
        with FileLock(run.folder / ".terms.lock"):
            text = json.dumps(terms, default=bytes.hex)
            first = {"images": np.array(fingerprint), "settings": np.array(text.encode())}
            kept = run.load("terms") or first
            if classes:
                kept = {"classes": np.array(classes), **kept}
            run.save("terms", kept)
    if fingerprint != str(kept["images"]):
        raise DataError(
            "The hospital's images have changed since it joined the run: it takes part in the "
            "next one again."
        )
    before = json.loads(kept["settings"].item())
    for key in sorted(before.keys() | terms.keys()):
        now, then = terms.get(key), before.get(key)
        require(now == then, key, now, f"{then!r} until the run is over, as it was at first")
    if classes and [*classes] != kept["classes"].tolist():
        raise ParcelError("The federation's classes are not those that the run began with here.")


def _terms(run: Store) -> Mapping[str, NDArray[Any]]:
    """What a run began with here; empty before its first message."""
    path = run.folder / "terms.npz"
    if not path.exists():
        return {}
    status = path.stat()
    return _load_terms(run.folder, status.st_ino, status.st_mtime_ns)


@lru_cache(maxsize=64)
def _load_terms(folder: Path, inode: int, written: int) -> Mapping[str, NDArray[Any]]:
    return Store(folder).load("terms")


def check_newest(run: Store, label: Manifest, *, tested: bool = False) -> None:
    """Refuse a model that is older than one of its lineage that was here.

    Only sealed parcels can be told apart in this way: the server can write any label on others.

    Args:
        run: The run's folder.
        label: Of the model's parcel.
        tested: Whether it is tested: then all that a round left of its lineage may come, in any
            order. Else it is trained.

    Raises:
        ParcelError: The model is older.
    """
    name = f"seen/{hashlib.sha256(label.lineage.encode()).hexdigest()[:16]}"
    now = (label.round, label.hop)
    newest = tuple(map(int, run.load(name).get("visit", now)))
    if now[:1] < newest[:1] if tested else now < newest:
        raise ParcelError(
            f"Lineage '{label.lineage}' comes as it was after round {now[0]}, hop {now[1]}, "
            f"and was here already as it was after round {newest[0]}, hop {newest[1]}."
        )
    run.save(name, {"visit": np.array(max(now, newest))})


class Tested:
    """The models that were tested, in the file `tested` of a run's folder.

    The server can begin as many runs as it likes. So models are counted also over all runs.

    Args:
        run: The run's folder.
        name: Of the file; "detailed" for those whose details were told.
        rule: Of the policy, that says how many there may be.
    """

    def __init__(self, run: Store, name: str = "tested", rule: str = "figures.max-models") -> None:
        self.run, self.name, self.rule = run, name, rule

    def add(self, model: str, place: str, most: int | None) -> None:
        """Note that a model is tested, before it is.

        Args:
            model: Its fingerprint.
            place: Which model of the run it says it is, as a fingerprint; empty = any.
            most: How many different models may be tested in a run, and in a day; None = any.

        Raises:
            ParcelError: Another model was tested in its place.
            PolicyError: It would be one too many.
        """
        self.run.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.run.folder.parent / f".{self.name}.lock"):
            known = list(_tested(self.run.folder / self.name))
            if any(test.place == place and test.model != model for test in known if place):
                raise ParcelError(
                    "Another model was tested already as its lineage's of that round and hop."
                )
            if any((test.place, test.model) == (place, model) for test in known):
                return
            now = time.time()
            if most is not None:
                files = _files(self.run, self.name, now - DAY)
                of_all = [test for path in files for test in _tested(path)]
                lately = [test for test in of_all if test.time > now - DAY]
                for tests in (known, lately):
                    if (count := len({model, *(test.model for test in tests)})) > most:
                        raise PolicyError(self.rule, count, f"{most} or fewer")
            with (self.run.folder / self.name).open("a", encoding="utf-8") as file:
                file.write(f"\n{now:.0f} {model} {place}")


def count_visit(run: Store, most: int) -> None:
    """Note that a model is trained, before it is: a server can order one round again and again.

    Args:
        run: The run's folder.
        most: How many may be trained in a day, in all runs.

    Raises:
        PolicyError: It would be one too many.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    with FileLock(run.folder.parent / ".visits.lock"):
        now = time.time()
        begun = [
            _time_of(line)
            for path in _files(run, "visits", now - DAY)
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
        count = 1 + sum(each > now - DAY for each in begun)
        if count > most:
            raise PolicyError("runs.max-visits", count, f"{most} or fewer")
        with (run.folder / "visits").open("a", encoding="utf-8") as file:
            file.write(f"{now:.0f}\n")


class _Test(NamedTuple):
    """A line of the file."""

    time: float
    model: str
    place: str


def _files(run: Store, name: str, since: float) -> Iterator[Path]:
    """The files of this name of all runs, if they were written to since then."""
    for path in run.folder.parent.glob(f"*/{name}"):
        if path.stat().st_mtime >= since:
            yield path


def _tested(path: Path) -> Iterator[_Test]:
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        fields = line.split(" ")
        if len(fields) == len(_Test._fields):  # else its writing was cut off
            yield _Test(_time_of(fields[0]), *fields[1:])


def _time_of(text: str) -> float:
    """Seconds since 1970; now if a damaged line does not say them, so that it still counts."""
    return float(text) if re.fullmatch("[0-9]{1,12}", text) else time.time()


def note_dossier(run: Store, hospital: str, hash_: str) -> None:
    """Remember which dossier a hospital's buffer names, for who gets to see that dossier."""
    known = dossiers(run)
    if known.get(hospital) != hash_:
        known[hospital] = hash_
        arrays = {"hospitals": np.array([*known]), "hashes": np.array([*known.values()])}
        run.save("dossiers", arrays)


def dossiers(run: Store) -> dict[str, str]:
    """The SHA-256 of the dossiers that buffers named here, by hospital."""
    kept = run.load("dossiers")
    return (
        dict(zip(kept["hospitals"].tolist(), kept["hashes"].tolist(), strict=True)) if kept else {}
    )


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
