"""The synthetic images that the server received in a run that is not sealed."""

from contextlib import suppress

from pages.pictures import Strip, strips_of_column
from strategies.engine.state import State
from strategies.protocol.parcel import is_sealed

HOSPITALS = 12  # most hospitals with images on the page


def pictures(state: State) -> dict[str, list[Strip]]:
    """Strips by hospital; sealed and damaged buffers are left out."""
    found = {}
    for hospital, name in sorted(state.buffers.items())[:HOSPITALS]:
        with suppress(OSError, ValueError, KeyError):
            buffer = state.shelf.get(name).array_records["buffer"]
            if not is_sealed(buffer):
                png, labels = (buffer[key].numpy() for key in ("images", "labels"))
                found[hospital] = strips_of_column(png.tobytes(), labels, state.classes)
    return found
