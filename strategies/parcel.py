"""The parcel, and with it the complete list of what may leave a hospital.

A parcel is a Flower RecordDict of

    model      ArrayRecord    the state dict, names and dtypes kept
    buffer     ArrayRecord    synthetic images, as one PNG picture, and their labels
    memory     ArrayRecord    what a method carries beside the model
    manifest   ConfigRecord   what the parcel is: `Manifest`

and an answer to the server holds the records that `ANSWERS` lists for its verb, with no metric but
those in `METRICS`, or one failure out of `Failure`; a # stands for a number. Whatever else is in an
answer is refused, at the hospital before it leaves and at the server when it arrives. Nothing here
is ever pickled.

The server relays parcels bit for bit and looks at their labels only: it checks the manifest, the
hashes and the shapes, and opens no array.
"""

import hashlib
import json
import math
import re
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from enum import IntEnum
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

FORMAT = 1

ARRAY_RECORDS = ("model", "buffer", "memory")
PARCEL_RECORDS = {
    "model": ArrayRecord,
    "buffer": ArrayRecord,
    "memory": ArrayRecord,
    "manifest": ConfigRecord,
}
_LABELS = {"manifest": ConfigRecord, "metrics": MetricRecord}
ANSWERS: dict[str, dict[str, type]] = {
    "query.live": {},
    "query.enrol": {"metrics": MetricRecord, "card": ConfigRecord},
    "query.prepare": {**PARCEL_RECORDS, "metrics": MetricRecord, "card": ConfigRecord},
    "train": {
        "model": ArrayRecord,
        "memory": ArrayRecord,
        **_LABELS,
        # The model after each epoch but the last, if the order asks for `snapshots`.
        "epoch-#/model": ArrayRecord,
        "epoch-#/manifest": ConfigRecord,
    },
    "evaluate": {"metrics": MetricRecord},
}
# Its name, the names of its classes, the public half of its keys, and what the check of its buffer
# came to.
CARD = frozenset({"hospital", "classes", "identity", "release"})
# Perceptual distances carry the name of what measured them: LPIPS, or an untrained network of the
# same shape where there are no trained weights.
DISTANCES = [
    f"{weights}-{net}" for weights in ("lpips", "untrained") for net in ("alex", "squeeze", "vgg")
]
METRICS = frozenset(
    {
        "num-train",  # images the hospital trains on
        "num-test",  # images it tests on
        "num-quarantined",  # images it has and cannot use
        "num-examples",  # images behind the metrics of this answer
        "train-loss",  # mean over the last epoch of a visit
        "accuracy",
        "accuracy-after-visit",  # on the hospital's own test images
        "balanced-accuracy",
        "auroc",
        # With `evaluate.per-class`: test images of a class, and how many of them the model gets.
        "images-of-class-#",
        "right-of-class-#",
        "seconds-prepare",
        "seconds-train",
        "seconds-evaluate",
        "seconds-serialise",
        # The hospital's GAN: iterations of both phases, Fréchet distance of its images to the real
        # ones (`fid`, or in the features of the hospital's own classifier), probability of ADA.
        "gan-iterations",
        "fid",
        "frechet-classifier",
        "ada-p",
        # The check of the buffer (gan.audit); distances as fractions of the pixels' range, or
        # perceptual.
        "release-passed",
        "release-discarded",
        "release-nearer-to-training",
        *(
            f"{figure}-{distance}"
            for figure in ("release-threshold", "release-nearest", "release-median")
            for distance in ("pixels", *DISTANCES)
        ),
        *(f"held-out-median-{distance}" for distance in ("pixels", *DISTANCES)),
        # Mean distance of two images of one class; of real images to their projections.
        *(f"diversity-{kind}-{d}" for kind in ("real", "synthetic") for d in DISTANCES),
        *(f"projection-{kind}-{d}" for kind in ("plain", "private") for d in DISTANCES),
    }
)

RecordT = TypeVar("RecordT", bound="Manifest | Order")


class Failure(IntEnum):
    """Why a hospital did not do its part; the number is the code of the Flower Error."""

    SETTINGS = 4201  # the settings of the run cannot be used
    DATA = 4202  # the hospital's data cannot be used
    PARCEL = 4203  # the parcel that arrived was refused
    DIVERGED = 4204  # training gave a model that is not finite
    TIMEOUT = 4205  # no answer within the time allowed
    CRASHED = 4206  # an unforeseen error; its details stay in the hospital's own log
    UNDECLARED = 4207  # the answer held something that may not leave a hospital
    GONE = 4208  # the hospital is not connected
    RELEASE = 4209  # the hospital's synthetic images may not leave it


class ParcelError(ValueError):
    """A parcel is not what it must be."""


class UndeclaredError(ValueError):
    """An answer holds something that `ANSWERS`, `CARD` or `METRICS` does not list."""


@dataclass(frozen=True)
class Manifest:
    """What a parcel is and where it has been.

    Attributes:
        lineage: Identity of the travelling model, named after its first hospital.
        architecture: The network as JSON (client_app.models.Architecture).
        classes: Names of the classes, in the order of the network's outputs.
        round: Round of the last visit, from 1; 0 before the first.
        hop: Hop of the last visit, from 1; 0 before the first.
        epochs: Passes over the images that it has had at the last visit.
        visited: Hospitals that trained the model, first one first.
        parent: Hash of the model that the last visit started from; empty before the first.
        hashes: Hash of each array record, as "name=hash". A record that is listed but absent is
            one that the receiver holds already.
        format: Version of this format.
    """

    lineage: str
    architecture: str
    classes: list[str]
    round: int = 0
    hop: int = 0
    epochs: int = 0
    visited: list[str] = field(default_factory=list)
    parent: str = ""
    hashes: list[str] = field(default_factory=list)
    format: int = FORMAT

    def after(self, order: "Order") -> "Manifest":
        """The label after the visit that an order asked for; `pack` writes the new hashes."""
        return replace(
            self,
            round=order.round,
            hop=order.hop,
            epochs=order.epochs,
            visited=[*self.visited, order.hospital],
            parent=self.hash_of["model"],
        )

    @property
    def hash_of(self) -> dict[str, str]:
        """The hash of each array record, by its name."""
        return dict(entry.split("=", 1) for entry in self.hashes)


@dataclass(frozen=True)
class Order:
    """What a hospital is asked to do; travels as the record `order` beside the parcels.

    Attributes:
        round: Round of the paper, from 1; 0 before the first.
        hop: Hop within the round, from 1; 0 before the first.
        hospital: Name of the hospital; empty in the first message if the server knows none.
        classes: Names of the federation's classes, in the order of a network's outputs; empty in
            the first message, by which a hospital is asked for its own.
        learner: Name of the local objective (client_app.learners.LEARNERS).
        run: Identity of the run, under which a hospital keeps what is for this run alone. Flower's
            own changes when a run is resumed.
        epochs: Passes over the training images.
        test: Whether to test the model after training it.
        snapshots: Whether to answer also with the model after each epoch, for others to test.
        own_start: Whether the hospital's first model has initial weights of its own.
        shares_buffer: Whether the hospital's first parcel shall hold its buffer.
        replay: Hashes of the buffers to train on; those that the hospital does not hold yet travel
            beside the parcel, as "<hash>/buffer".
        ensemble: Whether to test also the mean of all models that came.
        sealed: Whether parcels travel sealed.
        members: The hospitals of the run and the public halves of their keys, as "name key".
        code: `code_hash` of the server; empty in later messages than the first.
    """

    round: int
    hop: int
    hospital: str
    classes: list[str]
    learner: str
    run: str
    epochs: int = 0
    test: bool = False
    snapshots: bool = False
    own_start: bool = False
    shares_buffer: bool = False
    replay: list[str] = field(default_factory=list)
    ensemble: bool = False
    sealed: bool = False
    members: list[str] = field(default_factory=list)
    code: str = ""


def ordered(classes: Iterable[str]) -> list[str]:
    """Names of classes in the order of their texts, or of their numbers if all are numbers."""
    names = set(classes)
    with suppress(ValueError):
        numbers = {name: float(name) for name in names}
        if all(map(math.isfinite, numbers.values())):  # a class may be called 'nan' or 'inf'
            return sorted(names, key=lambda name: (numbers[name], name))
    return sorted(names)


@cache
def code_hash() -> str:
    """SHA-256 of the source of the packages that server and hospitals must have the same of."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for package in ("client_app", "gan", "strategies"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def to_record(value: "Manifest | Order") -> ConfigRecord:
    """Write a manifest or an order as a Flower record."""
    return ConfigRecord(asdict(value))


def from_record(kind: type[RecordT], record: ConfigRecord) -> RecordT:
    """Read a manifest or an order, strictly.

    Raises:
        ParcelError: A field is missing, unknown, or of the wrong type.
    """
    wanted = {each.name: each.type for each in fields(kind)}
    if set(record) != set(wanted):
        raise ParcelError(
            f"The {kind.__name__.lower()} has the fields {sorted(record)}; "
            f"it must have {sorted(wanted)}."
        )
    for name, value in record.items():
        origin = list if "list" in str(wanted[name]) else wanted[name]
        if type(value) is not origin:
            raise ParcelError(f"'{name}' of the {kind.__name__.lower()} is {value!r}: wrong type.")
    return kind(**record)  # type: ignore[arg-type]


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
    """The parcel of a message or an answer, without what travels beside it."""
    return RecordDict({name: content[name] for name in PARCEL_RECORDS if name in content})


def check_parcel(parcel: RecordDict) -> Manifest:
    """Return the manifest of a parcel whose label is complete and whose hashes are right.

    Raises:
        ParcelError: Says what is wrong.
    """
    if not isinstance(record := parcel.get("manifest"), ConfigRecord):
        raise ParcelError("The parcel has no manifest.")
    manifest = from_record(Manifest, record)
    if manifest.format != FORMAT:
        raise ParcelError(
            f"The parcel has format {manifest.format}, this is format {FORMAT}: "
            "run the same version of fedhandoff everywhere."
        )
    if "model" not in parcel:
        raise ParcelError("The parcel has no model.")
    check_hashes(parcel, manifest)
    return manifest


def check_hashes(parcel: RecordDict, manifest: Manifest) -> None:
    """Refuse a parcel whose arrays are not those that its label names."""
    for name, record in parcel.array_records.items():
        if manifest.hash_of.get(name) != hash_arrays(record):
            raise ParcelError(
                f"The '{name}' of lineage '{manifest.lineage}' has changed on its way."
            )


def is_sealed(record: ArrayRecord) -> bool:
    """Whether only hospitals can read a record (client_app.sealing)."""
    return list(record) == ["sealed"] and record["sealed"].dtype == "uint8"


def check_sealed(parcels: Iterable[RecordDict], sealed: bool) -> None:
    """Refuse parcels that are sealed though the others are not, or the other way round."""
    for parcel in parcels:
        for name, record in parcel.array_records.items():
            if is_sealed(record) != sealed:
                raise ParcelError(
                    f"The record '{name}' is {'not ' * sealed}sealed: all hospitals need 'members' "
                    "in their node-config, or none."
                )


def check_same_layout(parcel: RecordDict, other: RecordDict) -> None:
    """Refuse a model whose arrays differ from another's in name, dtype or shape.

    Of sealed ones only a hospital can tell.
    """
    if is_sealed(parcel.array_records["model"]):
        return
    layouts = [
        {
            name: (array.dtype, tuple(array.shape))
            for name, array in each.array_records["model"].items()
        }
        for each in (parcel, other)
    ]
    differing = sorted(dict(layouts[0].items() ^ layouts[1].items()))
    if differing:
        raise ParcelError(
            f"The model came back with other arrays than it left with: {', '.join(differing[:5])}"
            f"{', ...' if len(differing) > 5 else ''}. Is the code the same at every hospital?"
        )


def check_answer(verb: str, content: RecordDict) -> None:
    """Refuse an answer that holds anything which may not leave a hospital.

    Raises:
        UndeclaredError: Names the record, card field or metric.
    """
    declared = ANSWERS.get(verb.replace("train.rewind", "train"), {})
    for name, record in content.items():
        if type(record) is not declared.get(_pattern_of(name)):
            raise UndeclaredError(
                f"The record '{name}' may not leave a hospital in answer to {verb}."
            )
    if extra := set(content.get("card", {})) - CARD:
        raise UndeclaredError(f"The card field '{min(extra)}' may not leave a hospital.")
    for key, value in content.get("metrics", {}).items():
        if _pattern_of(key.rpartition("/")[2]) not in METRICS or isinstance(value, list):
            raise UndeclaredError(f"The metric '{key}' may not leave a hospital.")


def _pattern_of(name: str) -> str:
    return re.sub("[0-9]+", "#", name)


def bundle(parcels: Mapping[str, RecordDict], records: Iterable[str]) -> RecordDict:
    """Put several parcels into one message, as "<lineage>/<record>"; only the `records` named."""
    return RecordDict(
        {f"{lineage}/{name}": parcels[lineage][name] for lineage in parcels for name in records}
    )


def unbundle(content: RecordDict) -> dict[str, RecordDict]:
    """Take the parcels out of a message again, by lineage."""
    parcels: dict[str, RecordDict] = {}
    for name, record in content.items():
        lineage, slash, record_name = name.rpartition("/")
        if slash:
            parcels.setdefault(lineage, RecordDict())[record_name] = record
    return parcels


def count_bytes(content: RecordDict) -> int:
    """Bytes of the arrays of a message, which is nearly all of it."""
    return sum(
        len(array.data) for record in content.array_records.values() for array in record.values()
    )


def save(parcel: RecordDict, path: Path) -> None:
    """Write a parcel as a NumPy .npz archive: `<record>/<array>` and the manifest as JSON text.

    An array record holds its arrays in NumPy's own file format, so they go to disk unopened.
    """
    with zipfile.ZipFile(path, "w") as archive:
        for name, record in parcel.array_records.items():
            for key, array in record.items():
                archive.writestr(f"{name}/{key}.npy", array.data)
        archive.writestr("manifest.json", json.dumps(dict(parcel["manifest"]), indent=1))


def load(path: Path) -> RecordDict:
    """Read a parcel that `save` wrote."""
    records: dict[str, Any] = {}
    with zipfile.ZipFile(path) as archive:
        for entry in archive.namelist():
            name, _, key = entry.removesuffix(".npy").partition("/")
            if name in ARRAY_RECORDS:
                array = np.load(BytesIO(archive.read(entry)), allow_pickle=False)
                records.setdefault(name, ArrayRecord())[key] = Array(array)
        manifest = json.loads(archive.read("manifest.json"))
    return RecordDict({**records, "manifest": ConfigRecord(manifest)})
