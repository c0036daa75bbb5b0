"""The shelf: the parcels of a run, in the server's memory and on its disk.

The parcels that were used last are in memory, up to `IN_MEMORY` bytes. A parcel gets a file when a
checkpoint names it (checkpoint.py), or when memory has no place for it. So a model that is merged
into another one before the next checkpoint needs no file. A file never changes: its name has a hash
of its content.
"""

import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from flwr.app import ArrayRecord, RecordDict

from strategies.protocol.files import replacing
from strategies.protocol.parcel import Manifest, check_hashes, load, save
from strategies.protocol.records import array_records, count_bytes, find_record, size_of

IN_MEMORY = 512 * 1024**2  # bytes of arrays; FedAvg reads all copies of a round again


class Shelf:
    """The parcels in one folder, which is made if it does not exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.durable = True  # whether each write waits for the disk, against a power cut
        folder.mkdir(parents=True, exist_ok=True)
        self._newest: OrderedDict[str, RecordDict] = OrderedDict()
        self._bytes = 0
        self._notes: dict[str, tuple[Manifest, int]] = {}  # labels, and bytes of models
        self._unwritten: set[str] = set()  # parcels that are only in memory

    def put(self, parcel: RecordDict) -> str:
        """Keep an admitted parcel; the parcel's name."""
        label, size = _describe(parcel)
        # Records that the label lists may be missing: those present are part of the name.
        content = json.dumps([dict(parcel["manifest"]), sorted(parcel)]).encode()
        name = f"{label.lineage[:60]}-{hashlib.sha256(content).hexdigest()}"
        self._notes[name] = label, size
        self._unwritten.add(name)
        self._remember(name, parcel)
        return name

    def write(self, names: Iterable[str]) -> None:
        """Write parcels to the disk, except those that are there."""
        for name in self._unwritten.intersection(names):
            path = self.path(name)
            if not path.exists():
                with replacing(path) as draft:
                    save(self._newest[name], draft)
                    self.sync(draft)
            self._unwritten.discard(name)

    def get(self, name: str) -> RecordDict:
        """The parcel of a name."""
        parcel = self._newest.get(name) or load(self.path(name))
        self._remember(name, parcel)
        return parcel

    def arrays(self, name: str, record: str = "model") -> ArrayRecord:
        """One record of arrays of a parcel, which has it."""
        return array_records(self.get(name))[record]

    def label(self, name: str) -> Manifest:
        """The label of a parcel, without a look at the disk."""
        return self._notes[name][0]

    def model_bytes(self, name: str) -> int:
        """The bytes of a parcel's model, without a look at the disk."""
        return self._notes[name][1]

    def check(self, names: Iterable[str]) -> None:
        """Check that parcels exist and are whole, for instance after a kill.

        Raises:
            ParcelError: A parcel does not fit its label.
            ArchiveError: A file is no parcel.
            OSError: A file is missing.
        """
        for name in names:
            parcel = load(self.path(name))
            label, size = _describe(parcel)
            check_hashes(parcel, label)
            self._notes[name] = label, size

    def keep_only(self, names: Iterable[str]) -> None:
        """Delete all parcels but these, and the drafts that a kill has left."""
        kept = set(names)
        self._unwritten &= kept
        for path in self.folder.glob("*.npz"):
            if path.stem not in kept:
                path.unlink()
        for draft in self.folder.glob(".*.part"):
            draft.unlink()
        self._notes = {name: note for name, note in self._notes.items() if name in kept}
        for name in self._newest.keys() - kept:
            self._bytes -= count_bytes(self._newest.pop(name))

    def sync(self, path: Path) -> None:
        """If files are `durable`, wait until a file, or a folder's list, is on the disk."""
        if self.durable:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def path(self, name: str) -> Path:
        """The file of a written parcel, as `strategies.protocol.parcel.load` reads it."""
        return self.folder / f"{name}.npz"

    def _remember(self, name: str, parcel: RecordDict) -> None:
        if name not in self._newest:
            self._newest[name] = parcel
            self._bytes += count_bytes(parcel)
        self._newest.move_to_end(name)
        while self._bytes > IN_MEMORY and len(self._newest) > 1:
            oldest = next(iter(self._newest))
            self.write([oldest])
            self._bytes -= count_bytes(self._newest.pop(oldest))


def _describe(parcel: RecordDict) -> tuple[Manifest, int]:
    """The label of a parcel, and the bytes of its model."""
    return Manifest.read(parcel), size_of(find_record(parcel, "model", ArrayRecord) or {})
