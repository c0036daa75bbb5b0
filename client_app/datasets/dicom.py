"""Opens a DICOM file with pydicom; needs the extra `dicom`."""

import hashlib
import io
import math
import re
import struct
from collections.abc import Sequence
from functools import partial
from typing import IO, Any

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from client_app.datasets.image import (
    SEVERAL,
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
PRIMARIES = ("Red", "Green", "Blue")
# Modalities without an image. Some of these files claim to be an image.
WITHOUT_PICTURE = re.compile("SR|PR|KO|DOC|REG|SEG|ECG|HD|EPS|AU|PLAN|FID|RT(?!IMAGE).*")
JPEG = b"\xff\xd8"
# A marker of JPEG or JPEG-LS (SOF), the segment's length, the precision; height, width and number
# of samples follow
START_OF_FRAME = re.compile(rb"(?s)\xff[\xc0-\xc3\xc5-\xc7\xc9-\xcb\xcd-\xcf\xf7].{3}(.{5})")
# Last marker (EOI, EOC) of JPEG, JPEG-LS and JPEG 2000. Start of a scan (SOS) of the former two.
END, SCAN = b"\xff\xd9", b"\xff\xda"
# Start and size of JPEG 2000, then its coding style (COD), with 1 if it transforms colours itself
COLOURS = re.compile(rb"(?s)\xff\x4f\xff\x51.*?\xff\x52.{6}(.)")
NO_FIT = (
    "is DICOM with a Photometric Interpretation that is not read here, or does not fit Samples per "
    "Pixel, Pixel Representation or compression: export it uncompressed"
)
NO_PICTURE = "is DICOM that holds no picture"
CUT_OFF = "is DICOM that ends before its pixels do: copy or export it again"


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
            raise UnusableImage(CUT_OFF)
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
    if colour == "PALETTE COLOR" and samples == 1:
        form = "Segmented" if "SegmentedRedPaletteColorLookupTableData" in dataset else ""
        needed += ["RedPaletteColorLookupTableDescriptor"]
        needed += [f"{form}{each}PaletteColorLookupTableData" for each in PRIMARIES]
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
        raise UnusableImage(NO_FIT)
    highest = int(dataset.get("BitsStored") or dataset.BitsAllocated) - 1
    if dataset.get("HighBit", highest) not in (None, highest):  # the standard once allowed it
        raise UnusableImage("is DICOM with a High Bit other than Bits Stored - 1: export it again")


def _decode(stream: IO[bytes], syntax: Any, bits: int) -> NDArray[np.uint8]:
    """Decode the pixels: [H, W] or [H, W, 3]."""
    import pydicom
    from pydicom.encaps import get_frame
    from pydicom.pixels.processing import apply_color_lut
    from pydicom.pixels.utils import get_expected_length
    from pydicom.uid import RLELossless

    stream.seek(0)
    dataset = pydicom.dcmread(stream, force=True)
    dataset.file_meta.TransferSyntaxUID = syntax
    length = max(
        len(dataset.get(f"{kind}PixelData") or b"") for kind in ("", "Float", "DoubleFloat")
    )
    if length < (1 if syntax.is_encapsulated else get_expected_length(dataset)):
        raise UnusableImage(CUT_OFF)
    if syntax.is_encapsulated:  # the picture may be far larger than the header claims
        frame = get_frame(dataset.PixelData, 0, number_of_frames=1)
        # Some decoders invent the pixels that are missing.
        if syntax != RLELossless and frame.rfind(END) <= frame.rfind(SCAN):
            raise UnusableImage(CUT_OFF)
        named = dataset.PhotometricInterpretation in ("YBR_FULL", "YBR_FULL_422")
        if named and (found := COLOURS.search(frame)) and found[1] == b"\x01":
            raise UnusableImage(NO_FIT)
        described = (dataset.Rows, dataset.Columns, dataset.SamplesPerPixel)
        try:
            within = PIL.Image.open(io.BytesIO(frame), formats=("JPEG", "JPEG2000"))
            fits = (within.height, within.width, len(within.getbands())) == described
            transform = within.info.get("adobe_transform")
            if transform in (0, 1) and "jfif" not in within.info and within.mode == "RGB":
                # Other readers of JPEG follow Adobe's marker, too. pydicom 3.0 only follows JFIF's.
                dataset.PhotometricInterpretation = "YBR_FULL" if transform else "RGB"
        except PIL.UnidentifiedImageError:  # Pillow does not know RLE and JPEG-LS
            frames = {*START_OF_FRAME.findall(frame)}
            fits = not frame.startswith(JPEG) or frames == {struct.pack(">HHB", *described)}
        if not fits:
            raise UnusableImage(
                "is DICOM with another height, width or number of samples than its Rows, Columns "
                "and Samples per Pixel say: export it again"
            )
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
    for colour in (*PRIMARIES, "Alpha"):
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
    from pydicom.pixels.processing import apply_modality_lut, apply_windowing

    padding = np.zeros(stored.shape, bool)
    limits = _values(dataset, "PixelPaddingValue")[:1]
    limits += _values(dataset, "PixelPaddingRangeLimit")[:1] if limits else []
    if stored.itemsize == 1:  # pixels of 8 bits cannot have a larger number
        limits = [each for each in limits if -128 <= each < 256]
    if limits:
        # Cast to the type of the pixels: some devices write 63536 for -2000.
        ends = np.array(limits).astype(stored.dtype)
        padding = (ends.min() <= stored) & (stored <= ends.max())
    rescale = ("RescaleSlope", 1.0), ("RescaleIntercept", 0.0)
    for keyword, default in rescale:  # a slope of 0 counts as missing
        numbers = [number for number in _numbers(dataset, keyword) if number]
        setattr(dataset, keyword, next(filter(math.isfinite, numbers), default))
    given = any(getattr(dataset, keyword) != default for keyword, default in rescale)
    table, dataset.ModalityLUTSequence = _table(dataset, "ModalityLUTSequence"), None
    if table:
        entries, start, _ = table
        values = _look_up(stored, entries, start)
    else:
        values = apply_modality_lut(stored, dataset) if given else stored
    function = str(next(iter(_values(dataset, "VOILUTFunction")), "LINEAR")).upper()
    windows = zip(_numbers(dataset, "WindowCenter"), _numbers(dataset, "WindowWidth"), strict=False)
    smallest = 1 if function == "LINEAR" else math.ulp(0)
    usable = [(c, w) for c, w in windows if math.isfinite(c) and smallest <= w < math.inf]
    dataset.WindowCenter, dataset.WindowWidth = usable[0] if usable else (None, None)
    dataset.VOILUTFunction = function
    if table := _table(dataset, "VOILUTSequence"):  # goes before windows
        entries, start, bits = table
        shown = scale(_look_up(values, entries, start), 0, 2**bits - 1)
    elif not usable:
        shown = stretch(values, ~padding)
    elif function not in ("LINEAR", "LINEAR_EXACT", "SIGMOID"):
        raise UnusableImage(
            "is DICOM with a VOI LUT Function that is not in the standard: correct or blank it"
        )
    else:  # values below and above the window show the values of its ends
        ends = apply_windowing(np.array([-np.inf, np.inf]), dataset)
        shown = scale(apply_windowing(values, dataset), *ends)
    if dataset.PhotometricInterpretation == "MONOCHROME1":  # the smallest value is white
        shown = 255 - shown
    shown[padding] = 0
    return shown


def _table(dataset: Any, keyword: str) -> tuple[NDArray[np.uint16], int, int] | None:
    """The entries of a table, the first value that has one, and its bits; None if there is none."""
    from pydicom.datadict import dictionary_description

    (item,) = (dataset.get(keyword) or [{}])[:1]
    descriptor, data = item.get("LUTDescriptor"), item.get("LUTData")
    if not (descriptor and data):
        return None
    length, start, depth = [*np.ravel(descriptor).tolist(), 0, 0][:3]
    length = length or 2**16
    if isinstance(data, bytes):  # of VR OW; some devices store entries of 8 bits as bytes
        order = "<" if dataset.original_encoding[1] else ">"
        form = "u1" if depth == 8 and len(data) < 2 * length else f"{order}u2"
        data = np.frombuffer(data, form)
    entries = np.ravel(data).astype(np.uint16)[:length]
    if not 8 <= depth <= 16 or len(entries) < length:
        raise UnusableImage(
            f"is DICOM with a {dictionary_description(keyword)} that has too few entries, or "
            "entries of other than 8 to 16 bits: correct or blank it"
        )
    return entries, start, depth


def _look_up(values: NDArray[Any], entries: NDArray[Any], start: int) -> NDArray[Any]:
    """The entries of a table (`_table`) for values; those beyond it take its ends.

    pydicom 3.0 subtracts the first value in the type of the pixels, which overflows.
    """
    if start >= 2**15 and (values.dtype.kind == "i" or values.min() < 0):
        start -= 2**16  # some devices write 65534 for -2
    places = values.clip(float(start), start + len(entries) - 1.0) - start
    found: NDArray[Any] = entries[places.astype(np.int32)]
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
