"""A checkpoint: one folder from which a run can go on after the loss of its server.

    state.json     the state of the run (state.py), and the server's notes
    *.npz          its parcels (shelf.py)

First the parcels are written. Then state.json is replaced. Then the parcels that it
does not name are deleted. So a kill between two steps leaves the old checkpoint or the new one.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from strategies.engine.shelf import Shelf
from strategies.engine.state import State
from strategies.protocol.archive import ArchiveError
from strategies.protocol.files import LARGE, FileError, read_json, replacing
from strategies.protocol.records import ParcelError
from strategies.protocol.shapes import ShapeError, ShapeT, from_value

FORMAT = 3
STATE = "state.json"


class CheckpointError(ValueError):
    """A folder has no usable checkpoint."""


def save(state: State, notes: Mapping[str, Any]) -> None:
    """Write a checkpoint into the folder of the state's shelf, in the place of the present one.

    The server's notes are of types that JSON has.
    """
    folder, sync = state.shelf.folder, state.shelf.sync
    state.shelf.write(state.parcels)
    sync(folder)  # the files must be on the disk before state.json names them
    content = {"format": FORMAT, "state": state.to_json(), "notes": notes}
    with replacing(folder / STATE) as draft:
        draft.write_text(json.dumps(content), encoding="utf-8")
        sync(draft)
    sync(folder)
    state.shelf.keep_only(state.parcels)


class _Content(TypedDict):
    format: int
    state: object
    notes: object


def load(folder: Path, notes: type[ShapeT]) -> tuple[State, ShapeT]:
    """Read the checkpoint of a folder: the state, and the notes of the given type beside it.

    Raises:
        CheckpointError: There is no checkpoint, or it is damaged or of another version.
    """
    try:
        content = read_json(folder / STATE, _Content, times=LARGE)
        if content["format"] != FORMAT:
            raise CheckpointError(
                f"its checkpoint has format {content['format']}, this is format {FORMAT}: resume "
                "it with the version of fedhandoff that it began with"
            )
        state = State.from_json(content["state"], Shelf(folder))
        return state, from_value(content["notes"], notes, "notes")
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no {error.filename}") from error
    except (FileError, ShapeError, ParcelError, ArchiveError) as error:
        raise CheckpointError(f"its checkpoint is damaged: {error}") from error


def remove(folder: Path) -> None:
    """Delete the checkpoint of a complete run."""
    (folder / STATE).unlink(missing_ok=True)  # first: no run may go on from a part
    shutil.rmtree(folder)
