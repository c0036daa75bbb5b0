"""Files among a hospital's images that are not read here, by their names and first bytes."""

import re
from dataclasses import dataclass
from typing import Literal

SYSTEM = "files and folders of operating systems, file servers or CDs"
REPORTS = "DICOM files without a picture, such as reports"
_SYSTEM = re.compile(
    r"\..*|~\$.*|@eadir|synophoto_thumb_.*|@recycle|@recently-snapshot|#recycle|#snapshot|~snapshot"
    r"|\$recycle\.bin|recycler|system volume information|lost\+found|found\.\d{3}|__macosx"
    r"|(eh)?thumbs\.db.*|desktop\.ini|icon\r|dicomdir|autorun\.inf"
    r"|network trash folder|temporary items|thevolumesettingsfolder|@transcode",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Format:
    """A format that is not read."""

    name: str
    suffixes: str  # suffixes of file names, separated by blanks
    cure: str
    # Regular expression for the first bytes; empty if a TIFF begins in the same way
    start: bytes = b""
    level: Literal["amber", "note"] = "amber"  # level of the finding if a folder holds such files

    def __str__(self) -> str:
        return f"is in a format that is not read here ({self.name}): {self.cure}"


AS_IMAGE = "save images as JPEG, PNG or TIFF"
AS_NIFTI = "save volumes as one NIfTI file each (.nii)"
RAW = Format(
    "camera raw",
    "arw cr2 cr3 dng nef orf pef raf rw2",
    AS_IMAGE,
    rb".{4}ftypcrx|FUJIFILMCCD|IIR[OS]|MMOR|IIU\0",
)
TIFF = Format(
    "this kind of TIFF",
    "",
    "save images as TIFF of 8 or 16 bits, or as PNG",
    rb"II[*+]\0|MM\0[*+]",
)
FORMATS = (
    RAW,
    Format("HEIC", "heic heif hif", AS_IMAGE, rb".{4}ftyp(he[iv]|mif1|msf1)"),
    Format("JPEG XL", "jxl", AS_IMAGE, rb"\xff\x0a|\0{3}\x0cJXL "),
    Format("Photoshop", "psd psb", AS_IMAGE, b"8BPS"),
    Format(
        "whole slide", "svs ndpi mrxs scn vms vmu bif isyntax", "save regions of slides as TIFF"
    ),
    Format("microscope", "czi lif nd2 oib oif vsi", "save regions of images as TIFF"),
    Format("NRRD", "nrrd nhdr", AS_NIFTI, b"NRRD"),
    Format("MetaImage", "mha mhd", AS_NIFTI, b"ObjectType|NDims"),
    Format("MGH", "mgh mgz", AS_NIFTI),
    Format("ANALYZE or NIfTI in two files", "hdr", AS_NIFTI, rb"\x5c\x01\0\0|\0\0\x01\x5c"),
    Format("array", "npy npz mat h5 hdf5", AS_IMAGE, rb"\x93NUMPY|MATLAB|\x89HDF"),
    TIFF,
    Format("PDF", "pdf", AS_IMAGE, b"%PDF", "note"),
    Format(
        "table",
        "csv tsv xls xlsm xlsx ods",
        "if one lists the images, save it as manifest.csv in the folder of all images",
    ),
    Format("drawing", "svg eps", AS_IMAGE, rb"\s*(<\?xml.*)?<svg|%!PS", "note"),
    Format(
        "video",
        "mp4 m4v mov avi mkv mpg mpeg wmv webm",
        "save frames of videos as PNG",
        rb".{4}ftyp(?!avi)|RIFF.{4}AVI |\x1aE\xdf\xa3|\0\0\x01[\xb3\xba]|0&\xb2u",
    ),
    Format(
        "archive",
        "zip rar 7z tar gz tgz bz2 xz",
        "unpack archives",
        rb"PK\x03\x04|Rar!|7z\xbc\xaf|\x1f\x8b|BZh|\xfd7zXZ",
    ),
)


def is_system(name: str) -> bool:
    """Whether a name is that of a system file or folder (`SYSTEM`)."""
    return _SYSTEM.fullmatch(name) is not None


def format_of(name: str) -> Format | None:
    """The unread format of a file, by its suffix; None if there is none."""
    suffix = name.lower().rpartition(".")[2]
    return next((each for each in FORMATS if suffix in each.suffixes.split()), None)


def format_within(start: bytes) -> Format | None:
    """The unread format of a file, by its first 540 bytes; None if there is none."""
    found = (each for each in FORMATS if each.start and re.match(each.start, start, re.DOTALL))
    return next(found, None)
