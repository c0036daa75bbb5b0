"""A checkpoint: what a run needs to go on after its server was lost, in one folder.

    state.json     facts, and which parcel is in which file
    *.npz          the parcels, as they are (strategies.protocol.parcel.save)

A file never changes: its name says what is in it. New parcels are written first, then state.json is
replaced, then parcels that it does not name are deleted. So a kill between any two steps leaves the
checkpoint before or the one after, and a parcel that stayed as it was is not written again.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flwr.app import RecordDict

from strategies.protocol.parcel import Manifest, check_hashes
from strategies.protocol.parcel import load as load_parcel
from strategies.protocol.parcel import save as save_parcel
from strategies.protocol.records import from_record

FORMAT = 1
STATE = "state.json"


class CheckpointError(ValueError):
    """A folder holds no checkpoint that can be used."""


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on.

    Attributes:
        facts: All but the parcels, as JSON has it.
        parcels: By what they are to the run, and by name.
    """

    facts: Mapping[str, Any]
    parcels: Mapping[str, Mapping[str, RecordDict]]


def save(checkpoint: Checkpoint, folder: Path) -> None:
    """Put a checkpoint in the place of the one that is there, if any."""
    folder.mkdir(exist_ok=True)
    files: dict[str, dict[str, str]] = {}
    for kind, parcels in checkpoint.parcels.items():
        files[kind] = {name: _file_name(parcel) for name, parcel in parcels.items()}
        for name, file in files[kind].items():
            if not (folder / file).exists():
                save_parcel(parcels[name], folder / "parcel.part")
                _publish(folder / "parcel.part", folder / file)
    state = {"format": FORMAT, "facts": checkpoint.facts, "files": files}
    _sync(folder)  # no file that state.json names may be lost if it is not
    (folder / "state.part").write_text(json.dumps(state), encoding="utf-8")
    _publish(folder / "state.part", folder / STATE)
    _sync(folder)
    named = {file for names in files.values() for file in names.values()}
    for path in folder.glob("*.npz"):
        if path.name not in named:
            path.unlink()


def remove(folder: Path) -> None:
    """Delete a checkpoint, as a run that has completed does."""
    (folder / STATE).unlink(missing_ok=True)  # first: nobody may go on from what is left
    shutil.rmtree(folder)


def load(folder: Path) -> Checkpoint:
    """Read the checkpoint of a folder.

    Raises:
        CheckpointError: There is none, it is damaged, or of another version.
    """
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        parcels = {
            kind: {name: _load_parcel(folder / file) for name, file in files.items()}
            for kind, files in state["files"].items()
        }
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no {error.filename}") from error
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"its checkpoint is damaged: {error}") from error
    if state["format"] != FORMAT:
        raise CheckpointError(
            f"its checkpoint has format {state['format']}, this is format {FORMAT}: resume it with "
            "the version of fedhandoff that it began with"
        )
    return Checkpoint(state["facts"], parcels)


def _load_parcel(path: Path) -> RecordDict:
    parcel = load_parcel(path)
    check_hashes(parcel, from_record(Manifest, parcel.config_records["manifest"]))
    return parcel


def _file_name(parcel: RecordDict) -> str:
    """A label has the hashes of the arrays; records that do not travel along are missing."""
    label = parcel.config_records["manifest"]
    content = json.dumps([dict(label), sorted(parcel)]).encode()
    # A hospital chose the name of the lineage; quoted, it cannot lead out of the folder.
    lineage = quote(str(label["lineage"]), safe=" ")[:60]
    return f"{lineage}-{hashlib.sha256(content).hexdigest()}.npz"


def _publish(draft: Path, path: Path) -> None:
    """Give a finished file its name, once it is on the disk."""
    _sync(draft)
    os.replace(draft, path)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
