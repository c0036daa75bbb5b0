"""An image file that is open: its header, its decoder, and the scale of its grey values.

Legend: H, W pixels of the upright image.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A chest X-ray has about 15 million pixels, a photograph of a large camera 50 million. Decoding
# takes up to 25 bytes a pixel, or 50 bytes if the pixel has more than 8 bits.
MAX_PIXELS = 2**26
TOO_LARGE = f"has more than {MAX_PIXELS} pixels"
MAX_BYTES = 2**32  # of a file, and of a volume that it holds
SEVERAL = "has several frames or pages: save the one to use as a file of its own"


class UnusableImage(ValueError):
    """An image file cannot be used.

    The text continues a sentence that begins with the image. It is for the hospital and its log
    alone. Even so, it names no path and no file, and quotes no content of the file.
    """


@dataclass(frozen=True)
class Header:
    """The properties of an image that are known without decoding."""

    # One of FORMATS of files.py, "NIFTI", or "DICOM" with the modality, such as "DICOM CR"
    kind: str
    width: int  # upright
    height: int
    channels: int  # 1 = grey, 3 = colour
    bits: int  # per channel, as stored
    patient: str = ""  # hash of a DICOM file's patient ID, or else of its study; empty = none

    @property
    def memory(self) -> int:
        """The memory in bytes that decoding takes at most."""
        return self.width * self.height * (25 if self.bits <= 8 else 50)


# The header, and the decoder, which returns [H, W] or [H, W, 3].
Opened = tuple[Header, Callable[[], NDArray[np.uint8]]]


def plain_name(patient: str) -> str:
    """A patient's name or number, however it is typed: "p7" for "P7"."""
    return " ".join(patient.casefold().split())


def stretch(values: NDArray[Any], used: NDArray[np.bool_] | None = None) -> NDArray[np.uint8]:
    """Scale numbers linearly to 0..255, from the smallest to the largest finite one in `used`."""
    chosen = values[np.isfinite(values) if used is None else np.isfinite(values) & used]
    return scale(values, chosen.min(), chosen.max()) if chosen.size else scale(values, 0, 0)


def scale(values: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    """Scale numbers linearly to 0..255, from `low` to `high`; all 0 if these are equal."""
    if low == high:
        return np.zeros(values.shape, np.uint8)
    with np.errstate(all="ignore"):
        share = (values.astype(np.float64) - float(low)) / (float(high) - float(low))
    pixels: NDArray[np.uint8] = np.rint(255 * np.nan_to_num(share).clip(0, 1)).astype(np.uint8)
    return pixels
