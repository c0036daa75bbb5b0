"""A hospital's memory of one run, in a folder of its store: `runs/<identity of the run>`."""

import hashlib
import json
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from client_app.authority.policy import PolicyError
from client_app.errors import DataError
from client_app.store import DamagedError, Store, append_text, own_folder
from strategies.protocol.declared import excerpt
from strategies.protocol.files import read_bytes, write_whole
from strategies.protocol.parcel import Manifest
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import MAY_CHANGE, require

# Orders the visits of a hospital: round and hop, or `Kept.by_arrival` in a run without rounds
Place = tuple[int, ...]
DAY = 24 * 3600.0  # seconds
NAME = re.compile(r"[0-9a-zA-Z_-]{1,64}")  # the identity of a run, which names a folder
# The files that count terms, tests, buffers and visits; they only grow.
REMEMBERED = ("terms.npz", "tested", "detailed", "buffers", "made", "visits")


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
    """Refuse images, settings or classes that differ from the run's first message here.

    Otherwise test images could become training images, and training with noise could go on without
    noise. Some settings may change when the run is resumed. `classes` are empty before they are
    known.

    Raises:
        DataError: The images have changed.
        SettingsError: A setting has changed.
        ParcelError: The classes, or their order, have changed.
    """
    terms = {key: value for key, value in settings.items() if key not in MAY_CHANGE}
    kept = run.load_small("terms")
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
            "The hospital's images, or images.classes of its policy, have changed since it joined "
            "the run. It can take part in the next run. A simulation needs as many hospitals as "
            "before."
        )
    before = json.loads(kept["settings"].item())
    for key in sorted(before.keys() | terms.keys()):
        now, then = terms.get(key), before.get(key)
        require(now == then, key, now, f"{excerpt(then)}, as at the start, until the run ends")
    if classes and [*classes] != kept["classes"].tolist():
        raise ParcelError("The federation's classes differ from those of the run's start here.")


def check_joined(run: Store, given: Mapping[str, Any], own: Collection[str] = ()) -> None:
    """Raise a `SettingsError` about the first setting with which the hospital did not join a run.

    Settings of `own` may differ. Of a run that the hospital did not join, or simulated, none is
    known.
    """
    kept = run.load_small("terms")
    for key, value in (json.loads(kept["settings"].item()) if kept else {}).items():
        allowed = f"{excerpt(value)}, as in the run: give its config.toml"
        require(key in own or given.get(key, value) == value, key, given.get(key), allowed)


def check_newest(run: Store, label: Manifest) -> None:
    """Raise a `ParcelError` if a newer model of the lineage was already trained here.

    Only labels of sealed parcels can be trusted: the server can write any label on other parcels.
    Tested models do not count. If a tested model is undone, its lineage goes on from an older one.
    A `DamagedError` names a note of the hospital's that cannot be read.
    """
    path = run.folder / "seen" / hashlib.sha256(label.lineage.encode()).hexdigest()[:16]
    now = (label.round, label.hop)
    try:
        newest = tuple(int(number) for line in _lines(path) for number in line.split())
    except ValueError as error:
        raise DamagedError(path, error) from error
    if now < newest:
        raise ParcelError(
            f"The model of lineage '{label.lineage}' is from round {now[0]}, hop {now[1]}, but a "
            f"model from round {newest[0]}, hop {newest[1]} was already trained here."
        )
    if now > newest:
        own_folder(path.parent)
        write_whole(path, f"{label.round} {label.hop}")


def count_model(
    run: Store, name: str, rule: str, model: str, most: int | None, place: str = ""
) -> None:
    """Count a model before figures of it leave, in the file `name` of a run's folder.

    `rule` is the policy's rule for the largest number `most` in a run, and in a day in all runs,
    since a server can begin many; None = any number. `place` is the fingerprint of the model's
    place in the run, from its label; empty = any.

    Raises:
        ParcelError: Another model was counted in the same place.
        PolicyError: The number of models would be too large.
    """
    own = run.folder / name
    own.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(own.parents[1] / f".{name}.lock"):
        known = list(_read_tests(own))
        if any(test.place == place and test.model != model for test in known if place):
            raise ParcelError("Another model of this lineage, round and hop was already tested.")
        if any((test.place, test.model) == (place, model) for test in known):
            return
        now = time.time()
        if most is not None:
            found = [test for path in _files(run, name, now - DAY) for test in _read_tests(path)]
            lately = [test for test in found if test.time > now - DAY]
            for tests in (known, lately):
                if (count := len({model, *(test.model for test in tests)})) > most:
                    raise PolicyError(rule, count, f"{most} or fewer")
        append_text(own, f"\n{now:.0f} {model} {place}")


def count_visit(run: Store, most: int) -> None:
    """Count a visit before its training: a server can order a round many times.

    It raises a `PolicyError` if there were `most` visits in a day, in all runs.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    with FileLock(run.folder.parent / ".visits.lock"):
        now = time.time()
        files = _files(run, "visits", now - DAY)
        lines = [line for path in files for line in _lines(path)]
        count = 1 + sum(_time_of(line) > now - DAY for line in lines)
        if count > most:
            raise PolicyError("runs.max-visits", count, f"{most} or fewer")
        append_text(run.folder / "visits", f"{now:.0f}\n")


class _Test(NamedTuple):
    """A line of the file `tested`."""

    time: float
    model: str
    place: str


def _files(run: Store, name: str, since: float) -> Iterator[Path]:
    """The files with a name in all runs that were written at or after a time."""
    for path in run.folder.parent.glob(f"*/{name}"):
        if path.stat().st_mtime >= since:
            yield path


def _read_tests(path: Path) -> Iterator[_Test]:
    for line in _lines(path):
        fields = line.split(" ")
        if len(fields) == len(_Test._fields):  # else the line is incomplete
            yield _Test(_time_of(fields[0]), *fields[1:])


def _lines(path: Path) -> list[str]:
    """The lines of a file; bytes that are not UTF-8 stay in their line, so that it counts."""
    return read_bytes(path).decode(errors="replace").splitlines() if path.exists() else []


def _time_of(text: str) -> float:
    """Seconds since 1970 in a line; the present for a damaged line, so that the line counts."""
    return float(text) if re.fullmatch("[0-9]{1,12}", text) else time.time()


def note_dossier(run: Store, hospital: str, hash_: str) -> None:
    """Note the hash of the dossier that a hospital's buffer names."""
    known = dossiers(run)
    if known.get(hospital) != hash_:
        known[hospital] = hash_
        arrays = {"hospitals": np.array([*known]), "hashes": np.array([*known.values()])}
        run.save("dossiers", arrays)


def dossiers(run: Store) -> dict[str, str]:
    """The SHA-256 of the dossiers that received buffers name, by hospital."""
    kept = run.load("dossiers")
    if not kept:
        return {}
    return dict(zip(kept["hospitals"].tolist(), kept["hashes"].tolist(), strict=True))


@dataclass(frozen=True)
class Kept:
    """Named arrays that the last two visits left at the hospital.

    If the server loses the answer of a visit, it orders the visit again. The visit then starts
    again from the arrays of the visit before.
    """

    run: Store  # the run's folder
    # "local": the state-dict keys that stay local (`Learner.local`); or "rehearsal": a learner's
    # memory for the hospital's stream (`Learner.rehearsal`)
    kind: str

    def by_arrival(self, lineage: str, number: int) -> Place:
        """The place of a visit, its lineage's `number`th, among all visits that left arrays.

        In an asynchronous run each lineage numbers its own visits, so their numbers are no order at
        a hospital. A visit that is ordered again has the same place again.
        """
        visit = number, int(hashlib.sha256(lineage.encode()).hexdigest()[:16], 16)
        known = self._visits()
        newest = known[-1][0] if known else 0
        return next((each for each in known if each[1:] == visit), (newest + 1, *visit))

    def load(self, visit: Place, *, after: bool = False) -> dict[str, NDArray[np.generic]]:
        """The arrays of the last visit before this one; with `after`, of this one if it left any.

        They are empty if there is no such visit.
        """
        left = [each for each in self._visits() if each < visit or (after and each == visit)]
        return self.run.load(self._name(left[-1])) if left else {}

    def save(self, visit: Place, arrays: dict[str, NDArray[np.generic]]) -> None:
        """Keep the arrays of this visit and of the visit before; discard older ones.

        Arrays of later visits stay: after a resume a hospital prepares again, with visits already
        made.
        """
        self.run.save(self._name(visit), arrays)
        for older in [each for each in self._visits() if each < visit][:-1]:
            self.run.discard(self._name(older))

    def _visits(self) -> list[Place]:
        """The visits that left arrays, in order."""
        return sorted(tuple(map(int, name.split("-"))) for name in self.run.names(self.kind))

    def _name(self, visit: Place) -> str:
        return f"{self.kind}/{'-'.join(map(str, visit))}"
