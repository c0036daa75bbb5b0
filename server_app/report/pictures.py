"""The synthetic images that came to the server, of a run that is not sealed."""

from contextlib import suppress

from pages.pictures import Strip, strips_of_column
from strategies.engine.state import State
from strategies.protocol.parcel import is_sealed
from strategies.protocol.records import ParcelError

HOSPITALS = 12  # whose images are on the page


def pictures(state: State) -> dict[str, list[Strip]]:
    """Strips by hospital; nothing of a buffer that the server cannot read, or that is damaged."""
    found = {}
    for hospital, name in sorted(state.buffers.items())[:HOSPITALS]:
        with suppress(OSError, ParcelError, ValueError, KeyError):
            buffer = state.shelf.get(name).array_records["buffer"]
            if not is_sealed(buffer):
                png, labels = (buffer[key].numpy() for key in ("images", "labels"))
                found[hospital] = strips_of_column(png.tobytes(), labels, state.classes)
    return found
