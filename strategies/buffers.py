"""The buffers of a run: the server keeps each once, and sends it to each hospital once.

A buffer stays the same for a whole run. After a hospital has worked with one, messages to it name
the buffer by its hash; if the hospital fails, it may have lost what it held and is sent it again.
"""

from collections.abc import Iterable, Iterator

from flwr.app import ArrayRecord, RecordDict

from strategies.parcel import check_parcel


class Buffers:
    """Buffers by their hashes, whose they are, and who holds which."""

    def __init__(self) -> None:
        self._records: dict[str, ArrayRecord] = {}
        self._of: dict[str, str] = {}
        self._held: set[tuple[str, str]] = set()  # hospital, hash

    def take_from(self, hospital: str, parcel: RecordDict) -> RecordDict:
        """Keep the buffer of a hospital's first parcel, if there is one; the parcel without it."""
        if "buffer" in parcel:
            hash_ = check_parcel(parcel).hash_of["buffer"]
            self._of[hospital] = hash_
            self._records[hash_] = parcel.array_records["buffer"]
            self.note(hospital, [hash_], held=True)
        return RecordDict({name: parcel[name] for name in parcel if name != "buffer"})

    def hashes(self, hospitals: Iterable[str]) -> list[str]:
        """The hashes of the buffers of some hospitals."""
        return [self._of[hospital] for hospital in hospitals]

    def missing(self, hospital: str, hashes: Iterable[str]) -> Iterator[tuple[str, ArrayRecord]]:
        """What a hospital must be sent to have these buffers: names in a message, and records."""
        for hash_ in hashes:
            if (hospital, hash_) not in self._held:
                yield f"{hash_}/buffer", self._records[hash_]

    def note(self, hospital: str, hashes: Iterable[str], *, held: bool) -> None:
        """Take note that a hospital has worked with these buffers, or has failed to."""
        pairs = {(hospital, hash_) for hash_ in hashes}
        self._held = self._held | pairs if held else self._held - pairs
