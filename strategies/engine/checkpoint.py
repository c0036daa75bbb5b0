"""A checkpoint: what a run needs to go on after its server was lost, in one folder.

    state.json     the state of the run (state.py), and what the server notes beside it
    *.npz          its parcels (shelf.py)

A parcel is on the shelf before a state names it. Then state.json is replaced, then parcels that it
does not name are deleted. So a kill between any two steps leaves the checkpoint before or the one
after.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from strategies.engine.shelf import Shelf, sync
from strategies.engine.state import State
from strategies.protocol.archive import ArchiveError
from strategies.protocol.files import FileError, read_json, replacing
from strategies.protocol.records import ParcelError
from strategies.protocol.shapes import ShapeError, ShapeT, shaped

FORMAT = 2
STATE = "state.json"


class CheckpointError(ValueError):
    """A folder holds no checkpoint that can be used."""


def save(state: State, notes: Mapping[str, Any]) -> None:
    """Put a checkpoint in the place of the one that is there, if any.

    Args:
        state: Its shelf is in the folder of the checkpoint.
        notes: What the server keeps beside the state, as JSON has it.
    """
    folder = state.shelf.folder
    sync(folder)  # no file that state.json names may be lost if it is not
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
    """Read the checkpoint of a folder: the state and the notes beside it.

    Args:
        folder: The checkpoint.
        notes: The type of the notes.

    Raises:
        CheckpointError: There is none, it is damaged, or of another version.
    """
    try:
        content = read_json(folder / STATE, _Content)
        if content["format"] != FORMAT:
            raise CheckpointError(
                f"its checkpoint has format {content['format']}, this is format {FORMAT}: resume "
                "it with the version of fedhandoff that it began with"
            )
        return (
            State.from_json(content["state"], Shelf(folder)),
            shaped(content["notes"], notes, "notes"),
        )
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no {error.filename}") from error
    except (FileError, ShapeError, ParcelError, ArchiveError) as error:
        raise CheckpointError(f"its checkpoint is damaged: {error}") from error


def remove(folder: Path) -> None:
    """Delete a checkpoint, as a run that has completed does."""
    (folder / STATE).unlink(missing_ok=True)  # first: nobody may go on from what is left
    shutil.rmtree(folder)
