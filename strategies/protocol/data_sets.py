"""The kinds of data sets: the setting `dataset` begins with the name of one."""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of data set; `client_app.datasets.DATASETS` has its loader."""

    title: str  # name in the title of a report
    rest: str = ""  # the part of the setting after the ':'; empty = the setting has no ':'
    place: str = ""  # "file", "folder" or "folder or file" that `rest` names; empty = none
    side: int = 0  # pixels a side of images, which are grey and name no site; 0 = unknown
    classes: int = 0  # number of classes, named 0, 1, ...; 0 = unknown


KINDS = {
    "digits": Kind("scikit-learn's handwritten digits", side=8, classes=10),
    "mnist": Kind("MNIST", side=28, classes=10),
    "npz": Kind("arrays from a file", "<absolute file>", "file"),
    "hf": Kind("a data set of the Hugging Face hub", "<name on the hub, or absolute folder>"),
    "folder": Kind("the hospitals' own images", "<absolute folder>", "folder"),
    "manifest": Kind("the hospitals' own images", "<absolute folder or file>", "folder or file"),
}


def manifests_in(folder: Path) -> list[Path]:
    """The manifest in a folder: `manifest.csv` in any case, so there may be several."""
    names: list[str] = []
    with suppress(OSError):  # no such folder
        names = os.listdir(folder)
    found = (folder / name for name in sorted(names) if name.lower() == "manifest.csv")
    return [file for file in found if file.is_file()]


def side_of(dataset: str) -> int:
    """The pixels a side of the images of the setting `dataset`; 0 = unknown."""
    return KINDS[dataset].side if dataset in KINDS else 0
