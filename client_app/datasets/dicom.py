"""Opens a DICOM file with pydicom; needs the extra `dicom`."""

import hashlib
import io
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import IO, Any

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from client_app.datasets.image import (
    MAX_PIXELS,
    SEVERAL,
    TOO_LARGE,
    Header,
    Opened,
    UnusableImage,
    plain_name,
    scale,
    stretch,
)
from strategies.protocol.extras import install_command

GREY = ("MONOCHROME1", "MONOCHROME2")
# Photometric Interpretation -> samples of a pixel. pydicom treats other interpretations as RGB.
SAMPLES = {**dict.fromkeys(GREY, 1), "PALETTE COLOR": 1, "RGB": 3}
SAMPLES |= dict.fromkeys(["YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT"], 3)
# Modalities without an image. Some of these files claim to be an image.
WITHOUT_PICTURE = re.compile("SR|PR|KO|DOC|REG|SEG|ECG|HD|EPS|AU|PLAN|FID|RT(?!IMAGE).*")
NO_PICTURE = "is DICOM that holds no picture"


def open_dicom(stream: IO[bytes]) -> Opened:
    """Open a DICOM file.

    Raises:
        UnusableImage: The image cannot be used.
        Exception: pydicom raises many types.
    """
    try:
        import pydicom
    except ImportError:
        raise UnusableImage(
            f"is DICOM: install the extra with {install_command('dicom')}"
        ) from None

    # The first bytes name the transfer syntax. pydicom would inflate the whole file to find it.
    if b"1.2.840.10008.1.2.1.99" in stream.read(1024):
        raise UnusableImage(
            "is DICOM compressed as Deflated Explicit VR, and cannot be read here: export it "
            "uncompressed"
        )
    stream.seek(0)
    dataset = pydicom.dcmread(stream, stop_before_pixels=True, force=True)
    pixels = stream.read(12)  # the beginning of the element that holds the pixels
    modality = str(dataset.get("Modality") or "")
    _check_picture(dataset, pixels, modality)
    syntax = _transfer_syntax(dataset, pixels)
    _check_description(dataset, pixels, syntax)
    name = plain_name(str(dataset.get("PatientID") or ""))  # an anonymised file may have none
    name = name or str(dataset.get("StudyInstanceUID") or "")
    header = Header(
        kind=f"DICOM {modality}" if re.fullmatch("[A-Z]{2,16}", modality) else "DICOM",
        width=int(dataset.Columns),
        height=int(dataset.Rows),
        channels=1 if dataset.PhotometricInterpretation in GREY else 3,
        bits=int(dataset.get("BitsStored") or dataset.BitsAllocated),
        patient=hashlib.sha256(name.encode()).hexdigest()[:16] if name else "",
    )
    return header, partial(_decode, stream, syntax, header.bits)


def _check_picture(dataset: Any, pixels: bytes, modality: str) -> None:
    """Check that a file holds one picture."""
    from pydicom.uid import UID

    if not pixels or "Rows" not in dataset or modality in ("SEG", "RTDOSE"):
        about = dataset.get("SOPClassUID") or dataset.file_meta.get("MediaStorageSOPClassUID", "")
        if "Image" in UID(about).name and not WITHOUT_PICTURE.fullmatch(modality):
            raise UnusableImage("is DICOM that ends before its pixels: copy or export it again")
        raise UnusableImage(NO_PICTURE)
    if int(dataset.get("NumberOfFrames") or 1) > 1:
        raise UnusableImage(SEVERAL)


def _transfer_syntax(dataset: Any, pixels: bytes) -> Any:
    """The transfer syntax, a UID, if pixels in it can be decoded here."""
    from pydicom.pixels.decoders.base import get_decoder
    from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian

    syntax = dataset.file_meta.get("TransferSyntaxUID")
    if not syntax:
        implicit = dataset.original_encoding[0]
        if pixels[4 if implicit else 8 :][:4] == b"\xff" * 4:  # undefined length
            raise UnusableImage("is DICOM that does not name its compression: export it again")
        syntax = ImplicitVRLittleEndian if implicit else ExplicitVRLittleEndian
    try:
        available = get_decoder(syntax).is_available
    except NotImplementedError:  # pydicom does not know this syntax
        raise UnusableImage(
            "is DICOM in a transfer syntax that cannot be decoded here: export it uncompressed"
        ) from None
    if not available:
        raise UnusableImage(
            f"is DICOM compressed as {syntax.name}: install the extra that decodes it with "
            f"{install_command('dicom')}"
        )
    return syntax


def _check_description(dataset: Any, pixels: bytes, syntax: Any) -> None:
    """Check that the attributes that describe the pixels are there, and fit one another."""
    from pydicom.datadict import dictionary_description
    from pydicom.uid import JPEG2000TransferSyntaxes

    colour, samples = dataset.get("PhotometricInterpretation"), dataset.get("SamplesPerPixel")
    needed = ["Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation", "BitsAllocated"]
    needed += ["PlanarConfiguration"] if samples == 3 else []
    needed += ["BitsStored", "PixelRepresentation"] if b"\x10" in pixels[:4] else []  # no floats
    for keyword in needed:
        if dataset.get(keyword) in (None, ""):
            name = dictionary_description(keyword)
            raise UnusableImage(f"is DICOM without {name}: export it again")
    if (
        SAMPLES.get(colour) != samples
        or (samples == 3 and dataset.PixelRepresentation)
        or (colour in ("YBR_ICT", "YBR_RCT") and syntax not in JPEG2000TransferSyntaxes)
    ):
        raise UnusableImage(
            "is DICOM with a Photometric Interpretation that is not read here, or does not fit "
            "Samples per Pixel, Pixel Representation or compression: export it uncompressed"
        )
    highest = int(dataset.get("BitsStored") or dataset.BitsAllocated) - 1
    if dataset.get("HighBit", highest) not in (None, highest):  # the standard once allowed it
        raise UnusableImage("is DICOM with a High Bit other than Bits Stored - 1: export it again")


def _decode(stream: IO[bytes], syntax: Any, bits: int) -> NDArray[np.uint8]:
    """Decode the pixels: [H, W] or [H, W, 3]."""
    import pydicom
    from pydicom.encaps import get_frame
    from pydicom.pixels.processing import apply_color_lut

    stream.seek(0)
    dataset = pydicom.dcmread(stream, force=True)
    dataset.file_meta.TransferSyntaxUID = syntax
    if syntax.is_encapsulated:  # the picture may be far larger than the header claims
        frame = io.BytesIO(get_frame(dataset.PixelData, 0, number_of_frames=1))
        with suppress(PIL.UnidentifiedImageError):  # Pillow knows most compressions
            within = PIL.Image.open(frame, formats=("JPEG", "JPEG2000"))
            if within.width * within.height > MAX_PIXELS:
                raise UnusableImage(TOO_LARGE)
    colour = dataset.PhotometricInterpretation  # of the file; decoding changes YBR to RGB
    stored = dataset.pixel_array  # [H, W] or [H, W, 3]
    if stored.ndim != (3 if dataset.SamplesPerPixel == 3 else 2):  # frames without their number
        raise UnusableImage(SEVERAL)
    if colour in GREY:
        return _decode_grey(dataset, stored)
    if colour == "PALETTE COLOR":
        count, first, bits = dataset.RedPaletteColorLookupTableDescriptor
        # pydicom 3.0 looks values up in the type of the entries: 300 in 8 bits would be 44.
        stored = stored.clip(np.int32(first), np.int32(first + (count or 2**16) - 1))
        _check_segments(dataset, "<" if syntax.is_little_endian else ">")
        stored = apply_color_lut(stored, dataset)[..., :3]  # without transparency
        bits = min(bits, 8 * stored.itemsize)  # some devices write 16 for entries of 8 bits
    return (stored >> max(0, bits - 8)).astype(np.uint8)


def _check_segments(dataset: Any, order: str) -> None:
    """Refuse a palette in segments that has more entries than a palette can have.

    A segment may also repeat all segments before it, so 700 bytes could stand for gigabytes. Such
    segments are not read.
    """
    form = f"{order}u{dataset.RedPaletteColorLookupTableDescriptor[2] // 8}"
    for colour in ("Red", "Green", "Blue", "Alpha"):
        data = dataset.get(f"Segmented{colour}PaletteColorLookupTableData") or b""
        numbers, place, entries = np.frombuffer(data, form).tolist(), 0, 0
        while place + 1 < len(numbers):
            kind, length = numbers[place : place + 2]
            place += 2 + (1 if kind else length)  # kind 1 is a line to one entry, kind 0 a list
            entries += length
            if kind > 1 or entries > 2**16:
                raise UnusableImage(
                    "is DICOM with a palette in segments that are not read here: export it with "
                    "another palette"
                )


def _decode_grey(dataset: Any, stored: NDArray[Any]) -> NDArray[np.uint8]:
    """Grey values [H, W] as a viewer first shows the stored values [H, W]; padding is black."""
    from pydicom.pixels.processing import apply_modality_lut, apply_voi_lut

    padding = np.zeros(stored.shape, bool)
    if first := _values(dataset, "PixelPaddingValue")[:1]:
        limits = first + _values(dataset, "PixelPaddingRangeLimit")[:1]
        # Cast to the type of the pixels: some devices write 63536 for -2000.
        ends = np.array(limits).astype(stored.dtype)
        padding = (ends.min() <= stored) & (stored <= ends.max())
    rescale = ("RescaleSlope", 1.0), ("RescaleIntercept", 0.0)
    for keyword, default in rescale:  # a slope of 0 counts as missing
        numbers = [number for number in _numbers(dataset, keyword) if number]
        setattr(dataset, keyword, next(filter(math.isfinite, numbers), default))
    given = any(getattr(dataset, keyword) != default for keyword, default in rescale)
    (item,) = (dataset.get("ModalityLUTSequence") or [{}])[:1]
    dataset.ModalityLUTSequence = None
    if item.get("LUTDescriptor") and item.get("LUTData"):
        values = _look_up(stored, item, "><"[dataset.original_encoding[1]])
    else:
        values = apply_modality_lut(stored, dataset) if given else stored
    function = str(next(iter(_values(dataset, "VOILUTFunction")), "LINEAR")).upper()
    windows = zip(_numbers(dataset, "WindowCenter"), _numbers(dataset, "WindowWidth"), strict=False)
    smallest = 1 if function == "LINEAR" else math.ulp(0)
    usable = [(c, w) for c, w in windows if math.isfinite(c) and smallest <= w < math.inf]
    dataset.WindowCenter, dataset.WindowWidth = usable[0] if usable else (None, None)
    dataset.VOILUTFunction = function
    top, (item,) = 0, (dataset.get("VOILUTSequence") or [{}])[:1]
    if item.get("LUTDescriptor") and item.get("LUTData"):
        length, start, depth = item.LUTDescriptor
        if start >= 2**15 and values.min() < 0:  # some devices write 65534 for -2
            start -= 2**16
        top = 2**depth - 1
        # Two faults of pydicom 3.0 are avoided here. If the entries have 8 bits, it looks values up
        # in 8 bits, whatever the length. Values far above the last entry get the first ones.
        item.LUTDescriptor = [length, start, 16]
        values = values.clip(float(start), start + (length or 2**16) - 1.0)
    elif usable and function not in ("LINEAR", "LINEAR_EXACT", "SIGMOID"):
        raise UnusableImage(
            "is DICOM with a VOI LUT Function that is not in the standard: correct or blank it"
        )
    windowed = apply_voi_lut(values, dataset)  # uses the table, or else the first window
    if windowed is values:
        shown = stretch(values, ~padding)
    elif top:
        shown = scale(windowed, 0, top)
    else:  # values below and above the window show the values of its ends
        shown = scale(windowed, *apply_voi_lut(np.array([-np.inf, np.inf]), dataset))
    if dataset.PhotometricInterpretation == "MONOCHROME1":  # the smallest value is white
        shown = 255 - shown
    shown[padding] = 0
    return shown


def _look_up(values: NDArray[Any], item: Any, order: str) -> NDArray[np.uint16]:
    """The entries of a table for values; those beyond it take its ends.

    pydicom 3.0 subtracts the first value in the type of the pixels, which overflows.
    """
    _, start, _ = item.LUTDescriptor
    if start >= 2**15 and values.dtype.kind == "i":  # some devices write 64512 for -1024
        start -= 2**16
    data = item.LUTData  # numbers, or bytes of VR OW
    entries = np.frombuffer(data, f"{order}u2") if isinstance(data, bytes) else np.array(data)
    places = values.clip(float(start), start + len(entries) - 1.0) - start
    found: NDArray[np.uint16] = entries.astype(np.uint16)[places.astype(np.int32)]
    return found


def _numbers(dataset: Any, keyword: str) -> list[float]:
    """The numbers of an attribute that the file stores as text; NaN for a blank."""
    from pydicom.datadict import dictionary_description

    try:
        return [math.nan if each is None else float(each) for each in _values(dataset, keyword)]
    except ValueError:
        name = dictionary_description(keyword)
        raise UnusableImage(
            f"is DICOM with text instead of a number in {name}: correct or blank it"
        ) from None


def _values(dataset: Any, keyword: str) -> list[Any]:
    """The values of a display attribute; empty if there are none.

    Enhanced objects store it in functional groups, of one frame or of all frames.
    """
    groups = ("PerFrameFunctionalGroupsSequence", "SharedFunctionalGroupsSequence")
    macros = ("PixelValueTransformationSequence", "FrameVOILUTSequence")
    places = [dataset]
    for names in (groups, macros):
        places = [
            item for place in places for name in names for item in (place.get(name) or [])[:1]
        ]
    for place in (*places, dataset):
        found = place.get(keyword)
        several = found if isinstance(found, Sequence) and not isinstance(found, str) else [found]
        values = [None if each == "" else each for each in several]
        if any(value is not None for value in values):
            return values
    return []
