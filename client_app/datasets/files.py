"""Opens one image file: the usual formats, DICOM and NIfTI.

The content of a file determines its format, not its name. DICOM and NIfTI need optional packages
(extras `dicom` and `nifti`). Legend: C channels; H, W pixels of the upright image.
"""

import gzip
import hashlib
import io
import logging
import math
import os
import re
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import PIL.Image
import PIL.ImageCms
import PIL.ImageOps
from numpy.typing import NDArray

from client_app.datasets.unread import RAW, format_within
from strategies.protocol.extras import install_command

# Pillow knows more formats, but it hands some, such as EPS, to other programs.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
SUFFIX = re.compile(  # at the end of a name in lower case
    r"\.(avif|bmp|gif|jpg|jpeg|jpe|jfif|jp2|j2k|png|ppm|pgm|pbm|pnm|tif|tiff|webp|dcm|dicom"
    r"|nii|nii\.gz)\Z"
)
# A chest X-ray has about 15 million pixels, a photograph of a large camera 50 million. Decoding
# takes up to 25 bytes a pixel, or 50 bytes if the pixel has more than 8 bits.
MAX_PIXELS = 2**26
TOO_LARGE = f"has more than {MAX_PIXELS} pixels"
MAX_BYTES = 2**32  # of a file, and of a volume that it holds
# Photometric Interpretation -> samples of a pixel. pydicom treats other interpretations as RGB.
SAMPLES = {"MONOCHROME1": 1, "MONOCHROME2": 1, "PALETTE COLOR": 1, "RGB": 3}
SAMPLES |= dict.fromkeys(["YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT"], 3)
# Modalities without an image. Some of these files claim to be an image.
WITHOUT_PICTURE = re.compile("SR|PR|KO|DOC|REG|SEG|ECG|HD|EPS|AU|PLAN|FID|RT(?!IMAGE).*")
# DICOM without its preamble: an element of group 2 or 8, with a VR or a short length.
BARE = re.compile(rb"(?s)(\x02\0[\0-\x02]|\x08\0[\0-\x20])\0([A-Z]{2}|..\0\0)")
NO_PICTURE = "is DICOM that holds no picture"
SEVERAL = "has several frames or pages: save the one to use as a file of its own"

# The libraries' warnings quote the file, so one filter hides them. warnings.catch_warnings is not
# safe here: threads that leave it in another order than they entered it restore the wrong filters.
LIBRARIES = r"(PIL|pydicom|nibabel|pylibjpeg|libjpeg|openjpeg|rle)\b"
QUIET = ("ignore", None, Warning, re.compile(LIBRARIES), 0)
logging.getLogger("pydicom").propagate = False  # its log lines quote the file too


class UnusableImage(ValueError):
    """An image file cannot be used.

    The text continues a sentence that begins with the image. It is for the hospital and its log
    alone. Even so, it names no path and no file, and quotes no content of the file.
    """


@dataclass(frozen=True)
class Header:
    """The properties of an image that are known without decoding."""

    kind: str  # one of FORMATS, "NIFTI", or "DICOM" with the modality, such as "DICOM CR"
    width: int  # upright
    height: int
    channels: int  # 1 = grey, 3 = colour
    bits: int  # per channel, as stored
    patient: str = ""  # hash of a DICOM file's patient ID; empty if there is no ID

    @property
    def memory(self) -> int:
        """The memory in bytes that decoding takes at most."""
        return self.width * self.height * (25 if self.bits <= 8 else 50)


_Opened = tuple[Header, Callable[[], NDArray[np.uint8]]]  # the header, and the decoder


def read_header(file: Path, slice_: int | None = None) -> Header:
    """Read the header of an image file, and no pixels.

    EXIF that follows the pixels of a PNG is not read, for example.

    Raises:
        UnusableImage: The image cannot be used. Some reasons appear only in decoding.
    """
    with _unusable_on_error(), _open_regular(file) as stream:
        return _open(stream, slice_, 0)[0]


def read_file(file: Path) -> bytes:
    """Read a whole file.

    Raises:
        UnusableImage: The file cannot be read, is no regular file, or is too large.
    """
    with _unusable_on_error(), _open_regular(file) as stream:
        return stream.read(MAX_BYTES)


def is_image(file: Path) -> bool:
    """Whether a file may hold an image: by its suffix, or by the first bytes of DICOM."""
    if SUFFIX.search(file.name.lower()):
        return True
    try:
        with _open_regular(file) as stream:
            return _is_dicom(stream.read(132))
    except UnusableImage:
        return False
    except OSError:
        return True  # the listing then reports that the file cannot be read


def _is_dicom(start: bytes) -> bool:
    return start[128:132] == b"DICM" or BARE.match(start) is not None


@contextmanager
def _open_regular(file: Path) -> Iterator[IO[bytes]]:
    """Open a regular file. A pipe would wait for a writer, and a device has no end."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UnusableImage("is no regular file")
        if found.st_size >= MAX_BYTES:
            raise UnusableImage("is too large a file")
        yield stream


def read_pixels(content: bytes, slice_: int | None = None, size: int = 0) -> NDArray[np.uint8]:
    """Decode the image in the content of a file: [C, H, W].

    Pixels of more than 8 bits become 8 bits. Grey pixels are scaled by the window of the DICOM
    file, or else linearly from the smallest to the largest finite value. Colours keep their upper
    8 bits.

    Args:
        content: The bytes of the file.
        slice_: Number of a slice of a volume, from 0 along the third stored axis.
        size: Wanted size in pixels. A much larger JPEG is decoded at 1/2, 1/4 or 1/8 of its size,
            to at least twice the wanted size; 0 = full size.

    Raises:
        UnusableImage: The image cannot be used.
    """
    with _unusable_on_error():
        return _open(io.BytesIO(content), slice_, size)[1]()


@contextmanager
def _unusable_on_error() -> Iterator[None]:
    """Turn every error into an `UnusableImage`."""
    try:
        yield
    except UnusableImage:
        raise
    except PIL.Image.DecompressionBombError:
        raise UnusableImage(TOO_LARGE) from None
    except Exception as error:  # decoders raise many types, with texts that quote the file
        raise UnusableImage(f"cannot be read or decoded ({type(error).__name__})") from None


def _open(stream: IO[bytes], slice_: int | None, size: int) -> _Opened:
    if QUIET not in warnings.filters:
        warnings.filterwarnings("ignore", module=LIBRARIES)
    zipped = stream.read(2) == b"\x1f\x8b"
    stream.seek(0)
    unzipped = cast(IO[bytes], gzip.GzipFile(fileobj=stream)) if zipped else stream
    start = unzipped.read(540)
    unzipped.seek(0)
    if start[344:348] == b"n+1\0" or start[4:8] == b"n+2\0":
        opened = _nifti(unzipped, start, slice_)
    elif slice_:
        raise UnusableImage("is no volume, and has no such slice")
    elif _is_dicom(start) and not zipped:
        opened = _dicom(stream)
    else:
        opened = _picture(stream, size)
    if opened[0].width * opened[0].height > MAX_PIXELS:
        raise UnusableImage(TOO_LARGE)
    return opened


def _picture(stream: IO[bytes], size: int) -> _Opened:
    try:
        picture: PIL.Image.Image = PIL.Image.open(stream, formats=FORMATS)
    except PIL.UnidentifiedImageError:
        stream.seek(0)
        format_ = format_within(stream.read(540))
        raise UnusableImage(str(format_ or "is no image file that can be read here")) from None
    # Telephones append thumbnails to a JPEG. Pillow calls such a file MPO.
    kind = "JPEG" if picture.format == "MPO" else str(picture.format)
    if kind != "JPEG" and getattr(picture, "is_animated", False):
        raise UnusableImage(SEVERAL)
    tags = cast(Mapping[int, Any], getattr(picture, "tag_v2", {}))  # of a TIFF
    if tags.get(254) == 1 and 330 in tags:  # the first page is a preview of a raw photograph
        raise UnusableImage(str(RAW))
    width, height = picture.size
    if not tags:  # the size of a TIFF is already that of the upright image
        # The method of the base class, since the method of PNG decodes.
        with suppress(Exception):  # Pillow keeps the readable part of a broken EXIF
            PIL.Image.Image.getexif(picture)
        if PIL.Image.Image.getexif(picture).get(0x0112) in (5, 6, 7, 8):
            width, height = height, width
    # Pillow reads these unsigned numbers as signed, or signed numbers as unsigned.
    number = (picture.mode, tags.get(339, (1,))[0] if tags else 0)
    other = {("I", 1): np.uint32, ("L", 2): np.int8}.get(number)
    deep = picture.mode.startswith(("I", "F")) or other is not None
    grey = deep or picture.mode in ("1", "L", "LA")
    raw = f"{picture.mode} {getattr(picture, 'tile', None)}"  # the latter has, say, "RGB;16B"
    bits = 16 if ";16" in raw and kind != "BMP" else {"1": 1, "I": 32, "F": 32}.get(picture.mode, 8)

    def decode() -> NDArray[np.uint8]:
        shown = picture
        if size:
            shown.draft(None, (2 * size, 2 * size))
        shown.load()
        shown.info.clear()  # otherwise Pillow rewrites the EXIF and fails on odd entries
        PIL.ImageOps.exif_transpose(shown, in_place=True)
        if deep:
            values = np.asarray(shown)
            pixels = _stretch(values if other is None else values.view(other))[None]
            return 255 - pixels if tags.get(262) == 0 else pixels  # 0: WhiteIsZero
        if shown.mode == "LAB":  # Pillow converts LAB only by colour profiles
            lab, rgb = PIL.ImageCms.createProfile("LAB"), PIL.ImageCms.createProfile("sRGB")
            transform = PIL.ImageCms.buildTransform(lab, rgb, "LAB", "RGB")
            shown = cast(PIL.Image.Image, PIL.ImageCms.applyTransform(shown, transform))
        # Pillow keeps the upper 8 bits of 16-bit colours and of 16-bit grey with transparency.
        return _channels_first(np.array(shown.convert("L" if grey else "RGB")))

    return Header(kind, width, height, 1 if grey else 3, bits), decode


def _dicom(stream: IO[bytes]) -> _Opened:
    try:
        import pydicom
        from pydicom.datadict import dictionary_description
        from pydicom.encaps import get_frame
        from pydicom.pixels.decoders.base import get_decoder
        from pydicom.pixels.processing import apply_color_lut
        from pydicom.uid import (
            UID,
            ExplicitVRLittleEndian,
            ImplicitVRLittleEndian,
            JPEG2000TransferSyntaxes,
        )
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
    pixels, syntax = stream.read(12), dataset.file_meta.get("TransferSyntaxUID")
    modality = str(dataset.get("Modality") or "")
    if not pixels or "Rows" not in dataset or modality in ("SEG", "RTDOSE"):
        about = dataset.get("SOPClassUID") or dataset.file_meta.get("MediaStorageSOPClassUID", "")
        if "Image" in UID(about).name and not WITHOUT_PICTURE.fullmatch(modality):
            raise UnusableImage("is DICOM that ends before its pixels: copy or export it again")
        raise UnusableImage(NO_PICTURE)
    if int(dataset.get("NumberOfFrames") or 1) > 1:
        raise UnusableImage(SEVERAL)
    if not syntax:
        implicit = dataset.original_encoding[0]
        if pixels[4 if implicit else 8 :][:4] == b"\xff" * 4:  # undefined length
            raise UnusableImage("is DICOM that does not name its compression: export it again")
        syntax = ImplicitVRLittleEndian if implicit else ExplicitVRLittleEndian
    try:
        if not get_decoder(syntax).is_available:
            raise UnusableImage(
                f"is DICOM compressed as {syntax.name}: install the extra that decodes it with "
                f"{install_command('dicom')}"
            )
    except NotImplementedError:  # pydicom does not know this syntax
        raise UnusableImage(
            "is DICOM in a transfer syntax that cannot be decoded here: export it uncompressed"
        ) from None
    colour, samples = dataset.get("PhotometricInterpretation"), dataset.get("SamplesPerPixel")
    needed = ["Columns", "SamplesPerPixel", "PhotometricInterpretation", "BitsAllocated"]
    needed += ["PlanarConfiguration"] if samples == 3 else []
    needed += ["BitsStored", "PixelRepresentation"] if b"\x10" in pixels[:4] else []  # no floats
    for keyword in ("Rows", *needed):
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
    bits = int(dataset.get("BitsStored") or dataset.BitsAllocated)
    if dataset.get("HighBit", bits - 1) not in (None, bits - 1):  # the standard once allowed it
        raise UnusableImage("is DICOM with a High Bit other than Bits Stored - 1: export it again")
    grey = colour in ("MONOCHROME1", "MONOCHROME2")
    name = str(dataset.get("PatientID") or "").strip()
    patient = hashlib.sha256(name.encode()).hexdigest()[:16] if name else ""

    def decode() -> NDArray[np.uint8]:
        stream.seek(0)
        dataset = pydicom.dcmread(stream, force=True)
        dataset.file_meta.TransferSyntaxUID = syntax
        if syntax.is_encapsulated:  # the picture may be far larger than the header claims
            frame = io.BytesIO(get_frame(dataset.PixelData, 0, number_of_frames=1))
            with suppress(PIL.UnidentifiedImageError):  # Pillow knows most compressions
                within = PIL.Image.open(frame, formats=("JPEG", "JPEG2000"))
                if within.width * within.height > MAX_PIXELS:
                    raise UnusableImage(TOO_LARGE)
        stored = dataset.pixel_array  # [H, W] or [H, W, 3], made RGB if it was YBR
        if grey:
            return _channels_first(_dicom_grey(dataset, stored))
        entry = bits
        if colour == "PALETTE COLOR":
            entry = dataset.RedPaletteColorLookupTableDescriptor[2]
            stored = apply_color_lut(stored, dataset)[..., :3]  # without transparency
        return _channels_first((stored >> max(0, entry - 8)).astype(np.uint8))

    width, height, channels = int(dataset.Columns), int(dataset.Rows), 1 if grey else 3
    kind = f"DICOM {modality}" if re.fullmatch("[A-Z]{2,16}", modality) else "DICOM"
    return Header(kind, width, height, channels, bits, patient), decode


def _dicom_grey(dataset: Any, stored: NDArray[Any]) -> NDArray[np.uint8]:
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
    if not (table := bool(item.get("LUTDescriptor") and item.get("LUTData"))):
        dataset.ModalityLUTSequence = None
    values = apply_modality_lut(stored, dataset) if given or table else stored
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
        shown = _stretch(values, ~padding)
    elif top:
        shown = _scale(windowed, 0, top)
    else:  # values below and above the window show the values of its ends
        shown = _scale(windowed, *apply_voi_lut(np.array([-np.inf, np.inf]), dataset))
    if dataset.PhotometricInterpretation == "MONOCHROME1":  # the smallest value is white
        shown = 255 - shown
    shown[padding] = 0
    return shown


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


def _nifti(stream: IO[bytes], start: bytes, slice_: int | None) -> _Opened:
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
        raise UnusableImage("is NIfTI with values that are no real numbers")
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
        return _channels_first(_stretch(plane[::-1, ::-1].T))

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


def _channels_first(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Copy [H, W] or [H, W, C] to [C, H, W]."""
    return np.ascontiguousarray(np.moveaxis(np.atleast_3d(image), 2, 0))


def _stretch(values: NDArray[Any], used: NDArray[np.bool_] | None = None) -> NDArray[np.uint8]:
    """Scale numbers linearly to 0..255, from the smallest to the largest finite one in `used`."""
    chosen = values[np.isfinite(values) if used is None else np.isfinite(values) & used]
    return _scale(values, chosen.min(), chosen.max()) if chosen.size else _scale(values, 0, 0)


def _scale(values: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    """Scale numbers linearly to 0..255, from `low` to `high`; all 0 if these are equal."""
    if low == high:
        return np.zeros(values.shape, np.uint8)
    with np.errstate(all="ignore"):
        share = (values.astype(np.float64) - float(low)) / (float(high) - float(low))
    pixels: NDArray[np.uint8] = np.rint(255 * np.nan_to_num(share).clip(0, 1)).astype(np.uint8)
    return pixels
