"""Opens a NIfTI file with nibabel; needs the extra `nifti`."""

import math
from contextlib import suppress
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from client_app.datasets.image import MAX_BYTES, Header, Opened, UnusableImage, stretch
from strategies.protocol.extras import install_command


def open_nifti(stream: IO[bytes], start: bytes, slice_: int | None) -> Opened:
    """Open a slice of a volume, or an image; `start` is the file's first 540 bytes.

    Raises:
        UnusableImage: The image cannot be used.
        Exception: nibabel raises many types.
    """
    try:
        from nibabel import Nifti1Header, Nifti2Header
        from nibabel.arrayproxy import ArrayProxy
        from nibabel.orientations import apply_orientation, io_orientation
    except ImportError:
        raise UnusableImage(
            f"is NIfTI: install the extra with {install_command('nifti')}"
        ) from None

    one = start[344:348] == b"n+1\0"
    about = Nifti1Header(start[:348], check=False) if one else Nifti2Header(start, check=False)
    shape, dtype = about.get_data_shape(), about.get_data_dtype()
    if len(shape) < 2 or min(shape) < 1 or any(length > 1 for length in shape[3:]):
        raise UnusableImage("is NIfTI that is neither an image nor a volume")
    if dtype.kind not in "iuf":
        raise UnusableImage("is NIfTI with values that are not real numbers")
    if not about["vox_offset"]:
        about["vox_offset"] = about.single_vox_offset
    if about["vox_offset"] < about.single_vox_offset:
        raise UnusableImage(
            "is NIfTI with values that begin within the header (vox_offset): save it anew"
        )
    if not np.isfinite(about["scl_inter"]):
        about["scl_inter"] = 0  # an offset of all pixels does not change the scaled image
    # A slice needs all bytes before it to be unzipped, so the whole size counts.
    if about.get_data_offset() + math.prod(shape) * dtype.itemsize > MAX_BYTES:
        raise UnusableImage("is NIfTI that is too large")
    width, height, depth = (*shape, 1)[:3]
    about.set_data_shape((width, height, depth))
    if depth > 1 and slice_ is None:
        raise UnusableImage("is a volume: name one slice, from 0, in the manifest's column `slice`")
    if not 0 <= (slice_ or 0) < depth:
        raise UnusableImage(f"has no such slice: the first is 0, the last {depth - 1}")
    # For each stored axis: right, anterior or superior (RAS), and its direction.
    orientation = io_orientation(_affine(about))
    if orientation[0, 0] > orientation[1, 0]:
        width, height = height, width

    def decode() -> NDArray[np.uint8]:
        # Unzips up to this slice, holds this slice alone, and applies slope and intercept.
        values = ArrayProxy(stream, about)[:, :, slice_ or 0]
        turned = apply_orientation(values[:, :, None], orientation)
        plane = turned.take(0, axis=int(orientation[2, 0]))
        # The radiological view: anterior is up, and the patient's right is at the left. If the
        # third axis is another one, superior is up, and the patient's right or anterior is at the
        # left.
        return stretch(plane[::-1, ::-1].T)

    return Header("NIFTI", width, height, 1, 8 * dtype.itemsize), decode


def _affine(about: Any) -> NDArray[np.float64]:
    """The affine [4, 4] of a NIfTI header: its sform, else its qform, else that of ANALYZE."""
    sizes = about["pixdim"]  # only the signs count here
    sizes[0] = -1 if sizes[0] < 0 else 1
    sizes[1:4][~(sizes[1:4] > 0)] = 1
    for read in (about.get_sform, about.get_qform):
        with suppress(ValueError):  # an invalid quaternion
            affine, code = read(coded=True)
            if code and np.isfinite(affine).all() and np.linalg.matrix_rank(affine[:3, :3]) == 3:
                return cast(NDArray[np.float64], affine)
    if about["sform_code"] or about["qform_code"]:
        raise UnusableImage(
            "is NIfTI with an unusable matrix of orientation (sform, qform): set it anew"
        )
    return cast(NDArray[np.float64], about.get_base_affine())
