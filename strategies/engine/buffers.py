"""The buffers of a run: the server keeps each once, and sends it to each hospital once.

A buffer stays the same for a whole run. After a hospital has worked with one, messages to it name
the buffer by its hash; if the hospital fails, it may have lost what it held and is sent it again.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flwr.app import ArrayRecord, RecordDict

from strategies.protocol.parcel import check_parcel


class Buffers:
    """Buffers by their hashes, whose they are, and who holds which.

    Args:
        facts: What `facts` told when a run was interrupted; nothing for a new one.
        parcels: And its `parcels`.
    """

    def __init__(
        self,
        facts: Mapping[str, Any] | None = None,
        parcels: Mapping[str, RecordDict] | None = None,
    ) -> None:
        facts = facts or {"of": {}, "held": []}
        self.parcels = dict(parcels or {})  # by hash: the buffer alone, and the label it came with
        self._of: dict[str, str] = facts["of"]
        self._held = {(hospital, hash_) for hospital, hash_ in facts["held"]}

    @property
    def facts(self) -> dict[str, Any]:
        """Whose buffers these are, and who holds which, as JSON has it."""
        return {"of": self._of, "held": sorted(self._held)}

    def take_from(self, hospital: str, parcel: RecordDict) -> RecordDict:
        """Keep the buffer of a hospital's first parcel, if there is one; the parcel without it."""
        if "buffer" in parcel:
            hash_ = check_parcel(parcel).hash_of["buffer"]
            self._of[hospital] = hash_
            names = ("buffer", "manifest")
            self.parcels[hash_] = RecordDict({name: parcel[name] for name in names})
            # Without one that it replaces, as may happen when a run is resumed.
            self.parcels = {each: self.parcels[each] for each in set(self._of.values())}
            self.note(hospital, [hash_], held=True)
        return RecordDict({name: parcel[name] for name in parcel if name != "buffer"})

    def hashes(self, hospitals: Iterable[str]) -> list[str]:
        """The hashes of the buffers of some hospitals."""
        return [self._of[hospital] for hospital in hospitals]

    def missing(self, hospital: str, hashes: Iterable[str]) -> Iterator[tuple[str, ArrayRecord]]:
        """What a hospital must be sent to have these buffers: names in a message, and records."""
        for hash_ in hashes:
            if (hospital, hash_) not in self._held:
                yield f"{hash_}/buffer", self.parcels[hash_].array_records["buffer"]

    def note(self, hospital: str, hashes: Iterable[str], *, held: bool) -> None:
        """Take note that a hospital has worked with these buffers, or has failed to."""
        pairs = {(hospital, hash_) for hash_ in hashes}
        self._held = self._held | pairs if held else self._held - pairs
