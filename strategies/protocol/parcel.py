"""The parcel: a travelling model, with its label and other records.

A parcel is a Flower RecordDict of

    model      ArrayRecord    the state dict, names and dtypes kept
    buffer     ArrayRecord    synthetic images, as one PNG picture, and their labels
    memory     ArrayRecord    arrays that a method carries beside the model
    embeddings ArrayRecord    embeddings of the last visit's images, for the server (embeddings.py)
    sums       ArrayRecord    sums of features of the hospitals so far, modulo 2^64 (sums.py)
    optimizer  ArrayRecord    the optimizer's state after the last visit (optimizer.py)
    manifest   ConfigRecord   the label: `Manifest`

The server relays parcels bit for bit. It checks the manifest, the hashes and the shapes, and the
numbers of models that are not sealed (soundness.py).

The encoder is those arrays of a model that no visit changes. It travels to each hospital once.
Other messages leave it out (`drop_encoder`), and the recipient puts it back (`restore_encoder`)
before it checks the hashes.
"""

import hashlib
import json
import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from strategies.protocol import archive
from strategies.protocol.may_leave import PARCEL_RECORDS
from strategies.protocol.names import is_array_name, is_name, join_names
from strategies.protocol.order import Images, Order
from strategies.protocol.records import (
    Layout,
    ParcelError,
    array_records,
    check_values,
    find_record,
    from_record,
    to_record,
)
from strategies.protocol.shapes import from_json

FORMAT = 1
HASHED = re.compile(f"({'|'.join(PARCEL_RECORDS.keys() - {'manifest'})})=[0-9a-f]{{64}}")
MAX_ARCHITECTURE = 10_000  # characters
HEAD = 2**20  # bytes: the heads of two sealed models differ by less


@dataclass(frozen=True)
class Manifest:
    """The label of a parcel: its model and the visits of the model."""

    lineage: str  # identity of the travelling model, named after its first hospital
    architecture: str  # the network as JSON (learning.models.Architecture)
    classes: list[str]  # names of the classes, in the order of the network's outputs
    round: int = 0  # round of the last visit, from 1; 0 before the first
    hop: int = 0  # hop of the last visit, from 1; 0 before the first
    epochs: int = 0  # passes over the images in the last visit
    visited: list[str] = field(default_factory=list)  # hospitals that trained the model, in order
    parent: str = ""  # hash of the model that the last visit started from; empty before the first
    # Hash of each array record, as "name=hash". If a listed record is absent, the recipient holds
    # it already.
    hashes: list[str] = field(default_factory=list)
    # The hospitals whose synthetic images were trained on too, as "<place in visited>=<hospital>";
    # places count from 1
    replayed: list[str] = field(default_factory=list)
    # The visits that trained on other images than the hospital's own, as "<place in
    # visited>=<`Order.images`>"
    not_own: list[str] = field(default_factory=list)
    format: int = FORMAT  # version of this format

    @classmethod
    def read(cls, parcel: RecordDict) -> "Manifest":
        """The label of a parcel, without a look at its arrays.

        Raises:
            ParcelError: There is no label, or it has another format or an impossible value.
        """
        if not isinstance(record := parcel.get("manifest"), ConfigRecord):
            raise ParcelError("The parcel has no manifest.")
        manifest = from_record(cls, record)
        if manifest.format != FORMAT:
            raise ParcelError(
                f"The parcel has format {manifest.format}, this is format {FORMAT}: "
                "run the same version of fedhandoff everywhere."
            )
        places = {str(place) for place in range(1, len(manifest.visited) + 1)}
        possible = {
            "lineage": is_name(manifest.lineage),
            "architecture": len(manifest.architecture) <= MAX_ARCHITECTURE,
            "round": manifest.round >= 0,
            "hop": manifest.hop >= 0,
            "epochs": manifest.epochs >= 0,
            "visited": all(map(is_name, manifest.visited)),
            "replayed": all(
                place in places and is_name(name) for place, name in _pairs(manifest.replayed)
            ),
            "not_own": all(
                place in places and images in {*get_args(Images)} - {"own"}
                for place, images in _pairs(manifest.not_own)
            ),
            "parent": re.fullmatch("([0-9a-f]{64})?", manifest.parent),
            "hashes": len(manifest.hash_of) == len(manifest.hashes)
            and all(map(HASHED.fullmatch, manifest.hashes)),
        }
        check_values("manifest", possible)
        return manifest

    def advance(self, order: Order) -> "Manifest":
        """The label after the visit that an order asked for; `pack` writes the new hashes."""
        place = len(self.visited) + 1
        not_own = [f"{place}={order.images}"] if order.images != "own" else []
        return replace(
            self,
            round=order.round,
            hop=order.hop,
            epochs=order.epochs,
            visited=[*self.visited, order.hospital],
            replayed=[*self.replayed, *(f"{place}={maker}" for maker in order.hash_of)],
            parent=self.hash_of["model"],
            not_own=self.not_own + not_own,
        )

    @property
    def hash_of(self) -> dict[str, str]:
        """The hash of each array record, by its name."""
        return dict(_pairs(self.hashes))


def _pairs(entries: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The two sides of each entry "<one>=<other>"."""
    for entry in entries:
        one, _, other = entry.partition("=")
        yield one, other


def hash_arrays(record: ArrayRecord) -> str:
    """SHA-256 over names, dtypes, shapes and bytes; the same on every machine."""
    digest = hashlib.sha256()
    for name, array in sorted(record.items()):
        digest.update(f"{name}:{array.dtype}:{array.shape}:{len(array.data)};".encode())
        digest.update(array.data)
    return digest.hexdigest()


def pack(arrays: Mapping[str, ArrayRecord], manifest: Manifest) -> RecordDict:
    """Make a parcel of array records and a label, which gets their hashes."""
    hashes = [f"{name}={hash_arrays(record)}" for name, record in arrays.items()]
    return RecordDict({**arrays, "manifest": to_record(replace(manifest, hashes=hashes))})


def parcel_in(content: RecordDict) -> RecordDict:
    """The parcel of a message or an answer, without the records beside it."""
    return RecordDict({name: content[name] for name in PARCEL_RECORDS if name in content})


def drop_encoder(parcel: RecordDict, encoder: Container[str]) -> RecordDict:
    """A parcel whose model lacks the arrays of the encoder."""
    model = array_records(parcel)["model"]
    rest = ArrayRecord({name: array for name, array in model.items() if name not in encoder})
    return RecordDict({**parcel, "model": rest})


def restore_encoder(parcel: RecordDict, encoder: Mapping[str, Array]) -> RecordDict:
    """A parcel whose model has the arrays of the encoder, in the place of any that came."""
    model = find_record(parcel, "model", ArrayRecord)
    if not encoder or model is None:
        return parcel
    return RecordDict({**parcel, "model": ArrayRecord({**model, **encoder})})


def check_parcel(parcel: RecordDict) -> Manifest:
    """The label of a parcel, once the label and the hashes are checked.

    Raises:
        ParcelError: The label is incomplete, or a hash, an array or a record is wrong.
    """
    manifest = Manifest.read(parcel)
    if find_record(parcel, "model", ArrayRecord) is None or "model" not in manifest.hash_of:
        raise ParcelError("The parcel has no model.")
    for name, record in parcel.items():
        if not isinstance(record, PARCEL_RECORDS.get(name, type(record))):
            raise ParcelError(f"The record '{name}' of a parcel has the wrong type.")
        if isinstance(record, ArrayRecord):
            check_arrays(record)
    check_hashes(parcel, manifest)
    return manifest


def check_arrays(record: ArrayRecord) -> None:
    """Refuse (ParcelError) arrays that have no proper name, or another header than they announce.

    Only their headers are read. All others can be written and read again.
    """
    for name, array in record.items():
        if not is_array_name(name):
            raise ParcelError(f"An array cannot be called {name[:80]!r}.")
        try:
            dtype, shape = archive.form_of(array.data)
        except archive.ArchiveError as error:
            raise ParcelError(f"The array '{name}' cannot be read: {error}") from error
        if (array.dtype, tuple(array.shape), array.stype) != (dtype, shape, "numpy.ndarray"):
            raise ParcelError(f"The array '{name}' is not of the type and shape that it announces.")


def check_hashes(parcel: RecordDict, manifest: Manifest) -> None:
    """Refuse a parcel whose arrays do not have the hashes of its label."""
    hash_of = manifest.hash_of
    for name, record in array_records(parcel).items():
        if hash_of.get(name) != hash_arrays(record):
            raise ParcelError(
                f"The '{name}' of lineage '{manifest.lineage}' has changed on its way."
            )


def is_sealed(record: ArrayRecord) -> bool:
    """Whether only hospitals can read a record (client_app.authority.sealing)."""
    return list(record) == ["sealed"] and record["sealed"].dtype == "uint8"


def check_sealed(parcel: RecordDict, sealed: bool) -> None:
    """Refuse a parcel that is sealed if the run is not sealed, or open if it is sealed."""
    for name, record in array_records(parcel).items():
        if is_sealed(record) != sealed:
            found = "not sealed" if sealed else "sealed"
            raise ParcelError(
                f"The record '{name}' is {found}: all hospitals need 'members' in their "
                "node-config, or none."
            )


def check_same_layout(layout: Layout, other: Layout) -> None:
    """Refuse a model whose arrays differ from another's in name, dtype or shape.

    The server sees only the size of a sealed model, which changes by its head with members' keys.
    """
    if layout.keys() == other.keys() == {"sealed"}:
        size, sent = (math.prod(each["sealed"][1]) for each in (layout, other))
        if size > sent + HEAD:
            raise ParcelError(f"The sealed model has {size} bytes; it left with {sent}.")
        return
    differing = sorted(dict(layout.items() ^ other.items()))
    if differing:
        raise ParcelError(
            "The model came back with other arrays than it left with: "
            f"{join_names(differing)}. Is the code the same at every hospital?"
        )


def bundle(parcels: Mapping[str, RecordDict]) -> RecordDict:
    """Put the labels and models of several parcels into one message, as "<lineage>/<record>"."""
    return RecordDict(
        {
            f"{lineage}/{name}": parcel[name]
            for lineage, parcel in parcels.items()
            for name in ("manifest", "model")
        }
    )


def unbundle(content: RecordDict) -> dict[str, RecordDict]:
    """Take the parcels out of a message again, by lineage."""
    parcels: dict[str, RecordDict] = {}
    for name, record in content.items():
        lineage, slash, record_name = name.rpartition("/")
        if slash:
            parcels.setdefault(lineage, RecordDict())[record_name] = record
    return parcels


def save(parcel: RecordDict, path: Path) -> None:
    """Write a parcel as an archive: arrays as `<record>/<array>`, and the manifest as JSON."""
    arrays = {
        f"{name}/{key}": array
        for name, record in array_records(parcel).items()
        for key, array in record.items()
    }
    manifest = json.dumps(dict(parcel["manifest"]))
    archive.write(path, arrays, {"manifest.json": manifest})


def load(path: Path) -> RecordDict:
    """Read a parcel that `save` wrote; an ArchiveError if the file is no parcel."""
    arrays, texts = archive.read(path)
    records: dict[str, dict[str, Array]] = {}
    for place, array in arrays.items():
        name, _, key = place.partition("/")
        if PARCEL_RECORDS.get(name) is not ArrayRecord:
            raise archive.ArchiveError(f"Not a parcel: it has the array {place[:80]!r}.")
        records.setdefault(name, {})[key] = array
    try:
        manifest = ConfigRecord(from_json(texts["manifest.json"], dict[str, Any]))
    except (KeyError, TypeError, ValueError) as error:
        raise archive.ArchiveError(f"Not a parcel: its manifest is missing ({error}).") from error
    parcel = RecordDict({name: ArrayRecord(each) for name, each in records.items()})
    parcel["manifest"] = manifest
    return parcel
